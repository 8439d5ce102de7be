"""From the command line to an exit code; the one place where errors become a line of text."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import traceback
from collections.abc import Sequence

from mindeval.client._memory import keep_freed_memory
from mindeval.client.cli.parser import build_parser, command_index
from mindeval.client.cli.serving import metrics, serve
from mindeval.client.cli.session import Session
from mindeval.formats.errors import FormatError, MindEvalError

EXIT_OK = 0
EXIT_USAGE = 2
EXIT_UNREACHABLE = 3
EXIT_REFUSED = 4
EXIT_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs `mindeval` with these arguments (those of the process when None); returns its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    command = command_index(words)
    if words[command : command + 1] == ["serve"]:  # its options are the service's own
        return serve(words[command + 1 :])
    if words[command : command + 1] == ["metrics"]:  # the same; it needs no service
        return metrics([*words[command + 1 :], *(["--json"] if "--json" in words[:command] else [])])
    options = build_parser().parse_args(words)
    # gRPC's own log would mix with the one line of an error.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    keep_freed_memory()
    session = Session(options)
    try:
        return asyncio.run(_run(session, options))
    except KeyboardInterrupt:
        session.progress.close()
        print(f"mindeval: interrupted{session.interrupt_hint}", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has seen enough; keep the interpreter from complaining at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_OK
    except Exception as error:
        session.progress.close()
        return _report(session, error)


async def _run(session: Session, options: argparse.Namespace) -> int:
    async with session:
        code: int = await options.run(session, options)
        sys.stdout.flush()
        return code


def _report(session: Session, error: Exception) -> int:
    from mindeval.client import _errors

    if os.environ.get("MINDEVAL_DEBUG") == "1":
        traceback.print_exception(type(error), error, error.__traceback__)
    if isinstance(error, MindEvalError):
        reason, message, metadata = error.reason, error.message, error.metadata
    elif isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        reason, message, metadata = "OS_ERROR", f"{where}{(error.strerror or str(error)).lower()}", {}
    else:
        text = f"{type(error).__name__}: {error}; set MINDEVAL_DEBUG=1 for the traceback"
        reason, message, metadata = "INTERNAL", text, {}
    session.fail(reason, message, metadata)
    if isinstance(error, _errors.ServiceUnavailable):
        return EXIT_UNREACHABLE
    if isinstance(error, _errors.ServiceError):
        return EXIT_REFUSED
    if isinstance(error, (FormatError, OSError)):
        return EXIT_USAGE
    return 1
