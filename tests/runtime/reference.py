"""Independent references, written plainly: a Llama forward pass in float64, and lm-eval's rolling windows."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


def llama_logits(config: dict[str, Any], tensors: dict[str, npt.NDArray[Any]], tokens: npt.NDArray[Any]) -> Array:
    """Logits [length, vocab] of one sequence, as the Hugging Face model computes them, in float64."""
    weights = {name: array.astype(np.float64) for name, array in tensors.items()}
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    width = config.get("head_dim") or config["hidden_size"] // heads
    length = tokens.size
    x = weights["model.embed_tokens.weight"][tokens]
    angles = np.arange(length)[:, None] * config["rope_theta"] ** (-np.arange(0, width, 2) / width)
    cos, sin = np.cos(angles), np.sin(angles)

    def linear(x: Array, name: str) -> Array:
        return x @ weights[f"{name}.weight"].T + weights.get(f"{name}.bias", 0.0)

    def norm(x: Array, name: str) -> Array:
        scale = 1 / np.sqrt((x**2).mean(axis=-1, keepdims=True) + config["rms_norm_eps"])
        return x * scale * weights[f"{name}.weight"]

    def rotate(x: Array) -> Array:
        first, second = x[..., : width // 2], x[..., width // 2 :]
        c, s = cos[:, None], sin[:, None]
        return np.concatenate([first * c - second * s, second * c + first * s], axis=-1)

    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        h = norm(x, at + "input_layernorm")
        q = rotate(linear(h, at + "self_attn.q_proj").reshape(length, heads, width))
        k = rotate(linear(h, at + "self_attn.k_proj").reshape(length, kv_heads, width))
        v = linear(h, at + "self_attn.v_proj").reshape(length, kv_heads, width)
        mixed = np.zeros((length, heads, width))
        for head in range(heads):
            shared = head // (heads // kv_heads)
            scores = q[:, head] @ k[:, shared].T / np.sqrt(width)
            scores[np.triu_indices(length, 1)] = -np.inf
            weights_of = np.exp(scores - scores.max(axis=-1, keepdims=True))
            mixed[:, head] = weights_of / weights_of.sum(axis=-1, keepdims=True) @ v[:, shared]
        x = x + linear(mixed.reshape(length, heads * width), at + "self_attn.o_proj")
        h = norm(x, at + "post_attention_layernorm")
        gate = linear(h, at + "mlp.gate_proj")
        x = x + linear(gate / (1 + np.exp(-gate)) * linear(h, at + "mlp.up_proj"), at + "mlp.down_proj")
    x = norm(x, "model.norm")
    head_name = "model.embed_tokens" if config["tie_word_embeddings"] else "lm_head"
    return np.asarray(x @ weights[f"{head_name}.weight"].T)


def token_nll(logits: Array, targets: npt.NDArray[Any]) -> Array:
    """NLL in nats of each target: [length]."""
    top = logits.max(axis=-1, keepdims=True)
    log_sum = top[:, 0] + np.log(np.exp(logits - top).sum(axis=-1))
    return np.asarray(log_sum - logits[np.arange(targets.size), targets])


def rolling_windows(tokens: list[int], prefix: int, max_length: int) -> list[tuple[list[int], list[int]]]:
    """(input, predicted tokens) of each window: the rule of lm-eval's rolling loglikelihood with a context of one.

    The predicted tokens are those after the last positions of the input.
    """
    windows = []
    first = min(max_length, len(tokens))
    if tokens:
        windows.append(([prefix, *tokens[: first - 1]], tokens[:first]))
    predicted = first
    while predicted < len(tokens):
        count = min(len(tokens) - predicted, max_length)
        end = predicted + count
        windows.append((tokens[end - max_length - 1 : end - 1], tokens[end - count : end]))
        predicted = end
    return windows


def document_nll(
    config: dict[str, Any], tensors: dict[str, npt.NDArray[Any]], tokens: list[int], prefix: int, max_length: int
) -> npt.NDArray[np.float64]:
    """NLL sum, correct predictions, targets among the five likeliest, and tokens of a document: [4]."""
    sums = np.zeros(4)
    for inputs, predicted in rolling_windows(tokens, prefix, max_length):
        logits = llama_logits(config, tensors, np.array(inputs))[-len(predicted) :]
        rank = (logits > logits[np.arange(len(predicted)), predicted][:, None]).sum(axis=-1)
        nll = token_nll(logits, np.array(predicted)).sum()
        sums += [nll, (rank == 0).sum(), (rank < 5).sum(), len(predicted)]
    return sums
