"""What is decoded, formatted and checked without a service."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import mindeval.client
from mindeval.client import (
    EvaluationFailed,
    EvaluationResult,
    Failure,
    FormatError,
    Metric,
    TlsFiles,
    _channel,
    _datasets,
    _decode,
    _metrics,
    _suites,
)
from mindeval.client.cli import documents, tables
from mindeval.client.cli.parser import parse_duration
from mindeval.client.cli.progress import clock
from mindeval.v1 import registry_pb2


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (3.418234, 0.00432, "3.4182 ± 0.0043"),
        (798.57, 109.2, "798.57 ± 109"),
        (2.706079, 0.0791, "2.7061 ± 0.079"),
        (0.0, 0.1, "0.00 ± 0.10"),
        (12.0, None, "12"),
        (0.5, 0.0, "0.5 ± 0"),
        (math.inf, 1.0, "inf"),
        (math.nan, None, "nan"),
        (3e12, 4e10, "3e+12 ± 4e+10"),
    ],
)
def test_value_with_error(value: float, error: float | None, text: str) -> None:
    assert str(Metric(value, error)) == text


def test_result_reads_well_and_raises_on_request() -> None:
    result = EvaluationResult(
        "projects/p/evaluations/e", "SUCCEEDED", run="r", step=3, metrics={"val/loss": Metric(2, 0.1)}
    )
    assert repr(result) == (
        "EvaluationResult('projects/p/evaluations/e', SUCCEEDED, run='r', step=3, val/loss=2.0000 ± 0.10)"
    )
    assert result.raise_for_state() is result
    failed = EvaluationResult("e", "FAILED", error=Failure("TENSOR_MISSING", "no w", {"tensor": "w"}))
    with pytest.raises(EvaluationFailed) as caught:
        failed.raise_for_state()
    assert (caught.value.reason, caught.value.metadata) == ("TENSOR_MISSING", {"tensor": "w"})
    with pytest.raises(EvaluationFailed):
        EvaluationResult("e", "SUPERSEDED").raise_for_state()


@pytest.mark.parametrize(
    "endpoint", ["", "host", "host:", "host:0", "host:99999", "http://host:1", "a b:1", "::1:7860", "host:1/x", "unix:"]
)
def test_malformed_endpoints(endpoint: str) -> None:
    with pytest.raises(FormatError, match="host:port"):
        _channel.is_local(endpoint)


@pytest.mark.parametrize(
    ("endpoint", "local"),
    [
        ("127.0.0.1:1", True),
        ("localhost:1", True),
        ("[::1]:1", True),
        ("unix:/x", True),
        ("10.0.0.1:1", False),
        ("eval.example:7860", False),
    ],
)
def test_tokens_travel_encrypted_or_stay_here(endpoint: str, local: bool, tmp_path: Path) -> None:
    assert _channel.is_local(endpoint) is local
    if local:
        assert _channel.Target(endpoint, "mde_x_y").metadata() == (("authorization", "Bearer mde_x_y"),)
    else:
        with pytest.raises(FormatError, match="unencrypted"):
            _channel.Target(endpoint, "mde_x_y")
        _channel.Target(endpoint, "mde_x_y", TlsFiles())
    with pytest.raises(FormatError, match="token"):
        _channel.Target(endpoint, "two words")
    with pytest.raises(FormatError, match=r"nope\.pem: no such file"):
        TlsFiles(ca_file=str(tmp_path / "nope.pem")).read()


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tasks: [", r"s\.yaml:1:9: "),
        ("tasks:\n  - name: a\n   type: b\n", r"s\.yaml:3:4: "),
        ("tasks: []\ntasks: []\n", r"s\.yaml:2:1: the key 'tasks' stands twice"),
        ("a: &x [1]\nb: *x\n", r"s\.yaml:2:4: aliases"),
        ("- 1\n", "expected a mapping"),
        ("\x07", "not YAML"),
        ("tasks: !!python/object/apply:os.system [x]\n", r"s\.yaml:1:8: "),
        ("", "expected a mapping"),
    ],
)
def test_broken_definitions_name_line_and_column(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(FormatError, match=message) as caught:
        _suites.read_definition(write(tmp_path / "s.yaml", text))
    assert "\n" not in caught.value.message


TASK = {"name": "val", "type": "language_modeling", "dataset": "d"}


@pytest.mark.parametrize(
    ("definition", "field"),
    [
        ({"tasks": [TASK], "task": 1}, "task"),
        ({}, "tasks"),
        ({"tasks": {"val": TASK}}, "tasks"),
        ({"tasks": ["val"]}, "tasks[0]"),
        ({"tasks": [{**TASK, "dataset": 3}]}, "tasks[0].dataset"),
        ({"tasks": [TASK, {"name": "b", "type": "c"}]}, "tasks[1].dataset"),
        ({"tasks": [{**TASK, "metrics": "loss"}]}, "tasks[0].metrics"),
        ({"tasks": [{**TASK, "since": __import__("datetime").date(2020, 1, 1)}]}, "tasks[0].since"),
        ({"tasks": [{**TASK, "x": [1, {"y": math.nan}]}]}, "tasks[0].x.y"),
        ({"tasks": [TASK], "description": 3}, "description"),
    ],
)
def test_malformed_definitions_name_the_field(definition: dict[str, Any], field: str) -> None:
    with pytest.raises(FormatError) as caught:
        _suites.build(definition)
    assert caught.value.metadata == {"field": field}


def test_definition_round_trip(tmp_path: Path) -> None:
    text = """
