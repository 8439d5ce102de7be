"""One set of weights in every container that training jobs write, without MindSpore.

What MindSpore itself writes is tested in tests/readers; here it matters that the same weights come out of all of them.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file

Weights = dict[str, npt.NDArray[Any]]

CONFIG = json.dumps({"model_type": "llama"}).encode()
_KINDS = {"f2": "Float16", "f4": "Float32", "f8": "Float64", "i4": "Int32", "i8": "Int64", "u1": "UInt8"}


def weights(seed: int = 0, rows: int = 64, columns: int = 48) -> Weights:
    """A few tensors: of two dimensions, of one, a scalar; two of them equal."""
    random = np.random.default_rng(seed)
    made: Weights = {
        "model.embed.weight": random.standard_normal((rows, columns)).astype("<f4"),
        "model.layers.0.weight": random.standard_normal((columns, rows)).astype("<f4"),
        "model.layers.1.weight": random.standard_normal((rows, 4)).astype("<f2"),
        "model.norm": np.ones(rows, "<f4"),
        "model.scale": np.array(7, "<i8"),
    }
    made["lm_head.weight"] = made["model.embed.weight"].copy()
    return made


def training_state(values: Weights) -> Weights:
    """What an optimizer keeps beside the weights."""
    moments = {f"adam_m.{name}": np.zeros_like(value) for name, value in values.items() if value.dtype == "<f4"}
    return {**moments, "global_step": np.array([100], "<i4"), "learning_rate": np.array(0.1, "<f4")}


def write_config(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_bytes(CONFIG)
    (folder / "README.md").write_text("stays behind")
    return folder


def write_hugging_face(folder: Path, values: Weights) -> Path:
    """model.safetensors and config.json."""
    write_config(folder)
    save_file(values, folder / "model.safetensors")
    return folder


def write_shards(folder: Path, values: Weights) -> Path:
    """Two shards with their index, and config.json."""
    write_config(folder)
    weight_map = {}
    names = sorted(values, reverse=True)
    for number, part in enumerate((names[::2], names[1::2]), 1):
        file = f"model-{number:05d}-of-00002.safetensors"
        save_file({name: values[name] for name in part}, folder / file)
        weight_map.update(dict.fromkeys(part, file))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder


def write_ckpt(file: Path, values: Weights, crc: bool = True) -> Path:
    """A .ckpt with the optimizer's state."""
    file.parent.mkdir(parents=True, exist_ok=True)
    data = encode_ckpt({**values, **training_state(values)})
    if crc:
        data += b"crc_num" + zlib.crc32(data).to_bytes(10, "big")
    file.write_bytes(data)
    return file


def write_ranks(folder: Path, values: Weights, ranks: int = 2) -> Path:
    """A run's output as MindFormers' CheckpointMonitor leaves it: checkpoint_network/rank_N/, strategy/, config.json.

    Tensors of two dimensions are sliced, along the first axis or the last by turns; others are whole on every rank.
    """
    write_config(folder)
    axes = {name: index % 2 for index, name in enumerate(values) if values[name].ndim == 2}
    for rank in range(ranks):
        own = {
            name: np.array_split(value, ranks, axes[name])[rank].copy() if name in axes else value
            for name, value in values.items()
        }
        file = folder / "checkpoint_network" / f"rank_{rank}" / f"net_rank_{rank}-network-1_10.ckpt"
        write_ckpt(file, own, crc=False)
    (folder / "strategy").mkdir()
    maps = {name: (0, -1) if axis == 0 else (-1, 0) for name, axis in axes.items()}
    (folder / "strategy" / "ckpt_strategy_rank_0.ckpt").write_bytes(encode_strategy(ranks, maps))
    return folder / "checkpoint_network"


def encode_ckpt(values: Weights) -> bytes:
    """The records of a .ckpt."""
    data = b""
    for name, value in values.items():
        dims = b"".join(b"\x08" + _varint(dim) for dim in value.shape)
        tensor = dims + _field(2, _KINDS[value.dtype.str[1:]].encode()) + _field(3, value.tobytes())
        data += _field(1, _field(1, name.encode()) + _field(2, tensor))
    return data


def encode_strategy(ranks: int, maps: Mapping[str, tuple[int, ...]]) -> bytes:
    """A strategy file: tensor maps over a device matrix of one axis."""
    operator = _field(2, _field(1, b"op") + _field(2, _number(1, 0)))
    data = _number(1, 0) + operator
    for name, tensor_map in maps.items():
        layouts = _field(1, _number(1, ranks)) + _field(2, b"".join(_number(1, axis) for axis in tensor_map))
        layouts += _field(3, b"") + _number(5, 0) + _number(6, 0) + _number(7, 0)
        data += _field(3, _field(1, name.encode()) + _field(2, layouts))
    return data


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    data = bytearray()
    while value >= 0x80:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*data, value])


def _field(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _number(number: int, value: int) -> bytes:
    return _varint(number << 3) + _varint(value)
