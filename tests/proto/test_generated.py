"""The committed modules are what the generator writes, and they load on the oldest and the newest runtime."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GENERATOR = ROOT / ".venv-proto" / "bin" / "python"
MODULES = sorted(
    path.name
    for pattern in ("*_pb2.py", "*_pb2.pyi", "*_pb2_grpc.py")
    for path in (ROOT / "proto/mindeval/v1").glob(pattern)
)


def test_regenerating_changes_nothing(tmp_path: Path) -> None:
    assert GENERATOR.exists(), "the generator's environment is missing: run `make proto`"
    subprocess.run([ROOT / "proto/generate.sh", GENERATOR, "--out", tmp_path], check=True)
    generated = {path.name: path.read_text() for path in (tmp_path / "mindeval/v1").iterdir()}
    assert sorted(generated) == MODULES
    for name, text in generated.items():
        assert text == (ROOT / "proto/mindeval/v1" / name).read_text(), f"{name} is stale: run `make proto`"


@pytest.mark.parametrize("python", [GENERATOR, Path(sys.executable)], ids=["oldest", "newest"])
def test_messages_load_and_round_trip(python: Path) -> None:
    program = """
import sys
sys.path.insert(0, "proto")
import google.protobuf
from mindeval.v1 import (blob_pb2_grpc, capability_pb2_grpc, errors_pb2, evaluation_pb2, evaluation_pb2_grpc,
                         registry_pb2_grpc, run_pb2_grpc)
result = evaluation_pb2.MetricResult(task="val", metric="loss", value=0.0, standard_error=0.0)
again = evaluation_pb2.MetricResult.FromString(result.SerializeToString())
assert again == result and again.HasField("standard_error") and not again.HasField("higher_is_better")
print(google.protobuf.__version__)
"""
    done = subprocess.run(
        [python, "-W", "ignore", "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    if python == GENERATOR:
        assert done.stdout.startswith("4.25"), "the old runtime is the point of this case"


def test_every_message_and_field_has_a_comment() -> None:
    for path in (ROOT / "proto/mindeval/v1").glob("*.proto"):
        before = ""
        for number, line in enumerate(path.read_text().splitlines(), 1):
            text = line.strip()
            declares = text.startswith(("message ", "enum ", "service ", "rpc ", "oneof ")) or (
                text.endswith(";") and "=" in text
            )
            if declares and not text.startswith("syntax"):
                assert before.startswith("//"), f"{path.name}:{number} has no comment: {text}"
            before = text
