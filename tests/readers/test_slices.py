"""Slices of distributed training against MindSpore's own cutting and merging."""

from __future__ import annotations

import os
import shutil
import tracemalloc
from math import prod

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mindeval.formats.errors import FormatError
from mindeval.formats.readers import (
    AssembledTensor,
    ByteSpan,
    SlicePart,
    TensorRecord,
    assemble,
    assemble_replicated,
    iter_bytes,
    read_strategy,
    verify_replicas,
)

RANKS = range(8)


def rank_files(made, folder="ranks", name="net.safetensors"):
    return {rank: made / folder / f"rank_{rank}" / name for rank in RANKS}


@pytest.fixture(scope="module")
def strategy(made):
    return read_strategy([made / "strategy.ckpt"])


@pytest.fixture
def copied(made, tmp_path):
    shutil.copytree(made / "ranks_ckpt", tmp_path / "ranks_ckpt")
    files = rank_files(tmp_path, "ranks_ckpt", "net.ckpt")
    for file in files.values():
        file.chmod(0o600)
    return files


def whole(tensors, chunk_bytes=1 << 20):
    return {t.name: (t.dtype, t.shape, b"".join(iter_bytes(t, chunk_bytes))) for t in tensors}


def test_layouts_are_read(strategy):
    assert (strategy.stages, strategy.stage_devices, len(strategy.layouts)) == (1, 8, 23)
    both = strategy.layouts["both"][0]
    assert (both.device_matrix, both.tensor_map) == ((2, 4), ((1,), (0,)))
    assert strategy.layouts["nested"][0].tensor_map == ((2, 0), ())
    assert strategy.layouts["optimizer.rows"][0].optimizer_shard_size == 4


@pytest.mark.parametrize(("folder", "name"), [("ranks", "net.safetensors"), ("ranks_ckpt", "net.ckpt")])
def test_assembled_equals_mindspores_merge(made, raw, strategy, folder, name):
    tensors = assemble(rank_files(made, folder, name), strategy)
    verify_replicas(tensors)
    found = whole(tensors)
    table = found.pop("table")  # in no strategy: whole on every rank
    assert table[2] == np.arange(4, dtype=np.float32).tobytes()
    merged = raw(made / "merged" / "part0.safetensors")
    assert found == merged
    assert found == raw(made / "full" / "full.safetensors")
    assert len(merged) == 23


def test_merge_sliced_parameter_agrees(made, raw, strategy):
    found = whole(assemble(rank_files(made), strategy))
    merged = raw(made / "merged_sliced.safetensors")
    assert len(merged) > 5
    assert {name: found[name] for name in merged} == merged


@pytest.mark.parametrize("chunk_bytes", [1, 5, 32, 1000])
def test_pieces_are_bounded_and_in_order(made, strategy, chunk_bytes):
    for tensor in assemble(rank_files(made), strategy):
        pieces = list(iter_bytes(tensor, chunk_bytes))
        assert max(map(len, pieces)) <= chunk_bytes
        assert b"".join(pieces) == b"".join(iter_bytes(tensor))


def test_one_copy_of_each_slice_is_enough(made, raw):
    """remove_redundancy: each slice is in the file of one rank."""
    tensors = assemble(rank_files(made, "single"), read_strategy([made / "strategy_plain.ckpt"]), names=None)
    full = raw(made / "full" / "full.safetensors")
    found = {name: value for name, value in whole(tensors).items() if name != "none"}
    assert found == {name: value for name, value in full.items() if not name.startswith("nested")}


def test_missing_replicas_are_no_loss(made, raw, strategy):
    files = {rank: path for rank, path in rank_files(made).items() if rank < 2}  # a replica of each slice
    (tensor,) = assemble(files, strategy, names=["rows.of2"])
    assert whole([tensor])["rows.of2"] == raw(made / "full" / "full.safetensors")["rows.of2"]


def test_pipeline_stages(made, raw):
    merged = read_strategy([made / "stages_merged.ckpt"])
    apart = read_strategy(sorted((made / "stages").iterdir()))
    assert merged.layouts == apart.layouts
    assert (merged.stages, merged.stage_devices) == (2, 4)
    tensors = assemble(rank_files(made, "stages_ranks"), merged)
    assert whole(tensors) == raw(made / "stages_full" / "full.safetensors")
    embedding = next(tensor for tensor in tensors if tensor.name == "embedding")
    assert [part.rank for part in embedding.replicas] == [4, 5, 6, 7]
    verify_replicas(tensors)


def test_the_files_of_a_whole_stage_are_missing(made):
    files = {rank: path for rank, path in rank_files(made, "stages_ranks").items() if rank < 4}
    with pytest.raises(FormatError, match=r"the file of rank 4 .* is not there") as caught:
        assemble(files, read_strategy([made / "stages_merged.ckpt"]))
    assert caught.value.metadata["tensor"] == "layer1"


def test_what_no_rank_saves_is_left_out(made, encode, tmp_path):
    """A buffer that the strategy names and the callback filters out."""
    (tmp_path / "w.ckpt").write_bytes(encode("table"))
    files = dict.fromkeys(RANKS, tmp_path / "w.ckpt")
    assert [tensor.name for tensor in assemble(files, read_strategy([made / "strategy.ckpt"]))] == ["table"]


def test_a_missing_stage_is_said(made):
    with pytest.raises(FormatError, match="no strategy of pipeline stage 0"):
        read_strategy([made / "stages" / "strategy1.ckpt"])