description: 验证集
tasks:
  - name: val
    type: language_modeling
    dataset: docs
    metrics: [loss, ppl]
    max_length: 512
    stop: ["。", "\\n"]
    ratio: 0.5
    nested: {deep: [1, null, true]}
"""
    message = _suites.build(_suites.read_definition(write(tmp_path / "s.yaml", text)))
    message.version = f"projects/p/suites/valid/versions/{'0' * 64}"
    suite = _decode.suite(registry_pb2.Suite.FromString(message.SerializeToString()))
    assert suite.tasks[0].settings == {
        "max_length": 512,
        "stop": ["。", "\n"],
        "ratio": 0.5,
        "nested": {"deep": [1, None, True]},
    }
    again = _suites.read_definition(write(tmp_path / "again.yaml", tables.suite_text(suite)))
    assert again.pop("name") == "valid"
    message.ClearField("version")
    assert _suites.build(again) == message


def test_training_points() -> None:
    import numpy as np

    message = _metrics.training_point(
        {"step": np.int64(3), "loss": np.float32(2.5), "time": 1.5, "host_memory_bytes": 5.0, "tokens_per_second": None}
    )
    assert (message.step, message.loss, message.time.seconds, message.time.nanos) == (3, 2.5, 1, 500_000_000)
    assert not message.HasField("tokens_per_second")
    assert math.isnan(_metrics.training_point({"step": 1, "loss": math.nan}).loss)
    for bad in ({}, {"step": -1}, {"step": 1.5}, {"step": True}, {"step": 1, "loss": "2"}, {"step": 1, "x": 1}, [1]):
        with pytest.raises(FormatError):
            _metrics.training_point(bad)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("10m", 600), ("1h30m", 5400), ("1h5", 3605), ("0.5s", 0.5)]
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "-5", "m", "10x", "1m1h", "nan"])
def test_malformed_durations(text: str) -> None:
    with pytest.raises(Exception, match="duration"):
        parse_duration(text)


def test_tables_align_chinese() -> None:
    lines = tables.table(("name", "n"), [["验证集", "1"], ["valid", "10"]], "<>").splitlines()
    assert lines == ["name     n", "验证集   1", "valid   10"]
    assert tables.display_width("e\u0301验") == 3


def test_sizes_and_clocks() -> None:
    assert [tables.size(value) for value in (0, 999, 1000, 999_949, 999_960, 1.5e9, 5e15)] == [
        "0 B",
        "999 B",
        "1.0 kB",
        "999.9 kB",
        "1.0 MB",
        "1.5 GB",
        "5000.0 TB",
    ]
    assert [clock(value) for value in (0.2, 7, 3599.6, 7385)] == ["0:00", "0:07", "1:00:00", "2:03:05"]


def test_json_documents_hold_no_invalid_numbers() -> None:
    assert [documents.number(value) for value in (1.5, math.nan, math.inf, -math.inf, None)] == [
        1.5,
        "NaN",
        "Infinity",
        "-Infinity",
        None,
    ]


def test_public_names_are_there_and_import_is_thin() -> None:
    assert all(getattr(mindeval.client, name) is not None for name in mindeval.client.__all__)
    assert set(mindeval.client.__all__) == set(mindeval.client._HOME_OF)
    with pytest.raises(AttributeError):
        _ = mindeval.client.nothing  # type: ignore[attr-defined]
    code = (
        "import sys, mindeval.client\n"
        "heavy = {'grpc', 'google.protobuf', 'numpy', 'asyncio', 'yaml', 'mindspore'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "import mindeval.client.agent.session, mindeval.client.cli.evaluating, mindeval.client._sync_client\n"
        "ours = {name for name in sys.modules if name.startswith('mindeval.service')}\n"
        "assert not ours and 'mindspore' not in sys.modules, ours\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_dataset_files_of_one_name_are_told_apart_by_their_folders() -> None:
    assert list(_datasets.named_files(["a/v.txt", "b/w.txt"])) == ["v.txt", "w.txt"]
    assert list(_datasets.named_files(["x/a/v.txt", "x/b/v.txt"])) == ["a/v.txt", "b/v.txt"]
    assert list(_datasets.named_files("a/v.txt")) == ["v.txt"]
    with pytest.raises(FormatError, match="given twice"):
        _datasets.named_files(["a/v.txt", "./a/v.txt"])
