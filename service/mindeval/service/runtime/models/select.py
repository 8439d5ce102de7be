"""Which adapter a checkpoint's description asks for, and the key under which it stays warm."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mindeval.formats.model import CONFIG_FILE, DESCRIPTION_FILE, TOKENIZER_FILE, GraphDescription
from mindeval.service.runtime.checkpoints.checkpoint import Checkpoint
from mindeval.service.runtime.errors import RunnerError
from mindeval.service.runtime.models.adapter import ModelAdapter, ModelSpec

MODEL_TYPES = ("llama",)
ARCHITECTURES = ("LlamaForCausalLM",)


@dataclass(frozen=True)
class Architecture:
    """A network without weights.

    Attributes:
        key: Equal for equal networks: the digests of the files that describe it, and the compute type.
        build: Makes its adapter.
    """

    key: str
    build: Callable[[], ModelAdapter]


def select_architecture(checkpoint: Checkpoint, compute_dtype: str) -> Architecture:
    """Reads the description.

    Args:
        checkpoint: The checkpoint with its files.
        compute_dtype: "float32", "bfloat16" or "float16".

    Raises:
        RunnerError: MODEL_UNSUPPORTED when there is no description or it is of an unknown network; MODEL_INVALID when
            it contradicts itself; BLOB_MISSING, CHECKPOINT_TRUNCATED, CHECKPOINT_CORRUPT for its files.
        FormatError: MODEL_INVALID.
    """
    config = checkpoint.file(CONFIG_FILE)
    description = checkpoint.file(DESCRIPTION_FILE)
    if config is not None and description is not None:
        raise RunnerError(
            "MODEL_INVALID",
            f"the checkpoint has both {CONFIG_FILE} and {DESCRIPTION_FILE}; push exactly one of them",
            {"file": DESCRIPTION_FILE},
        )
    if description is not None:
        return _graph(checkpoint, GraphDescription.from_bytes(description), compute_dtype)
    if config is not None:
        return _llama(checkpoint, config, compute_dtype)
    raise RunnerError(
        "MODEL_UNSUPPORTED",
        f"the checkpoint does not say what network it belongs to; push {CONFIG_FILE} of a {' or '.join(MODEL_TYPES)} "
        f"model, or {DESCRIPTION_FILE} with the network exported as MindIR",
        {"file": CONFIG_FILE},
    )


def _llama(checkpoint: Checkpoint, data: bytes, compute_dtype: str) -> Architecture:
    from mindeval.service.runtime.models.llama.config import LlamaConfig, parse_config

    raw = parse_config(data)
    _check_known(raw)
    config = LlamaConfig.of(raw)
    if config.bos_token_id is not None:
        prefix, prefix_id = "bos", config.bos_token_id
    elif config.eos_token_id is not None:
        prefix, prefix_id = "eos", config.eos_token_id
    else:
        prefix, prefix_id = "none", None
    spec = ModelSpec(config.vocab_size, config.max_length, prefix_id, prefix, TOKENIZER_FILE)

    def build() -> ModelAdapter:
        import mindspore as ms

        from mindeval.service.runtime.models.llama.adapter import LlamaAdapter

        return LlamaAdapter(config, spec, getattr(ms, compute_dtype))

    return Architecture(f"llama|{checkpoint.file_digest(CONFIG_FILE)}|{compute_dtype}", build)


def _graph(checkpoint: Checkpoint, description: GraphDescription, compute_dtype: str) -> Architecture:
    digest = checkpoint.file_digest(description.graph)
    if not digest:
        raise RunnerError(
            "MODEL_INVALID",
            f"{DESCRIPTION_FILE}: graph names {description.graph!r}, and the checkpoint has no such file; push it",
            {"file": description.graph, "field": "graph"},
        )
    prefix_id = description.prefix_token_id
    spec = ModelSpec(
        vocab_size=description.vocab_size,
        max_length=description.max_length,
        prefix_token_id=prefix_id,
        prefix="none" if prefix_id is None else "custom",
        tokenizer=description.tokenizer,
    )

    def build() -> ModelAdapter:
        from mindeval.service.runtime.models.graph import GraphAdapter

        data = checkpoint.file(description.graph)
        assert data is not None
        return GraphAdapter(description, spec, data)

    return Architecture(f"graph|{checkpoint.file_digest(DESCRIPTION_FILE)}|{digest}", build)


def _check_known(raw: dict[str, Any]) -> None:
    model_type = raw.get("model_type")
    architectures = raw.get("architectures") or []
    known = model_type in MODEL_TYPES and isinstance(architectures, list)
    if known and (not architectures or any(name in ARCHITECTURES for name in architectures)):
        return
    raise RunnerError(
        "MODEL_UNSUPPORTED",
        f"{CONFIG_FILE}: model_type {str(model_type)[:40]!r} with architectures {str(architectures)[:80]} is not built "
        f"here; known are model_type {', '.join(MODEL_TYPES)} with {', '.join(ARCHITECTURES)}; any other network can "
        "be exported as MindIR",
        {"file": CONFIG_FILE, "field": "model_type", "found": str(model_type)[:40], "known": ", ".join(MODEL_TYPES)},
    )
