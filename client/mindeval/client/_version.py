"""Version of the installed distribution."""

from __future__ import annotations

from importlib import metadata


def version() -> str:
    """Version such as "0.1.0"; "unknown" when the package runs from a folder that was never installed."""
    try:
        return metadata.version("mindeval")
    except metadata.PackageNotFoundError:
        return "unknown"
