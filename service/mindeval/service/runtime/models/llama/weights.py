"""From a checkpoint's tensors to the inputs of the compiled graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import mindspore as ms
import numpy as np
import numpy.typing as npt

from mindeval.formats.model import CONFIG_FILE
from mindeval.service.runtime.checkpoints.checkpoint import Checkpoint
from mindeval.service.runtime.checkpoints.matching import check_tensors
from mindeval.service.runtime.errors import RunnerError
from mindeval.service.runtime.models.llama.config import LlamaConfig

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"

_PROJECTIONS = (
    "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
    "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj",
)  # fmt: skip
# The norm whose output each projection reads; its weight is folded into the projection's columns.
_NORM_BEFORE = {
    "self_attn.q_proj": "input_layernorm", "self_attn.k_proj": "input_layernorm",
    "self_attn.v_proj": "input_layernorm", "mlp.gate_proj": "post_attention_layernorm",
    "mlp.up_proj": "post_attention_layernorm",
}  # fmt: skip


@dataclass(frozen=True)
class LlamaWeights:
    """Weights on the device.

    Attributes:
        embedding: [V, H].
        layers: For each layer the seven projections [out, in], then their seven biases (a single zero where none).
        norm: The final norm's weight, [1, H].
        head: [V, H]; the embedding itself when tied.
    """

    embedding: ms.Tensor
    layers: Sequence[tuple[ms.Tensor, ...]]
    norm: ms.Tensor
    head: ms.Tensor


def check_checkpoint(config: LlamaConfig, checkpoint: Checkpoint) -> None:
    """Checks names, shapes and dtypes before a byte of a tensor is read.

    Ignored beside optimizer state: the rotary buffers that old Hugging Face files carry, and a head that repeats the
    embedding when the two are tied.

    Raises:
        RunnerError: TENSOR_MISSING, TENSOR_UNEXPECTED, TENSOR_MISMATCH; MODEL_INVALID when the description says that
            head and embedding are tied and the tensors say otherwise.
    """
    tensors = checkpoint.tensors
    ignored = [f"model.layers.{layer}.self_attn.rotary_emb.inv_freq" for layer in range(config.layers)]
    if config.tied:
        ignored.append(HEAD)
    check_tensors(config.tensor_shapes(), tensors, ignored=ignored)
    if config.tied and HEAD in tensors and tensors[HEAD].digest != tensors[EMBEDDING].digest:
        raise RunnerError(
            "MODEL_INVALID",
            f"{CONFIG_FILE}: tie_word_embeddings is true, but {HEAD} differs from {EMBEDDING}; correct the one or the "
            "other",
            {"file": CONFIG_FILE, "field": "tie_word_embeddings", "tensor": HEAD},
        )


def read_weights(
    config: LlamaConfig,
    checkpoint: Checkpoint,
    dtype: ms.Type,
    on_progress: Callable[[int, int], None],
    check: Callable[[], None],
) -> LlamaWeights:
    """Reads, verifies, folds and places all weights.

    The RMSNorm weights are folded into the columns of the projections after them, and 1/sqrt(head_dim) into q.

    Raises:
        RunnerError: As `Checkpoint.read`.
    """
    names = config.tensor_shapes()
    total = sum(checkpoint.tensors[name].size_bytes for name in names)
    done = 0

    def read(name: str) -> npt.NDArray[np.float32]:
        nonlocal done
        check()
        array = checkpoint.read(name)
        done += checkpoint.tensors[name].size_bytes
        on_progress(done, total)
        return array

    def place(array: npt.NDArray[np.float32]) -> ms.Tensor:
        # from_numpy shares the memory, which nobody else holds, and keeps it alive.
        tensor = ms.Tensor.from_numpy(np.ascontiguousarray(array))
        return tensor if dtype == ms.float32 else tensor.astype(dtype)

    embedding = place(read(EMBEDDING))
    layers = []
    nothing = place(np.zeros(1, dtype=np.float32))
    query_scale = np.float32(config.head_dim**-0.5)
    for layer in range(config.layers):
        start = f"model.layers.{layer}."
        norms = {name: read(f"{start}{name}.weight") for name in ("input_layernorm", "post_attention_layernorm")}
        matrices, biases = [], []
        for name in _PROJECTIONS:
            weight = read(f"{start}{name}.weight")
            bias = read(f"{start}{name}.bias") if f"{start}{name}.bias" in names else None
            if name in _NORM_BEFORE:
                weight *= norms[_NORM_BEFORE[name]]
            if name == "self_attn.q_proj":
                weight *= query_scale
                if bias is not None:
                    bias *= query_scale
            matrices.append(place(weight))
            biases.append(nothing if bias is None else place(bias))
        layers.append((*matrices, *biases))
    norm = place(read("model.norm.weight").reshape(1, -1))
    head = embedding if config.tied else place(read(HEAD))
    return LlamaWeights(embedding, layers, norm, head)
