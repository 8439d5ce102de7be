import os
import subprocess
import sys

import numpy as np
import pytest
from safetensors.numpy import load_file

from mindeval.formats.errors import MindEvalError
from mindeval.hooks import staging
from mindeval.hooks.snapshot import (
    ParameterSpec,
    SnapshotBuffers,
    read_snapshot,
    safetensors_dtype,
    snapshot_size_bytes,
)
from mindeval.hooks.staging import StagingFolder, snapshot_parents

SPECS = [
    ParameterSpec("flag", "BOOL", (3,)),
    ParameterSpec("scale", "F32", ()),
    ParameterSpec("half", "F16", (5,)),
    ParameterSpec("weight", "F32", (7, 3)),
    ParameterSpec("empty", "F32", (0, 4)),
    ParameterSpec("counter", "I64", (1,)),
]


def arrays(seed):
    random = np.random.default_rng(seed)
    return {
        "flag": random.random(3) > 0.5,
        "scale": np.float32(random.random()).reshape(()),
        "half": random.random(5).astype(np.float16),
        "weight": random.random((7, 3)).astype(np.float32),
        "empty": np.zeros((0, 4), np.float32),
        "counter": random.integers(0, 2**60, 1),
    }


@pytest.fixture
def buffers(tmp_path):
    made = SnapshotBuffers(tmp_path, SPECS)
    yield made
    made.close()


def test_a_snapshot_is_a_valid_file_equal_to_the_parameters(buffers):
    given = arrays(1)
    buffer = buffers.acquire(1)
    buffer.copy(given.items())
    read = load_file(buffer.path)
    assert read.keys() == given.keys()
    for name, array in given.items():
        assert read[name].dtype == array.dtype
        np.testing.assert_array_equal(read[name], array)


def test_a_snapshot_does_not_follow_its_source(buffers):
    given = arrays(1)
    buffer = buffers.acquire(1)
    buffer.copy(given.items())
    before = buffer.path.read_bytes()
    given["weight"] += 1
    assert buffer.path.read_bytes() == before


def test_bfloat16_is_copied_bit_by_bit(tmp_path):
    spec = [ParameterSpec("w", "BF16", (4,))]
    bits = np.array([0x3F80, 0xC000, 0x7FC0, 1], np.uint16)
    buffers = SnapshotBuffers(tmp_path, spec)
    buffer = buffers.acquire(1)
    buffer.copy([("w", bits.view("V2"))])  # numpy sees MindSpore's bfloat16 as two opaque bytes
    np.testing.assert_array_equal(read_snapshot(buffer.path, spec)["w"], bits)
    buffers.close()


def test_two_buffers_take_turns_and_a_third_is_refused(buffers):
    first, second = buffers.acquire(1), buffers.acquire(2)
    first.content, second.content = 1, 2
    assert first is not second
    assert buffers.acquire(3) is None
    buffers.release(1)
    buffers.release(1)
    assert buffers.containing(1) is first
    assert buffers.acquire(3) is first
    assert buffers.containing(1) is None
    buffers.release(2)
    buffers.release(3)
    first.content = 3
    assert buffers.acquire(4) is second  # the older content goes first


def test_a_parameter_that_changed_its_shape_is_an_error(buffers):
    with pytest.raises(ValueError, match="could not broadcast"):
        buffers.acquire(1).copy([("weight", np.zeros((2, 2), np.float32))])


def test_closing_removes_the_files(tmp_path):
    buffers = SnapshotBuffers(tmp_path, SPECS)
    assert len(list(tmp_path.iterdir())) == 2
    buffers.close()
    assert list(tmp_path.iterdir()) == []


def test_no_room_is_an_error_at_the_start(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space left"):
        SnapshotBuffers(tmp_path, SPECS)


@pytest.mark.parametrize(
    ("specs", "reason"),
    [
        ([*SPECS, ParameterSpec("more", "F32", (1,))], "TENSOR_MISSING"),
        (SPECS[1:], "TENSOR_UNEXPECTED"),
        ([ParameterSpec("flag", "BOOL", (3, 1)), *SPECS[1:]], "TENSOR_MISMATCH"),
        ([ParameterSpec("flag", "U8", (3,)), *SPECS[1:]], "TENSOR_MISMATCH"),
    ],
)
def test_weights_of_another_network_are_refused(buffers, specs, reason):
    buffer = buffers.acquire(1)
    buffer.copy(arrays(1).items())
    with pytest.raises(MindEvalError) as caught:
        read_snapshot(buffer.path, specs)
    assert caught.value.reason == reason


def test_a_cut_file_is_refused(buffers, tmp_path):
    buffer = buffers.acquire(1)
    cut = tmp_path / "cut.safetensors"
    cut.write_bytes(buffer.path.read_bytes()[:-10])
    with pytest.raises(MindEvalError, match="the file ends"):
        read_snapshot(cut, SPECS)


def test_a_dtype_without_a_place_in_the_format_is_named():
    assert safetensors_dtype("w", "BFloat16") == "BF16"
    with pytest.raises(MindEvalError, match="Complex64") as caught:
        safetensors_dtype("w", "Complex64")
    assert caught.value.metadata == {"tensor": "w"}


def test_memory_is_preferred_while_it_has_room(tmp_path, monkeypatch):
    monkeypatch.setattr(staging, "SHARED_MEMORY", tmp_path)
    assert next(iter(snapshot_parents(1000, None))) == tmp_path
    chosen = tmp_path / "mine"
    assert tmp_path not in list(snapshot_parents(1 << 60, chosen))[:1]
    assert next(iter(snapshot_parents(1 << 60, chosen))) == chosen
    monkeypatch.setattr(staging, "SHARED_MEMORY", tmp_path / "absent")
    assert next(iter(snapshot_parents(1000, chosen))) == chosen


def test_a_staging_folder_lives_as_long_as_its_owner(tmp_path):
    folder = StagingFolder(tmp_path)
    other = StagingFolder(tmp_path)
    assert folder.path.is_dir()
    assert other.path.is_dir()
    folder.close()
    assert not folder.path.exists()
    other.close()
    assert list(tmp_path.iterdir()) == []


def test_the_folder_of_a_killed_job_is_removed_by_the_next(tmp_path):
    code = (
        "import os, sys, pathlib\nfrom mindeval.hooks.staging import StagingFolder\n"
        "StagingFolder(pathlib.Path(sys.argv[1]))\nfolder = StagingFolder(pathlib.Path(sys.argv[1]))\n"
        "(folder.path / 'snapshot').write_text('x')\nos.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False, timeout=20)
    (left,) = tmp_path.iterdir()
    assert (left / "snapshot").exists()
    folder = StagingFolder(tmp_path)
    assert list(tmp_path.iterdir()) == [folder.path]
    folder.close()


def test_sizes():
    assert snapshot_size_bytes(SPECS) == 3 + 4 + 10 + 84 + 0 + 8
