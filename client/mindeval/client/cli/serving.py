"""`mindeval serve`: replaces this process by the service's."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Sequence

# Packages of the `service` extra that its process cannot start without.
_NEEDED = ("mindeval.service", "sqlalchemy", "alembic", "grpc_health")


def serve(arguments: Sequence[str]) -> int:
    """Executes `python -m mindeval.service` with these arguments; returns only when that cannot be done."""
    missing = [name for name in _NEEDED if not _is_installed(name)]
    if missing:
        print(
            f"mindeval: error: the service is not installed here ({missing[0]} is missing); "
            "run: pip install 'mindeval[service]' [USAGE]",
            file=sys.stderr,
        )
        return 2
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-m", "mindeval.service", *arguments])


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False
