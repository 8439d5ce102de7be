"""Checkpoints on disk: the same weights come out of every container, and a path stands for one checkpoint."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from tests.support import containers
from tests.support.containers import CONFIG, weights, write_ckpt, write_hugging_face, write_ranks, write_shards

from mindeval.formats import checkpoints, manifest
from mindeval.formats.checkpoints import OpenCheckpoint, open_local, open_weights
from mindeval.formats.errors import FormatError
from mindeval.formats.readers import FilePool, look
from mindeval.formats.safetensors import encode_header


def content(opened: OpenCheckpoint) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    return {t.name: (t.dtype, t.shape, b"".join(t.iter_bytes(chunk_bytes=1000))) for t in opened.tensors}


def expected(seed: int = 0) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    names = {"f2": "F16", "f4": "F32", "i8": "I64"}
    return {name: (names[value.dtype.str[1:]], value.shape, value.tobytes()) for name, value in weights(seed).items()}


def refused(path: Path, reason: str, match: str, **arguments: object) -> FormatError:
    with pytest.raises(FormatError, match=match) as caught:
        open_local(path, **arguments)  # type: ignore[arg-type]
    assert caught.value.reason == reason
    return caught.value


@pytest.mark.parametrize("kind", ["one file", "shards", "ckpt", "ranks", "file of a rank", "mindformers output"])
def test_every_container_gives_the_same_weights(tmp_path: Path, kind: str) -> None:
    path = {
        "one file": lambda: write_hugging_face(tmp_path / "out", weights()),
        "shards": lambda: write_shards(tmp_path / "out", weights()),
        "ckpt": lambda: write_ckpt(containers.write_config(tmp_path / "out") / "net-1_10.ckpt", weights()),
        "ranks": lambda: write_ranks(tmp_path / "out", weights()),
        "file of a rank": lambda: write_ranks(tmp_path / "out", weights()) / "rank_1" / "net_rank_1-network-1_10.ckpt",
        "mindformers output": lambda: write_ranks(tmp_path / "out", weights()).parent,
    }[kind]()

    opened = open_local(path)
    opened.verify()

    assert content(opened) == expected()
    assert {name: Path(span.path).read_bytes() for name, span in opened.files.items()} == {"config.json": CONFIG}
    assert opened.size_bytes == sum(value.nbytes for value in weights().values()) + len(CONFIG)
    for file, stamp in opened.stamps.items():
        status = os.stat(file)
        assert stamp == (status.st_size, status.st_mtime_ns, status.st_ino)
    read = {span.path for tensor in opened.tensors for span in tensor.spans() or ()}
    assert read <= opened.stamps.keys()


def test_any_range_of_any_tensor_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = expected()
    monkeypatch.setattr(checkpoints, "PIECE_BYTES", 1000)
    random = np.random.default_rng(1)
    for path in (write_hugging_face(tmp_path / "a", weights()), write_ranks(tmp_path / "b", weights())):
        with FilePool() as pool:
            for tensor in open_local(path).tensors:
                data = whole[tensor.name][2]
                ranges = tensor.piece_ranges()
                assert b"".join(b"".join(tensor.iter_bytes(*r, 64, pool)) for r in ranges) == data
                assert max(end - begin for begin, end in ranges) <= 1000
                for _ in range(30):
                    begin, end = sorted(random.integers(0, len(data) + 1, 2).tolist())
                    chunk_bytes = int(random.integers(1, 300))
                    chunks = list(tensor.iter_bytes(begin, end, chunk_bytes, pool))
                    assert b"".join(chunks) == data[begin:end]
                    assert max(map(len, chunks), default=0) <= chunk_bytes


def test_spans_are_the_bytes_of_a_range(tmp_path: Path) -> None:
    opened = open_local(write_hugging_face(tmp_path / "a", weights()))
    tensor = next(t for t in opened.tensors if t.name == "model.embed.weight")
    spans = tensor.spans(100, 5000)
    assert spans is not None
    found = b"".join(Path(span.path).read_bytes()[span.begin : span.end] for span in spans)
    assert found == expected()["model.embed.weight"][2][100:5000]
    sliced = {t.name: t for t in open_local(write_ranks(tmp_path / "b", weights())).tensors}
    assert sliced["model.embed.weight"].spans() is None


def test_an_empty_tensor_is_one_empty_piece(tmp_path: Path) -> None:
    file = tmp_path / "empty.safetensors"
    file.write_bytes(encode_header([("e", "F32", (0, 4))])[0])
    (tensor,) = open_weights(file).tensors
    assert tensor.piece_ranges() == [(0, 0)]
    assert list(tensor.iter_bytes()) == []
    assert tensor.spans() == ()
    assert manifest.PIECE_BYTES == checkpoints.PIECE_BYTES


def test_one_of_several_checkpoints_has_to_be_named(tmp_path: Path) -> None:
    folder = containers.write_config(tmp_path / "out")
    for step in (10, 20):
        write_ckpt(folder / f"net-1_{step}.ckpt", weights(step))

    error = refused(folder, "CHECKPOINT_UNREADABLE", "2 checkpoints .*name one of them")

    assert error.metadata["file"] == str(folder)
    assert content(open_local(folder / "net-1_20.ckpt")) == expected(20)


def test_hugging_face_weights_come_before_other_files(tmp_path: Path) -> None:
    folder = write_hugging_face(tmp_path / "out", weights(1))
    write_ckpt(folder / "net-1_20.ckpt", weights(2))
    write_hugging_face(folder / "checkpoint-500", weights(3))
    assert content(open_local(folder)) == expected(1)
    write_shards(folder, weights(4))
    assert content(open_local(folder)) == expected(4)
    assert content(open_local(folder / "checkpoint-500")) == expected(3)


def test_folders_without_a_checkpoint(tmp_path: Path) -> None:
    folder = containers.write_config(tmp_path / "out")
    refused(folder, "CHECKPOINT_UNREADABLE", "no .safetensors or .ckpt file")
    (folder / "pytorch_model.bin").write_bytes(b"x")
    refused(folder, "CHECKPOINT_UNREADABLE", "pytorch_model.bin is in another format")
    refused(folder / "pytorch_model.bin", "CHECKPOINT_UNREADABLE", "neither a folder nor")
    error = refused(folder / "none.ckpt", "CHECKPOINT_UNREADABLE", "no such file")
    assert error.metadata["errno"] == "ENOENT"


def test_incomplete_checkpoints_are_refused(tmp_path: Path) -> None:
    shards = write_shards(tmp_path / "shards", weights())
    (shards / "model-00002-of-00002.safetensors").unlink()
    refused(shards, "CHECKPOINT_UNREADABLE", "model-00002-of-00002.safetensors is missing")
    ranks = write_ranks(tmp_path / "ranks", weights())
    (ranks / "rank_1" / "net_rank_1-network-1_10.ckpt").unlink()
    refused(ranks, "CHECKPOINT_UNREADABLE", "rank 1 is missing")


def test_a_model_description_is_needed(tmp_path: Path) -> None:
    file = write_ckpt(tmp_path / "net.ckpt", weights())
    refused(file, "MODEL_UNSUPPORTED", "add config.json")
    refused(file, "MODEL_UNSUPPORTED", "add config.json", files={"tokenizer.json": file})
    config = tmp_path / "elsewhere.json"
    config.write_bytes(b"{}")
    assert open_local(file, files={"config.json": config}).files["config.json"].path == str(config)
    containers.write_config(tmp_path)
    (tmp_path / "mindeval_model.json").write_text("{}")
    refused(file, "MODEL_INVALID", "both config.json and mindeval_model.json")


def test_copies_of_ranks_must_agree(tmp_path: Path) -> None:
    for rank in range(2):
        write_ckpt(tmp_path / f"rank_{rank}" / "net-1_10.ckpt", weights(), crc=False)
    containers.write_config(tmp_path)
    opened = open_local(tmp_path)
    opened.verify()
    assert content(opened) == expected()
    write_ckpt(tmp_path / "rank_1" / "net-1_10.ckpt", weights(1), crc=False)
    with pytest.raises(FormatError, match="its bytes differ from those of rank 0"):
        open_local(tmp_path).verify()


def test_a_wrong_checksum_is_corrupt(tmp_path: Path) -> None:
    file = write_ckpt(containers.write_config(tmp_path) / "net.ckpt", weights())
    data = bytearray(file.read_bytes())
    data[1000] ^= 1
    file.write_bytes(data)
    with pytest.raises(FormatError) as caught:
        open_local(file).verify()
    assert caught.value.reason == "CHECKPOINT_CORRUPT"


def test_nothing_outside_the_bound_is_looked_at(tmp_path: Path) -> None:
    ranks = write_ranks(tmp_path / "out", weights())
    assert open_local(ranks, within=tmp_path).files
    refused(ranks, "MODEL_UNSUPPORTED", "add config.json", within=ranks)
    shutil.copy(tmp_path / "out" / "config.json", ranks)
    # Without their strategy, slices look like copies that differ.
    with pytest.raises(FormatError, match="differ"):
        open_local(ranks, within=ranks).verify()


def test_candidates_of_a_look_can_be_opened(tmp_path: Path) -> None:
    folder = containers.write_config(tmp_path / "out")
    for step in (10, 20):
        write_ckpt(folder / f"net-1_{step}.ckpt", weights(step))
    found = {c.step: content(checkpoints.open_candidate(c)) for c in look(folder).candidates}
    assert found == {10: expected(10), 20: expected(20)}


@pytest.mark.parametrize("name", ["checkpoint", "checkpoint_network"])
def test_a_model_may_lie_in_a_folder_that_is_called_like_a_training_jobs(tmp_path: Path, name: str) -> None:
    opened = open_local(write_hugging_face(tmp_path / name, weights()))
    assert content(opened) == expected()
