"""Reading config.json of a Llama-architecture model, with suspicion."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mindeval.formats.model import CONFIG_FILE
from mindeval.service.runtime.errors import RunnerError

# Bounds on what a description may ask the runner to build.
_MAX_LAYERS = 1_024
_MAX_SIZE = 1 << 22
_ROPE_TYPES = ("default", "linear", "llama3")


@dataclass(frozen=True)
class LlamaConfig:
    """The fields of config.json that change what the network computes.

    Attributes:
        vocab_size: Rows of the embedding.
        hidden_size: Width of the residual stream.
        intermediate_size: Width of the gated feed-forward layer.
        layers: Number of decoder layers.
        heads: Query heads.
        kv_heads: Key and value heads; divides `heads`.
        head_dim: Width of a head, even.
        max_length: Longest input (max_position_embeddings).
        epsilon: Added to the mean square in RMSNorm.
        rope_theta: Base of the rotary frequencies.
        rope_scaling: Scaling of the frequencies, as in config.json; empty for none.
        tied: Whether the head is the embedding.
        attention_bias: Whether the attention projections have a bias.
        mlp_bias: Whether the feed-forward projections have one.
        bos_token_id: None when the model has none.
        eos_token_id: None when the model has none; the first of several.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    max_length: int
    epsilon: float
    rope_theta: float
    rope_scaling: tuple[tuple[str, Any], ...]
    tied: bool
    attention_bias: bool
    mlp_bias: bool
    bos_token_id: int | None
    eos_token_id: int | None

    @classmethod
    def of(cls, raw: Mapping[str, Any]) -> LlamaConfig:
        """Reads the fields of a parsed config.json.

        Raises:
            RunnerError: MODEL_INVALID naming the field, or MODEL_UNSUPPORTED for a variant that is not built here.
        """
        hidden = _size(raw, "hidden_size")
        heads = _size(raw, "num_attention_heads")
        kv_heads = _size(raw, "num_key_value_heads", heads)
        _require(
            heads % kv_heads == 0, "num_key_value_heads", f"({kv_heads}) must divide num_attention_heads ({heads})"
        )
        if raw.get("head_dim") is None:
            _require(
                hidden % heads == 0, "hidden_size", f"({hidden}) must be a multiple of num_attention_heads ({heads})"
            )
        head_dim = _size(raw, "head_dim", hidden // heads)
        _require(head_dim % 2 == 0, "head_dim", f"({head_dim}) must be even, for the rotary embedding")
        activation = raw.get("hidden_act", "silu")
        if activation not in ("silu", "swish"):
            raise _unsupported("hidden_act", f"{str(activation)[:40]!r}; Llama here has 'silu'")
        layers = _size(raw, "num_hidden_layers")
        _require(layers <= _MAX_LAYERS, "num_hidden_layers", f"is over {_MAX_LAYERS}")
        theta, scaling = _rope(raw)
        vocab_size = _size(raw, "vocab_size")
        return cls(
            vocab_size=vocab_size,
            hidden_size=hidden,
            intermediate_size=_size(raw, "intermediate_size"),
            layers=layers,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            max_length=_size(raw, "max_position_embeddings", 2048),
            epsilon=_positive(raw.get("rms_norm_eps", 1e-6), "rms_norm_eps"),
            rope_theta=theta,
            rope_scaling=tuple(sorted(scaling.items())),
            tied=_flag(raw, "tie_word_embeddings"),
            attention_bias=_flag(raw, "attention_bias"),
            mlp_bias=_flag(raw, "mlp_bias"),
            bos_token_id=_token(raw, "bos_token_id", vocab_size),
            eos_token_id=_token(raw, "eos_token_id", vocab_size),
        )

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every tensor of the model, by its Hugging Face name."""
        hidden, inner = self.hidden_size, self.intermediate_size
        q_rows, kv_rows = self.heads * self.head_dim, self.kv_heads * self.head_dim
        shapes: dict[str, tuple[int, ...]] = {
            "model.embed_tokens.weight": (self.vocab_size, hidden),
            "model.norm.weight": (hidden,),
        }
        if not self.tied:
            shapes["lm_head.weight"] = (self.vocab_size, hidden)
        matrices = {
            "self_attn.q_proj": (q_rows, hidden, self.attention_bias),
            "self_attn.k_proj": (kv_rows, hidden, self.attention_bias),
            "self_attn.v_proj": (kv_rows, hidden, self.attention_bias),
            "self_attn.o_proj": (hidden, q_rows, self.attention_bias),
            "mlp.gate_proj": (inner, hidden, self.mlp_bias),
            "mlp.up_proj": (inner, hidden, self.mlp_bias),
            "mlp.down_proj": (hidden, inner, self.mlp_bias),
        }
        for layer in range(self.layers):
            head = f"model.layers.{layer}."
            shapes[head + "input_layernorm.weight"] = (hidden,)
            shapes[head + "post_attention_layernorm.weight"] = (hidden,)
            for name, (rows, columns, bias) in matrices.items():
                shapes[f"{head}{name}.weight"] = (rows, columns)
                if bias:
                    shapes[f"{head}{name}.bias"] = (rows,)
        return shapes

    def rotary_frequencies(self) -> npt.NDArray[np.float64]:
        """Angle per position of each rotary pair: float64 [head_dim / 2].

        Scaling follows Hugging Face transformers: "linear" divides by a factor; "llama3" does so for wavelengths
        longer than the original context allows, with a smooth passage between.
        """
        pairs = np.arange(0, self.head_dim, 2, dtype=np.float64)
        frequencies: npt.NDArray[np.float64] = np.power(self.rope_theta, -pairs / self.head_dim)
        scaling = dict(self.rope_scaling)
        if not scaling:
            return frequencies
        factor = scaling["factor"]
        if scaling["type"] == "linear":
            return frequencies / float(factor)
        turns = scaling["original_max_position_embeddings"] * frequencies / (2 * math.pi)
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        kept: npt.NDArray[np.float64] = np.clip((turns - low) / (high - low), 0.0, 1.0)
        return kept * frequencies + (1 - kept) * frequencies / float(factor)


def _rope(raw: Mapping[str, Any]) -> tuple[float, dict[str, Any]]:
    # Newer files keep theta and scaling in "rope_parameters", older ones in two fields.
    parameters = raw.get("rope_parameters") or {}
    _require(isinstance(parameters, dict), "rope_parameters", "must be an object")
    theta = _positive(parameters.get("rope_theta", raw.get("rope_theta", 10_000.0)), "rope_theta")
    field = "rope_parameters" if parameters else "rope_scaling"
    scaling = parameters or raw.get("rope_scaling") or {}
    _require(isinstance(scaling, dict), field, "must be an object")
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind not in _ROPE_TYPES:
        raise _unsupported(field, f"type {str(kind)[:40]!r}; known are {', '.join(_ROPE_TYPES)}")
    if kind == "default":
        return theta, {}
    needed = ["factor"]
    if kind == "llama3":
        needed += ["low_freq_factor", "high_freq_factor", "original_max_position_embeddings"]
    values: dict[str, Any] = {name: _positive(scaling.get(name), f"{field}.{name}") for name in needed}
    if kind == "llama3":
        ordered = values["high_freq_factor"] > values["low_freq_factor"]
        _require(ordered, f"{field}.high_freq_factor", "must be over low_freq_factor")
    return theta, {**values, "type": kind}


def _size(raw: Mapping[str, Any], field: str, default: int | None = None) -> int:
    value = raw.get(field)
    if value is None:
        value = default
    _require(value is not None, field, "is missing")
    whole = isinstance(value, int) and not isinstance(value, bool)
    _require(whole and 1 <= value <= _MAX_SIZE, field, f"must be a whole number from 1 to {_MAX_SIZE}, not {value!r}")  # type: ignore[operator]
    return int(value)  # type: ignore[arg-type]


def _positive(value: Any, field: str) -> float:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    _require(number and 0 < value < math.inf, field, f"must be a positive number, not {value!r}")
    return float(value)


def _flag(raw: Mapping[str, Any], field: str) -> bool:
    value = raw.get(field, False)
    _require(isinstance(value, bool), field, f"must be true or false, not {value!r}")
    return bool(value)


def _token(raw: Mapping[str, Any], field: str, vocab_size: int) -> int | None:
    value: Any = raw.get(field)
    if isinstance(value, list) and value:
        value = value[0]
    if value is None:
        return None
    inside = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < vocab_size
    _require(inside, field, f"({value!r}) must be a token id below vocab_size ({vocab_size})")
    return int(value)


def parse_config(data: bytes) -> dict[str, Any]:
    """The object in config.json.

    Raises:
        RunnerError: MODEL_INVALID when it is not one.
    """
    try:
        raw = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise RunnerError("MODEL_INVALID", f"{CONFIG_FILE}: not JSON ({error})", {"file": CONFIG_FILE}) from None
    if not isinstance(raw, dict):
        raise RunnerError("MODEL_INVALID", f"{CONFIG_FILE}: not a JSON object", {"file": CONFIG_FILE})
    return raw


def _require(condition: bool, field: str, rule: str) -> None:
    if not condition:
        raise RunnerError("MODEL_INVALID", f"{CONFIG_FILE}: {field} {rule}", {"file": CONFIG_FILE, "field": field})


def _unsupported(field: str, what: str) -> RunnerError:
    return RunnerError(
        "MODEL_UNSUPPORTED",
        f"{CONFIG_FILE}: {field} is {what}; export the network as MindIR instead",
        {"file": CONFIG_FILE, "field": field},
    )