def test_a_missing_rank_is_said(made, strategy):
    files = rank_files(made)
    del files[3]
    with pytest.raises(FormatError, match="the file of rank 3 is not there") as caught:
        assemble(files, strategy, names=["optimizer.all"])
    assert caught.value.metadata["rank"] == "3"
    assert caught.value.metadata["tensor"] == "optimizer.all"


def test_a_tensor_that_one_rank_lacks_is_said(copied, strategy, encode):
    copied[5].write_bytes(encode("other"))
    with pytest.raises(FormatError, match="the file lacks it") as caught:
        assemble(copied, strategy, names=["all.axes"])
    assert caught.value.metadata == {"file": str(copied[5]), "tensor": "all.axes", "rank": "5"}


def test_a_rank_too_many_is_said(made, strategy):
    with pytest.raises(FormatError, match="is of 8 ranks") as caught:
        assemble({**rank_files(made), 8: made / "plain.ckpt"}, strategy)
    assert caught.value.metadata["rank"] == "8"


def test_replicas_that_disagree_are_found(copied, strategy):
    tensors = assemble(copied, strategy, names=["whole", "rows.of2"])
    verify_replicas(tensors)
    copy = next(part for part in tensors[1].replicas if part.rank == 6)
    data = bytearray(copied[6].read_bytes())
    data[copy.record.spans[0].begin] ^= 1
    copied[6].write_bytes(data)
    with pytest.raises(FormatError, match="differ from those of rank 0") as caught:
        verify_replicas(tensors)
    assert caught.value.reason == "CHECKPOINT_UNREADABLE"
    assert caught.value.metadata == {"file": str(copied[6]), "tensor": "rows.of2", "rank": "6"}


def test_a_slice_of_another_shape_is_said(copied, strategy, encode):
    copied[2].write_bytes(encode("whole", dims=(2, 2), content=b"\0" * 16))
    with pytest.raises(FormatError, match=r"it is F32 \[2, 2\], but F32 \[6, 5\] on rank 0") as caught:
        assemble(copied, strategy, names=["whole"])
    assert caught.value.metadata["rank"] == "2"


def test_a_file_cut_after_assembly_is_truncated(copied, strategy):
    (tensor,) = assemble(copied, strategy, names=["columns"])
    copied[1].write_bytes(copied[1].read_bytes()[:100])
    with pytest.raises(FormatError) as caught:
        list(iter_bytes(tensor))
    assert caught.value.reason == "CHECKPOINT_TRUNCATED"
    assert caught.value.metadata == {"file": str(copied[1]), "tensor": "columns"}


def test_data_parallel_needs_no_strategy(copied, encode):
    for rank in (0, 1):
        copied[rank].write_bytes(encode("w", dims=(2,), content=bytes(8)))
    tensors = assemble_replicated({0: copied[0], 1: copied[1]})
    verify_replicas(tensors)
    copied[1].write_bytes(encode("w", dims=(2,), content=bytes(7) + b"\1"))
    with pytest.raises(FormatError, match="differ"):
        verify_replicas(tensors)


def test_memory_is_bounded_by_the_piece(tmp_path):
    """128 MiB split along the last axis over eight files: rows of eight cells."""
    parts = []
    for rank in range(8):
        path = tmp_path / f"rank_{rank}"
        path.touch()
        os.truncate(path, 16 << 20)
        record = TensorRecord("t", "BF16", (8192, 1024), (ByteSpan(str(path), 0, 16 << 20),))
        parts.append(SlicePart(rank, record, (0, rank * 1024), (8192, 1024)))
    tensor = AssembledTensor("t", "BF16", (8192, 8192), tuple(parts))
    tracemalloc.start()
    assert sum(map(len, iter_bytes(tensor, 1 << 20))) == 128 << 20
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 << 20


@st.composite
def grids(draw):
    counts = draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
    sizes = draw(st.lists(st.integers(1, 4), min_size=len(counts), max_size=len(counts)))
    return tuple(counts), tuple(sizes), draw(st.sampled_from(["U8", "F16", "F64"])), draw(st.integers(1, 300))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(grid=grids(), seed=st.integers(0, 1000))
def test_any_grid_of_slices_is_put_together(tmp_path, grid, seed):
    counts, sizes, dtype, chunk_bytes = grid
    shape = tuple(count * size for count, size in zip(counts, sizes))
    kind = {"U8": np.uint8, "F16": np.uint16, "F64": np.uint64}[dtype]
    full = np.random.default_rng(seed).integers(0, 256, shape).astype(kind)
    path = tmp_path / "parts"
    parts, begin = [], 0
    with open(path, "wb") as file:
        for index in np.random.default_rng(seed).permutation(prod(counts)):
            place = np.unravel_index(index, counts)
            offsets = tuple(int(p) * size for p, size in zip(place, sizes))
            data = full[tuple(slice(o, o + s) for o, s in zip(offsets, sizes))].tobytes()
            file.write(data)
            middle = begin + len(data) // 2
            spans = (ByteSpan(str(path), begin, middle), ByteSpan(str(path), middle, begin + len(data)))
            parts.append(SlicePart(0, TensorRecord("t", dtype, sizes, spans), offsets, sizes))
            begin += len(data)
    tensor = AssembledTensor("t", dtype, shape, tuple(parts))
    pieces = list(iter_bytes(tensor, chunk_bytes))
    assert b"".join(pieces) == full.tobytes()
    assert max(map(len, pieces)) <= chunk_bytes
