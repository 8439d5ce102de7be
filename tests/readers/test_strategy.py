"""Strategy files that cannot be right, or that cannot be put together."""

from __future__ import annotations

import pytest

from mindeval.formats.errors import FormatError
from mindeval.formats.readers import ParameterLayout, assemble, read_strategy
from mindeval.formats.readers.grid import SliceGrid


def varint(value):
    value &= (1 << 64) - 1
    data = bytearray()
    while value >= 0x80:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*data, value])


def field(number, data):
    return varint(number << 3 | 2) + varint(len(data)) + data


def number(number, value):
    return varint(number << 3) + varint(value)


def numbers(values):
    return b"".join(number(1, value) for value in values)


def parameter(name, matrix=(2,), tensor_map=(0, -1), step=0, size=0, uneven=(), field_size=0):
    layouts = field(1, numbers(matrix)) + field(2, numbers(tensor_map)) + field(3, numbers(uneven))
    layouts += number(5, field_size) + number(6, step) + number(7, size)
    return field(3, field(1, name.encode()) + field(2, layouts))


def operator(stage=0):
    return field(2, field(1, b"op") + field(2, number(1, stage) + field(2, numbers((2, 1)))))


@pytest.fixture
def strategy(tmp_path):
    def write(*items):
        path = tmp_path / "strategy.ckpt"
        path.write_bytes(number(1, 1) + b"".join(items))
        return read_strategy([path])

    return write


def test_a_plain_one(strategy):
    found = strategy(operator(), parameter("w"), parameter("3-gram.w", (1, 2), (-1,)))
    assert found.layouts == {
        "w": {0: ParameterLayout((2,), ((0,), ()))},
        "3-gram.w": {0: ParameterLayout((1, 2), ((),))},
    }


def test_merged_names_are_those_of_stages(strategy):
    found = strategy(operator(0), operator(1), parameter("0-w"), parameter("1-w"), parameter("1-a-b"))
    assert {name: sorted(stages) for name, stages in found.layouts.items()} == {"w": [0, 1], "a-b": [1]}


@pytest.mark.parametrize(
    ("items", "match"),
    [
        ([parameter("w", ())], "device matrix"),
        ([parameter("w", (0, 2))], "device matrix"),
        ([parameter("w", (2**31, 2**31))], "device matrix"),
        ([parameter("w", (2**63,))], "device matrix"),
        ([parameter("w", (2,), (1,))], "tensor map"),
        ([parameter("w", (2,), (-2,))], "tensor map"),
        ([parameter("w", (2, 2), (0, 0))], "tensor map"),
        ([parameter("w", (1,) * 17)], "more than 16 numbers"),
        ([parameter("w", uneven=(3, 2))], "unevenly"),
        ([parameter("w", field_size=39)], "unevenly"),
        ([parameter("w", step=1, size=-5)], "optimizer shard"),
        ([parameter("w", step=-1, size=2)], "optimizer shard"),
        ([parameter("w"), parameter("w")], "stands twice"),
        ([operator(0), operator(1), parameter("w")], "several pipeline stages"),
        ([operator(5), parameter("w")], "no strategy of pipeline stage 0"),
        ([operator(10**6), parameter("w")], "at most 4096"),
        ([parameter("a", (4,), (-1,)), parameter("b", (3,), (-1,))], "3 ranks where the stage has 4"),
        ([operator()], "no strategy file says"),
        ([field(2, b"")], "no pipeline stage"),
        ([field(3, b"")], "no name or no layout"),
        ([b"\x1b"], "unexpected kind 3"),
        ([field(3, field(1, b"\xff") + field(2, b""))], "not UTF-8"),
    ],
)
def test_what_cannot_be_right(strategy, items, match):
    with pytest.raises(FormatError, match=match) as caught:
        strategy(*items)
    assert caught.value.reason == "CHECKPOINT_UNREADABLE"
    assert caught.value.metadata["file"]


def test_cut_files_are_truncated(made, tmp_path):
    data = (made / "strategy.ckpt").read_bytes()
    path = tmp_path / "cut.ckpt"
    refused = 0
    for cut in range(0, len(data), 7):
        path.write_bytes(data[:cut])
        try:
            read_strategy([path])
        except FormatError as error:
            refused += 1
            assert error.reason == "CHECKPOINT_TRUNCATED" or "no strategy file says" in error.message
    assert refused > len(data) // 7 - 25  # all but the cuts between two parameters


def test_too_many_parts(strategy, monkeypatch):
    monkeypatch.setattr("mindeval.formats.readers.strategy._MAX_MESSAGES", 100)
    with pytest.raises(FormatError, match="more than 100 parts"):
        strategy(*[operator()] * 60, parameter("w"))


def test_files_of_one_stage_must_agree(tmp_path):
    paths = [tmp_path / "a.ckpt", tmp_path / "b.ckpt"]
    paths[0].write_bytes(operator() + parameter("w"))
    paths[1].write_bytes(operator() + parameter("w"))
    assert read_strategy(paths).ranks == 2
    paths[1].write_bytes(operator() + parameter("w", (2,), (-1, 0)))
    with pytest.raises(FormatError, match="another layout") as caught:
        read_strategy(paths)
    assert caught.value.metadata == {"file": str(paths[1]), "tensor": "w"}


@pytest.mark.parametrize(
    ("matrix", "tensor_map", "step", "size"),
    [((4, 2), (0, -1), 1, 4), ((4, 2), (0, -1), 2, 3), ((2,), (0,), 1, 2), ((4,), (), 1, 4)],
)
def test_optimizer_shards_that_do_not_fit(strategy, tmp_path, encode, matrix, tensor_map, step, size):
    found = strategy(parameter("w", matrix, tensor_map, step, size))
    path = tmp_path / "w.ckpt"
    path.write_bytes(encode("w"))
    with pytest.raises(FormatError, match=r"does not fit the device matrix|no tensor map"):
        assemble({0: path}, found)


def test_an_ambiguous_optimizer_shard_is_refused():
    SliceGrid(ParameterLayout((2, 2, 2), ((1,), (0,)), 2, 4))
    with pytest.raises(ValueError, match="do not agree"):
        SliceGrid(ParameterLayout((2, 2, 2), ((0,), (1,)), 2, 4))
    assert SliceGrid(ParameterLayout((2, 2, 2), ((0,), (1,)))).counts == (2, 2)


def test_dimensions_that_do_not_fit(strategy, tmp_path, encode):
    found = strategy(parameter("w", (2,), (0, -1)))
    path = tmp_path / "w.ckpt"
    path.write_bytes(encode("w"))
    with pytest.raises(FormatError, match="has 1 dimensions, its layout") as caught:
        assemble({0: path}, found)
    assert caught.value.metadata == {"file": str(path), "tensor": "w", "rank": "0"}


def test_places_of_a_large_cluster_are_computed_not_listed():
    grid = SliceGrid(ParameterLayout((64, 32, 32), ((1,), (0,)), -1, 1024))
    assert grid.counts == (32 * 64, 32)
    assert grid.place(65535) == (2047, 31)
    assert grid.place(1024) == (1, 0)
