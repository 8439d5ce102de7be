"""Rows of per-sample statistics, keyed by sample id: the storage of states that are exact over samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mindeval.service.metrics.errors import MetricInputError, MetricStateError
from mindeval.service.metrics.exact import IntArray
from mindeval.service.metrics.serial import Payload

AnyArray = npt.NDArray[Any]


@dataclass(frozen=True)
class Column:
    """One column of a table.

    Attributes:
        name: Its name.
        dtype: A numpy dtype name, such as `int64`.
        width: None for one value a row, else the fixed number of values in each row.
    """

    name: str
    dtype: str
    width: int | None = None


@dataclass(frozen=True)
class Rows:
    """A table in canonical order: sorted by sample id, so equal sets of samples give equal arrays.

    Attributes:
        ids: n sample ids, ascending.
        groups: n group names; empty where a sample has no group.
        arrays: Columns by name, each of shape (n,) or (n, width).
    """

    ids: list[str]
    groups: list[str]
    arrays: dict[str, AnyArray]

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, name: str) -> AnyArray:
        return self.arrays[name]

    def take(self, indices: IntArray) -> Rows:
        """The rows at `indices`, in that order."""
        positions = indices.tolist()
        return Rows(
            [self.ids[k] for k in positions],
            [self.groups[k] for k in positions],
            {name: array[indices] for name, array in self.arrays.items()},
        )

    def clusters(self) -> IntArray | None:
        """Cluster numbers 0..k-1 of shape (n,), or None when no sample has a group.

        A sample without a group among others that have one is a cluster by itself.
        """
        if not any(self.groups):
            return None
        codes: dict[tuple[bool, str], int] = {}
        keys = [(True, group) if group else (False, own) for group, own in zip(self.groups, self.ids)]
        return np.array([codes.setdefault(key, len(codes)) for key in keys], dtype=np.int64)


class SampleTable:
    """A set of rows in which each sample id occurs once.

    A repeated id with the same row is ignored: samplers pad by repeating, and retries repeat. A repeated id with
    another row is an error, because keeping either would be a silent choice.
    """

    def __init__(self, columns: Sequence[Column]) -> None:
        self.columns = tuple(columns)
        self._index: dict[str, int] = {}
        self._groups: list[str] = []
        self._chunks: dict[str, list[AnyArray]] = {column.name: [] for column in self.columns}
        self._rows: Rows | None = None

    def __len__(self) -> int:
        return len(self._index)

    def add(self, ids: Sequence[str], arrays: Mapping[str, AnyArray], groups: Sequence[str] | None = None) -> None:
        """Add rows; on an error nothing is added.

        Args:
            ids: n sample ids.
            arrays: One array for each column, shape (n,) or (n, width), of the column's dtype.
            groups: n group names, or None when the samples have none.

        Raises:
            MetricInputError: An id is not a non-empty text (`invalid_sample_id`), or a sample is already present with
                another row (`conflicting_repeat`).
        """
        check_ids(ids)
        own_groups = [""] * len(ids) if groups is None else list(groups)
        if len(set(ids)) == len(ids) and self._index.keys().isdisjoint(ids):
            kept = None
        else:
            kept = self._new_rows(ids, arrays, own_groups)
        start = len(self._index)
        for column in self.columns:
            array = np.asarray(arrays[column.name], dtype=column.dtype)
            # Always a copy: the caller may reuse its buffers.
            self._chunks[column.name].append(array.copy() if kept is None else array[kept])
        new_ids = ids if kept is None else [ids[k] for k in kept]
        self._index.update(zip(new_ids, range(start, start + len(new_ids))))
        self._groups.extend(own_groups if kept is None else [own_groups[k] for k in kept])
        self._rows = None

    def merge(self, other: SampleTable) -> None:
        """Add all rows of another table with the same columns.

        Raises:
            MetricStateError: A sample is present in both with different rows (`conflicting_repeat`).
        """
        try:
            self.add(list(other._index), {c.name: other._column(c) for c in other.columns}, other._groups)
        except MetricInputError as error:
            raise MetricStateError(
                "the two states disagree about it", reason=error.reason, sample_id=error.sample_id
            ) from error

    def rows(self) -> Rows:
        """The rows sorted by id. The arrays belong to the table: do not write to them."""
        if self._rows is None:
            ids = list(self._index)
            order = sorted(range(len(ids)), key=ids.__getitem__)
            unsorted = Rows(ids, self._groups, {c.name: self._column(c) for c in self.columns})
            self._rows = unsorted.take(np.array(order, dtype=np.int64))
        return self._rows

    def fill_payload(self, payload: Payload) -> None:
        """Write the rows, in canonical order, into a payload."""
        rows = self.rows()
        payload.strings["ids"] = rows.ids
        if any(rows.groups):
            payload.strings["groups"] = rows.groups
        payload.arrays.update(rows.arrays)

    def restore(self, payload: Payload) -> None:
        """Fill an empty table from a payload.

        Raises:
            MetricStateError: Columns are missing or have another dtype or shape, or ids repeat (`damaged_state`).
        """
        ids = payload.strings.get("ids")
        if ids is None or len(set(ids)) != len(ids):
            raise MetricStateError("damaged state: sample ids are missing or repeat", reason="damaged_state")
        groups = payload.strings.get("groups")
        if groups is not None and len(groups) != len(ids):
            raise MetricStateError("damaged state: not one group for each sample", reason="damaged_state")
        for column in self.columns:
            array = payload.arrays.get(column.name)
            shape = (len(ids),) if column.width is None else (len(ids), column.width)
            if array is None or array.dtype != np.dtype(column.dtype) or array.shape != shape:
                raise MetricStateError(f"damaged state: column {column.name!r}", reason="damaged_state")
        self.add(ids, payload.arrays, groups)

    def _column(self, column: Column) -> AnyArray:
        chunks = self._chunks[column.name]
        if len(chunks) != 1:
            shape = (0,) if column.width is None else (0, column.width)
            chunks[:] = [np.concatenate(chunks) if chunks else np.empty(shape, dtype=column.dtype)]
        return chunks[0]

    def _new_rows(self, ids: Sequence[str], arrays: Mapping[str, AnyArray], groups: Sequence[str]) -> list[int]:
        """Positions of rows to add; raises when a repeat differs from the row it repeats."""
        first: dict[str, int] = {}
        stored = {column.name: self._column(column) for column in self.columns}
        given = {column.name: np.asarray(arrays[column.name], dtype=column.dtype) for column in self.columns}
        for k, sample_id in enumerate(ids):
            present = self._index.get(sample_id)
            if present is None and sample_id not in first:
                first[sample_id] = k
                continue
            old, row, group = (
                (given, first[sample_id], groups[first[sample_id]])
                if present is None
                else (stored, present, self._groups[present])
            )
            # Bytes, not values: a repeated nan is the same content, and 0.0 is not -0.0.
            if group != groups[k] or any(old[n][row].tobytes() != given[n][k].tobytes() for n in given):
                raise MetricInputError(
                    "it was already counted with other content", reason="conflicting_repeat", sample_id=sample_id
                )
        return list(first.values())


def check_ids(ids: Sequence[str]) -> None:
    """Raise MetricInputError unless every id is a non-empty text that UTF-8 can hold."""
    for sample_id in ids:
        if not isinstance(sample_id, str) or not sample_id:
            raise MetricInputError(f"sample id {sample_id!r} is not a non-empty text", reason="invalid_sample_id")
    try:
        "".join(ids).encode("utf-8")
    except UnicodeEncodeError:
        bad = next(i for i in ids if any("\ud800" <= c <= "\udfff" for c in i))
        raise MetricInputError(
            f"sample id {bad!r} holds a lone surrogate", reason="invalid_sample_id", sample_id=bad
        ) from None
