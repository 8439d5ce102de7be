"""Tensors from a blob's bytes: decoding, widening to float32, and the check that every weight is finite."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mindeval.formats.manifest import TensorEntry
from mindeval.service.runtime.errors import RunnerError

FLOAT_DTYPES = ("F16", "BF16", "F32", "F64")
_NUMPY = {
    "BOOL": np.bool_, "U8": np.uint8, "I8": np.int8, "U16": np.uint16, "I16": np.int16, "U32": np.uint32,
    "I32": np.int32, "U64": np.uint64, "I64": np.int64, "F16": np.float16, "F32": np.float32, "F64": np.float64,
}  # fmt: skip


def decode(entry: TensorEntry, data: npt.NDArray[np.uint8]) -> npt.NDArray[np.generic]:
    """The tensor in a blob's bytes.

    Args:
        entry: Name, dtype and shape.
        data: uint8 [entry.size_bytes]; the result may share its memory.

    Returns:
        float32 of the entry's shape for F16, BF16, F32 and F64, else the entry's own dtype.

    Raises:
        RunnerError: TENSOR_MISMATCH for a dtype that weights cannot have (8-bit floats), NON_FINITE_WEIGHT when a
            value is NaN or infinite, also when it only becomes so in float32.
    """
    if entry.dtype == "BF16":
        # A bfloat16 is the upper half of a float32; shifting is ten times as fast as a cast through ml_dtypes.
        wide = data.view("<u2").astype(np.uint32)
        wide <<= 16
        array: npt.NDArray[np.generic] = wide.view(np.float32)
    elif entry.dtype in _NUMPY:
        array = data.view(np.dtype(_NUMPY[entry.dtype]).newbyteorder("<"))
        if entry.dtype in FLOAT_DTYPES:
            with np.errstate(over="ignore"):
                array = array.astype(np.float32, copy=False)
    else:
        raise RunnerError(
            "TENSOR_MISMATCH",
            f"tensor {entry.name!r} has dtype {entry.dtype}, which no model here takes; save it as F32, BF16 or F16",
            {"tensor": entry.name, "dtype": entry.dtype},
        )
    if entry.dtype in FLOAT_DTYPES:
        _check_finite(entry.name, array)
    return array.reshape(entry.shape)


def _check_finite(name: str, array: npt.NDArray[np.generic]) -> None:
    if array.size == 0:
        return
    # A sum is finite only when every term is; it is four times as fast as isfinite and needs no second array. It may
    # overflow without any term being at fault, so a bad sum is looked at closely.
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(np.sum(array, dtype=np.float32)):
            return
        bad = int(array.size - np.count_nonzero(np.isfinite(array)))
    if bad:
        raise RunnerError(
            "NON_FINITE_WEIGHT",
            f"tensor {name!r} has {bad} values that are NaN or infinite; the training has diverged, or the file was "
            "damaged before its digest was taken",
            {"tensor": name, "count": str(bad)},
        )
