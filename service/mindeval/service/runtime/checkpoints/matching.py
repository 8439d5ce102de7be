"""Which tensors of a checkpoint belong to the model, and what to say when they do not fit.

A training checkpoint may hold more than the model: optimizer state, by the rule in `formats.readers.training_state`,
and nothing else. Whatever else the model does not know is an error: it usually means that the description is of
another model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from mindeval.formats.manifest import TensorEntry
from mindeval.formats.readers.training_state import is_training_state
from mindeval.service.runtime.checkpoints.tensors import FLOAT_DTYPES
from mindeval.service.runtime.errors import RunnerError, shown


def check_tensors(
    expected: Mapping[str, tuple[int, ...]],
    found: Mapping[str, TensorEntry],
    *,
    ignored: Iterable[str] = (),
    exact_dtypes: Mapping[str, str] | None = None,
) -> None:
    """Checks that a checkpoint holds just the model's tensors.

    Args:
        expected: Shape of each tensor of the model.
        found: The checkpoint's tensors.
        ignored: Further names that may be there and are not used, such as buffers that the model computes itself.
        exact_dtypes: safetensors dtype that a tensor must have; any float dtype fits the others.

    Raises:
        RunnerError: TENSOR_MISSING, TENSOR_UNEXPECTED or TENSOR_MISMATCH; metadata name the tensors.
    """
    missing = sorted(expected.keys() - found.keys())
    skip = set(ignored)
    unexpected = sorted(
        name for name in found if name not in expected and name not in skip and not is_training_state(name, found)
    )
    if missing:
        # A renamed tensor is both missing and unknown; naming the two shows the cause.
        unknown = f" (and has {shown(unexpected)}, which the model does not know)" if unexpected else ""
        raise RunnerError(
            "TENSOR_MISSING",
            f"the checkpoint lacks {len(missing)} of the model's {len(expected)} tensors: {shown(missing)}{unknown}; "
            "save the whole model, or push the description that belongs to these tensors",
            {"tensor": missing[0], "tensors": shown(missing), "count": str(len(missing))},
        )
    if unexpected:
        raise RunnerError(
            "TENSOR_UNEXPECTED",
            f"the checkpoint has {len(unexpected)} tensors that the model does not know: {shown(unexpected)}; push the "
            "description that belongs to these tensors",
            {"tensor": unexpected[0], "tensors": shown(unexpected), "count": str(len(unexpected))},
        )
    for name, shape in expected.items():
        _check_one(name, shape, (exact_dtypes or {}).get(name, ""), found[name])


def _check_one(name: str, shape: tuple[int, ...], dtype: str, entry: TensorEntry) -> None:
    if entry.shape != shape:
        raise RunnerError(
            "TENSOR_MISMATCH",
            f"tensor {name!r} has shape {list(entry.shape)}, the model needs {list(shape)}; push the description that "
            "belongs to these tensors",
            {"tensor": name, "expected": str(list(shape)), "found": str(list(entry.shape))},
        )
    fits = entry.dtype == dtype if dtype else entry.dtype in FLOAT_DTYPES
    if not fits:
        needed = dtype or "one of " + ", ".join(FLOAT_DTYPES)
        raise RunnerError(
            "TENSOR_MISMATCH",
            f"tensor {name!r} has dtype {entry.dtype}, the model needs {needed}; save it in that type",
            {"tensor": name, "expected": needed, "found": entry.dtype},
        )
