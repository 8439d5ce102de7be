"""The real 135M-parameter model of the shared data, built once and kept outside the repository."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def shared_folder() -> Path:
    """The folder of shared data: MINDEVAL_SHARED, else `shared` beside the repository; skips when it is absent."""
    folder = Path(os.environ.get("MINDEVAL_SHARED") or ROOT.parent / "shared")
    if not (folder / "tools" / "make_smollm2.py").exists():
        pytest.skip(f"no shared data in {folder}; set MINDEVAL_SHARED")
    return folder


def smollm2_folder() -> Path:
    """config.json, model.safetensors and tokenizer.json of SmolLM2; skips when it cannot be built here.

    The build is kept in MINDEVAL_CACHE, else in ~/.cache/mindeval.
    """
    shared = shared_folder()
    cache = Path(os.environ.get("MINDEVAL_CACHE") or Path.home() / ".cache" / "mindeval")
    folder = cache / "smollm2"
    command = [sys.executable, str(shared / "tools" / "make_smollm2.py"), str(folder)]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    if built.returncode:
        reason = built.stderr.strip().splitlines()[-1:]
        pytest.skip(f"SmolLM2 cannot be built: {' '.join(reason)[:300]}")
    return folder
