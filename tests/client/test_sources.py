"""Checkpoints on disk: what is found, and one clear line for what cannot be used."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from tests.client.checkpoints import tensors, write_folder, write_sharded_folder

from mindeval.client import FormatError, _hashing, _push, _sources
from mindeval.formats.digest import digest_bytes
from mindeval.formats.manifest import Manifest
from mindeval.formats.model import GraphDescription


def manifest_of(source: _sources.PushSource, threads: int | None = None) -> Manifest:
    hashed = _push.HashedSource(source)

    async def work() -> None:
        async for batch in _hashing.hash_contents([*source.tensors, *source.files.values()], threads):
            hashed.add(batch)

    asyncio.run(work())
    return hashed.manifest()


def digest_of(path: Path, **files: Path) -> str:
    source = _sources.open_checkpoint(
        path, {name.replace("_json", ".json"): file for name, file in files.items()} or None
    )
    return manifest_of(source).digest


def test_digests_are_those_of_the_tensors_bytes(tmp_path: Path) -> None:
    values = tensors()
    manifest = manifest_of(_sources.open_checkpoint(write_folder(tmp_path / "c", values)))
    assert {entry.name: entry.digest for entry in manifest.tensors} == {
        name: digest_bytes(value.tobytes()) for name, value in values.items()
    }


def test_packaging_does_not_change_the_identity(tmp_path: Path) -> None:
    values = tensors()
    whole = digest_of(write_folder(tmp_path / "whole", values))
    assert digest_of(write_sharded_folder(tmp_path / "shards", values)) == whole
    # A file alone takes what lies beside it.
    assert digest_of(tmp_path / "whole" / "model.safetensors") == whole
    # Another name, another order of tensors.
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    save_file(dict(reversed(list(values.items()))), elsewhere / "step_10.safetensors", {"note": "x"})
    for name in ("config.json", "tokenizer.json"):
        (elsewhere / name).write_bytes((tmp_path / "whole" / name).read_bytes())
    assert digest_of(elsewhere) == whole


@pytest.mark.parametrize("threads", [1, 3])
def test_any_number_of_threads(tmp_path: Path, threads: int) -> None:
    source = _sources.open_checkpoint(write_folder(tmp_path / "c", {"w": np.arange(1 << 20, dtype=np.float32)}))
    assert manifest_of(source, threads).tensors[0].digest == digest_bytes(
        np.arange(1 << 20, dtype=np.float32).tobytes()
    )


def test_exported_graph_rides_along(tmp_path: Path) -> None:
    save_file({"w": np.ones(3, np.float32)}, tmp_path / "weights.safetensors")
    (tmp_path / "mindeval_model.json").write_bytes(GraphDescription(300, 64, "bytes", graph="net.mindir").to_bytes())
    with pytest.raises(FormatError, match=r"net\.mindir: no such file.*MODEL_INVALID"):
        _sources.open_checkpoint(tmp_path)
    (tmp_path / "net.mindir").write_bytes(b"graph")
    assert sorted(_sources.open_checkpoint(tmp_path).files) == ["mindeval_model.json", "net.mindir"]


def test_checkpoint_without_tensors(tmp_path: Path) -> None:
    assert manifest_of(_sources.open_checkpoint(write_folder(tmp_path, {"e": np.zeros((0, 3))}))).tensors


def _cut(folder: Path) -> None:
    os.truncate(folder / "model.safetensors", 3000)


def _cut_in_header(folder: Path) -> None:
    os.truncate(folder / "model.safetensors", 30)


def _empty(folder: Path) -> None:
    os.truncate(folder / "model.safetensors", 0)


def _pickle(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04")


def _two(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "a.safetensors")
    save_file({"w": np.ones(1)}, folder / "b.safetensors")


def _no_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def _two_descriptions(folder: Path) -> None:
    (folder / "mindeval_model.json").write_text("{}")


def _missing_shard(folder: Path) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"w": "gone.safetensors"}}))


def _escaping_shard(folder: Path) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"w": "../x.safetensors"}}))


def _broken_index(folder: Path) -> None:
    (folder / "model.safetensors.index.json").write_text('{"weight_map": 3}')


def _pipe(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    os.symlink("/dev/null", folder / "model.safetensors")


def _folder_in_place_of_file(folder: Path) -> None:
    (folder / "config.json").unlink()
    (folder / "config.json").mkdir()


@pytest.mark.parametrize(
    ("damage", "reason", "file", "text"),
    [
        (_cut, "CHECKPOINT_TRUNCATED", "model.safetensors", "ends at byte 3000"),
        (_cut_in_header, "CHECKPOINT_TRUNCATED", "model.safetensors", "header"),
        (_empty, "CHECKPOINT_UNREADABLE", "", "model.safetensors is empty"),
        (_pickle, "CHECKPOINT_UNREADABLE", "", "pytorch_model.bin is in another format"),
        (_two, "CHECKPOINT_UNREADABLE", "", "2 checkpoints"),
        (_no_config, "MODEL_UNSUPPORTED", "", "add config.json"),
        (_two_descriptions, "MODEL_INVALID", "", "keep the one"),
        (_missing_shard, "CHECKPOINT_UNREADABLE", "", "gone.safetensors is missing"),
        (_escaping_shard, "CHECKPOINT_UNREADABLE", "", "same folder"),
        (_broken_index, "CHECKPOINT_UNREADABLE", "", "weight_map"),
        (_pipe, "CHECKPOINT_UNREADABLE", "model.safetensors", "leads out of"),
        (_folder_in_place_of_file, "CHECKPOINT_UNREADABLE", "config.json", "not a regular file"),
    ],
)
def test_unusable_folders(tmp_path: Path, damage: Callable[[Path], None], reason: str, file: str, text: str) -> None:
    folder = write_folder(tmp_path / "c")
    damage(folder)
    with pytest.raises(FormatError) as caught:
        _sources.open_checkpoint(folder)
    assert caught.value.reason == reason
    assert text in caught.value.message
    assert caught.value.metadata["file"] == str(folder / file if file else folder)
    assert "\n" not in caught.value.message


def test_files_that_are_not_checkpoints(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="no such file"):
        _sources.open_checkpoint(tmp_path / "nothing")
    (tmp_path / "net.ckpt").write_bytes(b"x")
    with pytest.raises(FormatError, match=r"MODEL_UNSUPPORTED"):
        _sources.open_checkpoint(tmp_path / "net.ckpt")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(FormatError, match=r"net\.ckpt: .*CHECKPOINT_"):
        _sources.open_checkpoint(tmp_path / "net.ckpt")
    save_file({"w": np.ones(1)}, tmp_path / "alone.safetensors")
    with pytest.raises(FormatError, match="MODEL_UNSUPPORTED"):
        _sources.open_checkpoint(tmp_path / "alone.safetensors", {"tokenizer.json": tmp_path / "net.ckpt"})


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_permission_denied(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "c")
    (folder / "model.safetensors").chmod(0)
    with pytest.raises(FormatError, match="permission denied"):
        _sources.open_checkpoint(folder)


def test_permission_denied_by_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_folder(tmp_path / "c")

    def refuse(path: object, *_: object, **__: object) -> object:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("os.open", refuse)
    with pytest.raises(FormatError, match=r"model\.safetensors: permission denied \[CHECKPOINT_UNREADABLE\]"):
        _sources.open_checkpoint(folder)


def test_tensor_in_two_shards(tmp_path: Path) -> None:
    folder = write_sharded_folder(tmp_path / "c", tensors())
    save_file({"model.norm": np.ones(2)}, folder / "model-00001-of-00002.safetensors")
    with pytest.raises(FormatError, match="as well"):
        _sources.open_checkpoint(folder)


def test_huge_sparse_file_is_refused_without_reading_it(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "c")
    os.truncate(folder / "model.safetensors", 20 << 30)
    with pytest.raises(FormatError, match="follow the last tensor"):
        _sources.open_checkpoint(folder)
