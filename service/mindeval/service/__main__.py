"""`python -m mindeval.service`: reads the settings and serves."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mindeval.service import allocation, logs, settings
from mindeval.service.data_directory import DataDirectoryError
from mindeval.service.server import StartError, serve
from mindeval.service.storage.sql.migrate import MigrationError

_log = logging.getLogger(__name__)

_USAGE_ERROR = 2
_START_ERROR = 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the service.

    Returns:
        The exit code: 0 after an orderly shutdown, 1 when the service could not start, 2 for settings that cannot be
        used.
    """
    given = _parser().parse_args(arguments)
    values: dict[str, Any] = {key: value for key, value in vars(given).items() if key != "config" and value is not None}
    try:
        chosen = settings.load(values, os.environ, given.config)
    except settings.SettingsError as error:
        for fault in error.faults:
            print(f"mindeval: {fault}", file=sys.stderr)
        return _USAGE_ERROR
    logs.set_up(chosen.log_level)
    allocation.keep_chunks()
    if not chosen.is_loopback and not chosen.uses_tls:
        print(
            f"mindeval: WARNING: {chosen.listen} IS OPEN TO THE NETWORK WITHOUT TLS: anyone who reaches it can read "
            "and send everything",
            file=sys.stderr,
        )
    try:
        asyncio.run(serve(chosen))
    except (DataDirectoryError, MigrationError, StartError) as error:
        print(f"mindeval: {error}", file=sys.stderr)
        return _START_ERROR
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mindeval serve",
        description="Evaluates checkpoints for training jobs. Every setting can also stand in a TOML file or in a "
        "variable MINDEVAL_<NAME>.",
    )
    parser.add_argument("--data-dir", metavar="DIR", help="database, blobs, runners (./mindeval-data)")
    parser.add_argument("--listen", metavar="HOST:PORT", help="address (127.0.0.1:7860); port 0 takes a free one")
    parser.add_argument("--devices", help="cpu:N for N runners on the CPU, ascend:0,1 for these NPUs (cpu:1)")
    parser.add_argument("--config", metavar="FILE.toml", type=Path, help="file with settings")
    parser.add_argument("--tls-certificate", metavar="FILE", help="PEM file with the certificate chain")
    parser.add_argument("--tls-key", metavar="FILE", help="PEM file with its private key")
    parser.add_argument(
        "--allow-insecure",
        action="store_const",
        const=True,
        help="listen beyond this machine without TLS (anyone who reaches the port can use it)",
    )
    parser.add_argument("--log-level", help="debug, info, warning or error (info)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
