"""Checkpoints for the client's tests, made with numpy alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

Tensors = dict[str, "np.ndarray[Any, Any]"]


def tensors(seed: int = 0, rows: int = 64) -> Tensors:
    """A few float32 tensors, two of them equal, one empty."""
    rng = np.random.default_rng(seed)
    made = {
        "model.embed.weight": rng.standard_normal((rows, 128)).astype(np.float32),
        "model.layers.0.weight": rng.standard_normal((rows, rows)).astype(np.float32),
        "model.layers.1.weight": rng.standard_normal((rows, rows)).astype(np.float16),
        "model.norm": np.ones(rows, np.float32),
        "model.empty": np.zeros((0, 4), np.float32),
        "model.step": np.array(7, np.int64),
    }
    made["lm_head.weight"] = made["model.embed.weight"].copy()
    return made


def write_folder(folder: Path, values: Mapping[str, Any] | None = None, *, config: Any = None) -> Path:
    """A Hugging Face folder with one safetensors file."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(dict(values or tensors()), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config or {"model_type": "llama"}))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "README.md").write_text("stays behind")
    return folder


def write_sharded_folder(folder: Path, values: Mapping[str, Any]) -> Path:
    """The same in two shards with an index."""
    folder.mkdir(parents=True, exist_ok=True)
    names = sorted(values)
    half = len(names) // 2
    weight_map = {}
    for number, part in enumerate((names[:half], names[half:]), 1):
        file = f"model-{number:05d}-of-00002.safetensors"
        save_file({name: values[name] for name in part}, folder / file)
        weight_map.update(dict.fromkeys(part, file))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (folder / "tokenizer.json").write_text("{}")
    return folder
