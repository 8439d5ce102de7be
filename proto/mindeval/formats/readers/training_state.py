"""What in a checkpoint belongs to the training and not to the model, by name.

MindSpore saves the training network: weights, and beside them what the optimizer, the loss scale and the callback keep.
Nothing in the file tells them apart but the names, so this is the rule:

1. Numbers of the trainer (`global_step`, `learning_rate`, `loss_scale`, `epoch_num`, ...): exact names. A model's own
   parameters stand inside cells and have a dot in their name, or are not called so.
2. Copies of a weight under a prefix that no cell has (`adam_m.`, `moment1.`, `accu_grads.`, `exp_avg_sq_row_`, ...):
   whatever follows.
3. Copies of a weight under a prefix that a cell may have (`accum.`, `linear.`, `prev.`, ...): only when the rest is
   itself the name of a tensor, and so is the companion that the same optimizer keeps, if it keeps one.

A weight that is taken for state is missed when the model is built; state that is taken for a weight is unexpected
there. Neither is silent.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from mindeval.formats.readers.files import read_at, truncated
from mindeval.formats.readers.records import Appended, TensorRecord

APPENDED_NAMES = frozenset({"epoch_num", "step_num", "global_step", "loss_scale", "global_batch_size", "batch_num"})
"""Names under which ModelCheckpoint and MindFormers' CheckpointMonitor append numbers."""

_NUMBERS = APPENDED_NAMES | {
    # nn.Optimizer and its subclasses
    "learning_rate", "momentum", "beta1_power", "beta2_power", "afactor_step", "cov_step", "fake_lr", "fake_param",
    "weight_decay", "state_step", "adam_step",
    # loss scaling, overflow detection, graceful exit
    "scale_sense", "scale_value", "current_iterator_step", "last_overflow_iterator_step", "graceful_exit",
    "graceful_init",
    # learning rate schedulers
    "cooldown_counter", "T_0", "T_i", "T_cur",
}  # fmt: skip
_NUMBER_PREFIXES = ("learning_rate_group_", "last_epoch_", "_device_local_norm", "_device_local_loss")

_CERTAIN_PREFIXES = (
    "accu_grads.", "adam_m.", "adam_v.", "lamb_m.", "lamb_v.", "muon_m.", "pma_weight.",
    "moment1.", "moment2.", "moments.", "moments1.", "moments2.", "vhat.",
    "exp_avg.", "exp_avg_sq.", "max_exp_avg_sq.", "exp_inf.", "accum_update.", "mean_grad.", "mean_square.",
    "exp_avg_sq_row_", "exp_avg_sq_col_", "exp_avg_insta_row_", "exp_avg_insta_col_",
)  # fmt: skip

_COMPANIONS: Mapping[str, str] = {
    "accum.": "",  # Adagrad, ProximalAdagrad, SGD, Adadelta
    "stat.": "accum.",  # SGD
    "linear.": "moments.",  # FTRL
    "moment.": "",  # RMSProp
    "prev.": "step_size.",  # Rprop
    "step_size.": "prev.",
    "exp_avg_sq_": "",  # AdaFactor
    "ax_.": "",  # ASGD
    "ax.": "",
    "mu_": "",
    "eta_": "",
}

_SCALAR_FORMATS = {
    "BOOL": "?", "I8": "b", "U8": "B", "I16": "<h", "U16": "<H", "I32": "<i", "U32": "<I", "I64": "<q", "U64": "<Q",
    "F16": "<e", "F32": "<f", "F64": "<d",
}  # fmt: skip


@dataclass(frozen=True)
class Progress:
    """How far the training was when it saved, as it says itself; None where it does not.

    Attributes:
        epoch: `epoch_num`.
        step: `step_num`, counted from the start of the training; else the optimizer's `global_step`.
    """

    epoch: int | None
    step: int | None


def is_training_state(name: str, names: Collection[str]) -> bool:
    """Whether a tensor belongs to the training and not to the model, by the rule above.

    Args:
        name: The tensor.
        names: All tensors of the checkpoint, of all ranks; a set or dict, else each call is slow.
    """
    if name in _NUMBERS or name.startswith(_CERTAIN_PREFIXES) or name.startswith(_NUMBER_PREFIXES):
        return True
    for prefix, companion in _COMPANIONS.items():
        rest = name[len(prefix) :]
        if name.startswith(prefix) and rest in names and (not companion or companion + rest in names):
            return True
    return False


def select_weights(tensors: Iterable[TensorRecord]) -> list[TensorRecord]:
    """The tensors of the model, in order."""
    found = list(tensors)
    names = {tensor.name for tensor in found}
    return [tensor for tensor in found if not is_training_state(tensor.name, names)]


def read_appended(tensors: Iterable[TensorRecord], descriptor: int) -> dict[str, Appended]:
    """The numbers that a trainer appends, by name; reads at most 8 bytes for each.

    Args:
        tensors: The tensors of one file.
        descriptor: The file, open.

    Raises:
        FormatError: CHECKPOINT_UNREADABLE or CHECKPOINT_TRUNCATED.
    """
    values: dict[str, Appended] = {}
    for tensor in tensors:
        if tensor.name in APPENDED_NAMES and len(tensor.spans) == 1 and tensor.size_bytes == tensor.item_size:
            value = _read_number(tensor, descriptor)
            if value is not None:
                values[tensor.name] = value
    return values


def read_progress(extras: Mapping[str, Appended]) -> Progress:
    """The epoch and step in what was appended."""
    step = _count(extras.get("step_num"))
    return Progress(_count(extras.get("epoch_num")), step if step else _count(extras.get("global_step")))


def _count(value: Appended | None) -> int | None:
    is_count = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    return value if is_count and isinstance(value, int) else None


def _read_number(tensor: TensorRecord, descriptor: int) -> int | float | bool | None:
    form = _SCALAR_FORMATS.get(tensor.dtype)
    if form is None:
        return None
    span = tensor.spans[0]
    data = read_at(descriptor, span.begin, span.size_bytes, span.path)
    if len(data) != span.size_bytes:
        raise truncated(span.path, "the file became shorter while it was read", tensor.name)
    value: int | float | bool = struct.unpack(form, data)[0]
    return value
