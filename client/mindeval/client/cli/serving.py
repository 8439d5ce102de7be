"""`mindeval serve` and `mindeval metrics`: replace this process by one of the service's."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Sequence

# Packages of the `service` extra that its processes cannot start without.
_NEEDED = ("mindeval.service", "sqlalchemy", "alembic", "grpc_health")
_METRICS_NEED = ("mindeval.service.metrics", "sacrebleu", "nltk")


def serve(arguments: Sequence[str]) -> int:
    """Executes `python -m mindeval.service` with these arguments; returns only when that cannot be done."""
    return _execute("mindeval.service", _NEEDED, "the service is", arguments)


def metrics(arguments: Sequence[str]) -> int:
    """Executes `python -m mindeval.service.metrics` with these arguments; returns only when that cannot be done."""
    return _execute("mindeval.service.metrics", _METRICS_NEED, "the metrics are", arguments)


def _execute(module: str, needed: Sequence[str], what: str, arguments: Sequence[str]) -> int:
    missing = [name for name in needed if not _is_installed(name)]
    if missing:
        print(
            f"mindeval: error: {what} not installed here ({missing[0]} is missing); "
            "run: pip install 'mindeval[service]' [USAGE]",
            file=sys.stderr,
        )
        return 2
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-m", module, *arguments])


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False
