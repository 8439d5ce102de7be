"""Which evaluator produced a number: the release and a digest of the code that computes."""

from __future__ import annotations

from functools import cache
from importlib.metadata import version
from pathlib import Path

from mindeval.formats.digest import Hasher, digest_hex


@cache
def evaluator_build() -> str:
    """Version and code digest, such as "0.1.0+3f9c2a7d41e0".

    The digest is over the Python files of the runtime and metrics packages, in path order: two services of one build
    compute the same numbers from the same inputs and settings.
    """
    root = Path(__file__).parent
    hasher = Hasher()
    for package in ("metrics", "runtime"):
        for path in sorted((root / package).rglob("*.py")):
            hasher.update(f"{path.relative_to(root).as_posix()}\0{path.stat().st_size}\0".encode())
            hasher.update(path.read_bytes())
    return f"{version('mindeval')}+{digest_hex(hasher.digest())[:12]}"
