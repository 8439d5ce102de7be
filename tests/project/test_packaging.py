"""The wheel works by itself, the thin install is thin, and the tree holds no trace of one machine."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(*command: str | Path, cwd: Path = ROOT) -> str:
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_mindeval_is_a_namespace_package() -> None:
    assert not list(ROOT.glob("*/mindeval/__init__.py"))


def test_no_address_of_an_index_and_no_path_of_a_machine_in_the_tree() -> None:
    suspicious = re.compile(r"--(extra-)?index-url|find-links|\b/work/|/root/|/home/\w+/")
    tracked = run("git", "ls-files", "-co", "--exclude-standard").splitlines()
    for name in tracked:
        path = ROOT / name
        if path.suffix not in (".py", ".md", ".toml", ".txt", ".sh", ".yaml", ".proto", "") or path == Path(__file__):
            continue
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            assert not suspicious.search(line), f"{name}:{number}: {line}"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_wheel_works_in_a_fresh_environment_without_the_repository(tmp_path: Path) -> None:
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", tmp_path, ".")
    (wheel,) = tmp_path.glob("mindeval-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    for expected in (
        "mindeval/v1/evaluation_pb2.py",
        "mindeval/v1/evaluation.proto",
        "mindeval/formats/manifest.py",
        "mindeval/client/agent/__main__.py",
        "mindeval/hooks/py.typed",
        "mindeval/service/__main__.py",
        "mindeval/service/runtime/worker.py",
    ):
        assert expected in names
    assert not [name for name in names if name.startswith(("tests/", "examples/", "benchmarks/"))]

    run(sys.executable, "-m", "venv", tmp_path / "venv")
    python = tmp_path / "venv/bin/python"
    run(python, "-m", "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt", wheel, cwd=tmp_path)
    installed = {line.split("==")[0].lower() for line in run(python, "-m", "pip", "freeze").splitlines()}
    assert {re.split(r" ?@", name)[0] for name in installed} == {
        "blake3",
        "googleapis-common-protos",
        "grpcio",
        "mindeval",
        "numpy",
        "protobuf",
        "pyyaml",
        "typing_extensions",
    }
    assert "usage: mindeval" in run(tmp_path / "venv/bin/mindeval", "--help", cwd=tmp_path)
    refused = subprocess.run(
        [tmp_path / "venv/bin/mindeval", "serve"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert refused.returncode != 0
    assert "mindeval[service]" in refused.stderr
    assert "Traceback" not in refused.stderr
