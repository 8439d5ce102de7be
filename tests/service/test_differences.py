"""Differences of tensors, below the service."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.service.disk import Disk

from mindeval.formats.digest import digest_bytes
from mindeval.formats.manifest import Manifest, TensorEntry
from mindeval.service.api import differences
from mindeval.service.api.differences import Difference, ValueComparison, compare
from mindeval.service.errors import BlobsMissingError
from mindeval.service.tensor_differences import DifferenceSums, ValueDifference, as_float64, difference_of
from mindeval.v1 import checkpoint_pb2 as pb


def tensor(name: str, data: bytes, dtype: str = "F32", shape: tuple[int, ...] | None = None) -> TensorEntry:
    return TensorEntry(name, dtype, shape or (len(data) // 4,), len(data), digest_bytes(data))


@pytest.mark.parametrize("dtype", ["<f2", "<f4", "<f8"])
def test_numpys_own_dtypes(dtype: str) -> None:
    values = np.array([0.0, -0.0, 1.5, -2.0, np.inf, 2.0**-14, 65504.0], dtype)
    found = as_float64(values.tobytes(), {"<f2": "F16", "<f4": "F32", "<f8": "F64"}[dtype])
    np.testing.assert_array_equal(found, values.astype(np.float64))


def test_bfloat16_is_the_upper_half_of_float32() -> None:
    values = np.array([1.0, -2.5, 0.0, np.inf, 2.0**-130, 3.0e38], "<f4")
    codes = (values.view("<u4") >> 16).astype("<u2")
    expected = (codes.astype("<u4") << 16).view("<f4").astype(np.float64)
    np.testing.assert_array_equal(as_float64(codes.tobytes(), "BF16"), expected)
    assert expected[:4].tolist() == [1.0, -2.5, 0.0, np.inf]


@pytest.mark.parametrize(
    ("dtype", "codes", "expected"),
    [
        # The corner values of the OCP 8-bit floating point specification.
        ("F8_E4M3", [0x00, 0x01, 0x07, 0x08, 0x38, 0x7E, 0xB8], [0, 2**-9, 7 * 2**-9, 2**-6, 1, 448, -1]),
        ("F8_E5M2", [0x00, 0x01, 0x04, 0x3C, 0x7B, 0x7C, 0xBC], [0, 2**-16, 2**-14, 1, 57344, np.inf, -1]),
    ],
)
def test_eight_bit_floats(dtype: str, codes: list[int], expected: list[float]) -> None:
    assert as_float64(bytes(codes), dtype).tolist() == expected
    assert np.isnan(as_float64(b"\x7f\xff", dtype)).all()


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 40), st.integers(1, 10))
def test_chunks_do_not_matter(seed: int, count: int, chunk: int) -> None:
    random = np.random.default_rng(seed)
    before, after = random.normal(size=(2, count)).astype("<f4")
    sums = DifferenceSums("F32")
    for begin in range(0, count, chunk):
        sums.add(before[begin : begin + chunk].tobytes(), after[begin : begin + chunk].tobytes())
    change = after.astype(np.float64) - before
    found = sums.result()
    assert found.largest_difference == np.abs(change).max()
    assert found.relative_change == pytest.approx(
        np.linalg.norm(change) / np.linalg.norm(before.astype(np.float64)), rel=1e-12
    )


def test_values_that_are_not_finite() -> None:
    def of(before: list[float], after: list[float]) -> ValueDifference:
        return difference_of("F64", [(np.array(before).tobytes(), np.array(after).tobytes())])

    assert of([np.inf, 1.0], [np.inf, 1.0]) == ValueDifference(0.0, 0.0)
    assert of([0.0], [-0.0]) == ValueDifference(0.0, 0.0)
    assert of([0.0], [3.0]) == ValueDifference(np.inf, 3.0)
    assert of([1.0], [np.inf]) == ValueDifference(np.inf, np.inf)
    lost = of([1.0, 2.0], [np.nan, 2.0])
    assert np.isnan(lost.relative_change)
    assert np.isnan(lost.largest_difference)


def test_manifests_are_compared_by_name() -> None:
    one, two = b"\0" * 8, b"\1" * 8
    base = Manifest.of([tensor("a", one), tensor("b", one), tensor("c", one), tensor("gone", one)])
    other = Manifest.of([tensor("a", one), tensor("b", two), tensor("c", one, shape=(1, 2)), tensor("new", one)])
    found, equal_count = compare(base, other)
    assert equal_count == 1
    assert [(d.name, d.change, d.has_values) for d in found] == [
        ("b", pb.TENSOR_CHANGE_VALUES, True),
        ("c", pb.TENSOR_CHANGE_SHAPE, False),
        ("gone", pb.TENSOR_CHANGE_REMOVED, False),
        ("new", pb.TENSOR_CHANGE_ADDED, False),
    ]


@pytest.fixture
def pair() -> tuple[bytes, bytes, list[Difference]]:
    before, after = np.ones(1 << 19, "<f4").tobytes(), np.zeros(1 << 19, "<f4").tobytes()
    return before, after, [Difference("w", tensor("w", before), tensor("w", after))]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    made = Disk(tmp_path)
    yield made
    made.close()


async def test_values_are_left_out_when_the_time_is_over(
    disk: Disk, pair: tuple[bytes, bytes, list[Difference]], monkeypatch: pytest.MonkeyPatch
) -> None:
    before, after, found = pair
    await disk.put(before)
    await disk.put(after)
    comparison = ValueComparison(disk.library)

    assert await comparison.measure("p", found, -1.0) == found
    (measured,) = await comparison.measure("p", found, 60.0)
    assert measured.values == ValueDifference(1.0, 1.0)
    # In the middle of a tensor.
    add = differences._add
    monkeypatch.setattr(differences, "_add", lambda sums, one, other, end, stop: add(sums, one, other, 0.0, stop))
    assert await comparison.measure("p", found, 60.0) == found


async def test_a_call_that_is_cancelled_stops_its_thread(
    disk: Disk, pair: tuple[bytes, bytes, list[Difference]], monkeypatch: pytest.MonkeyPatch
) -> None:
    before, after, found = pair
    await disk.put(before)
    await disk.put(after)
    inside, stopped = asyncio.Event(), []
    loop = asyncio.get_running_loop()

    def wait_for_stop(sums: object, one: object, other: object, end: float, stop: threading.Event) -> bool:
        loop.call_soon_threadsafe(inside.set)
        stopped.append(stop.wait(20.0))
        return False

    monkeypatch.setattr(differences, "_add", wait_for_stop)
    call = asyncio.ensure_future(ValueComparison(disk.library).measure("p", found, 60.0))
    await inside.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert stopped == [True]


async def test_lost_blobs_are_missing(disk: Disk, pair: tuple[bytes, bytes, list[Difference]]) -> None:
    before, _, found = pair
    await disk.put(before)
    with pytest.raises(BlobsMissingError):
        await ValueComparison(disk.library).measure("p", found, 60.0)
