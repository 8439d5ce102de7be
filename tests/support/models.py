"""Small models for tests, made without MindSpore."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from mindeval.formats.digest import digest_bytes, digest_hex
from mindeval.formats.manifest import PIECE_BYTES, FileEntry, Manifest, TensorEntry
from mindeval.formats.safetensors import header_length, parse_header

BYTE_VOCABULARY = 259
"""Bytes, then <bos>, <eos> and <pad>."""

Tensors = dict[str, npt.NDArray[Any]]


def byte_level_tokenizer() -> Tokenizer:
    """A tokenizer whose tokens are bytes (ids 0 to 255), with <bos> 256, <eos> 257 and <pad> 258."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {symbol: index for index, symbol in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<bos>", "<eos>", "<pad>"])
    return tokenizer


def tiny_llama_config(
    *,
    vocab: int = BYTE_VOCABULARY,
    layers: int = 2,
    hidden: int = 64,
    heads: int = 4,
    kv_heads: int = 2,
    intermediate: int = 96,
    max_length: int = 128,
    tied: bool = False,
    **fields: Any,
) -> dict[str, Any]:
    """The content of a config.json; further fields are added as given."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "vocab_size": vocab,
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": max_length,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": tied,
        "bos_token_id": 256,
        "eos_token_id": 257,
        **fields,
    }


def llama_tensors(config: dict[str, Any], seed: int = 0) -> Tensors:
    """Random float32 weights by Hugging Face name, large enough that predictions are far from uniform."""
    rng = np.random.default_rng(seed)
    hidden, inner, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    width = config.get("head_dim") or hidden // config["num_attention_heads"]
    q_rows, kv_rows = config["num_attention_heads"] * width, config["num_key_value_heads"] * width

    def matrix(rows: int, columns: int) -> npt.NDArray[np.float32]:
        return (rng.standard_normal((rows, columns)) * (1.5 / np.sqrt(columns))).astype(np.float32)

    def norm() -> npt.NDArray[np.float32]:
        return (1.0 + 0.2 * rng.standard_normal(hidden)).astype(np.float32)

    tensors: Tensors = {"model.embed_tokens.weight": matrix(vocab, hidden), "model.norm.weight": norm()}
    shapes = {
        "self_attn.q_proj": (q_rows, hidden),
        "self_attn.k_proj": (kv_rows, hidden),
        "self_attn.v_proj": (kv_rows, hidden),
        "self_attn.o_proj": (hidden, q_rows),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    for layer in range(config["num_hidden_layers"]):
        start = f"model.layers.{layer}."
        tensors[start + "input_layernorm.weight"] = norm()
        tensors[start + "post_attention_layernorm.weight"] = norm()
        for name, (rows, columns) in shapes.items():
            tensors[f"{start}{name}.weight"] = matrix(rows, columns)
            if config.get("mlp_bias" if name.startswith("mlp") else "attention_bias"):
                tensors[f"{start}{name}.bias"] = (0.3 * rng.standard_normal(rows)).astype(np.float32)
    if not config["tie_word_embeddings"]:
        tensors["lm_head.weight"] = matrix(vocab, hidden)
    return tensors


def write_tiny_llama(folder: str | Path, seed: int = 0, **config: Any) -> Path:
    """Writes config.json, model.safetensors and tokenizer.json of a random Llama; returns the folder.

    Args:
        folder: Made when it is not there.
        seed: Other seeds give other weights for the same architecture.
        **config: Arguments of `tiny_llama_config`.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    content = tiny_llama_config(**config)
    (folder / "config.json").write_text(json.dumps(content), encoding="utf-8")
    save_file(llama_tensors(content, seed), str(folder / "model.safetensors"))
    byte_level_tokenizer().save(str(folder / "tokenizer.json"))
    return folder


def checkpoint_manifest(folder: str | Path, blob_dir: str | Path) -> tuple[Manifest, dict[str, Path]]:
    """Splits a checkpoint folder into blobs, as a push does.

    Every `*.safetensors` file is cut into its tensors; every other file rides along. The manifest itself is written as
    a blob too.

    Args:
        folder: Checkpoint files; sub-folders are not read.
        blob_dir: Made when it is not there; a blob's name is the hexadecimal part of its digest.

    Returns:
        The manifest, and the file of each blob by digest (with the manifest's).
    """
    blob_dir = Path(blob_dir)
    blob_dir.mkdir(parents=True, exist_ok=True)
    blobs: dict[str, Path] = {}
    tensors: list[TensorEntry] = []
    files: list[FileEntry] = []

    def put(data: bytes) -> str:
        digest = digest_bytes(data)
        blobs[digest] = blob_dir / digest_hex(digest)
        if not blobs[digest].exists():
            blobs[digest].write_bytes(data)
        return digest

    for path in sorted(Path(folder).iterdir()):
        if path.is_dir():
            continue
        if path.suffix != ".safetensors":
            data = path.read_bytes()
            files.append(FileEntry(path.name, len(data), put(data)))
            continue
        size = path.stat().st_size
        with path.open("rb") as file:
            start = file.read(8)
            start += file.read(header_length(start, size, path.name))
            for slot in parse_header(start, size, path.name).tensors:
                data = os.pread(file.fileno(), slot.size_bytes, slot.begin)
                pieces = tuple(put(data[i : i + PIECE_BYTES]) for i in range(0, max(len(data), 1), PIECE_BYTES))
                tensors.append(TensorEntry.of_pieces(slot.name, slot.dtype, slot.shape, slot.size_bytes, pieces))
    manifest = Manifest.of(tensors, files)
    put(manifest.to_bytes())
    return manifest, blobs
