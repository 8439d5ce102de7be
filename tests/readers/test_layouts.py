"""Which checkpoints a folder holds, and which are complete."""

from __future__ import annotations

import json
import os

import pytest

from mindeval.formats.errors import FormatError
from mindeval.formats.readers import complete_candidates, look, open_tensors, preferred_candidates, read_strategy


def put(path, data=b"x"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def complete(root):
    return complete_candidates(look(root), look(root))


def test_model_checkpoint_folder(made):
    found = complete(made / "run")
    assert [(c.kind, c.prefix, c.epoch, c.step) for c in found] == [
        ("full", "net", 1, 2),
        ("full", "net", 2, 1),
        ("full", "net", 2, 2),
    ]
    assert open_tensors(found[-1].files[0].path).tensors


def test_steps_are_sorted_as_numbers_and_restarts_apart(tmp_path):
    for name in ("CKP-1_10.ckpt", "CKP-1_9.ckpt", "CKP_1-2_3.ckpt", "a-b-10_1.safetensors", "CKP-graph.meta"):
        put(tmp_path / name)
    found = [(c.prefix, c.epoch, c.step) for c in complete(tmp_path)]
    assert found == [("CKP", 1, 9), ("CKP", 1, 10), ("CKP_1", 2, 3), ("a-b", 10, 1)]


@pytest.fixture
def monitored(tmp_path):
    """What MindFormers' CheckpointMonitor writes on two ranks."""
    for rank in (0, 1):
        for step in (2, 4):
            put(tmp_path / f"checkpoint/rank_{rank}/llama_rank_{rank}-1_{step}.safetensors")
            put(tmp_path / f"checkpoint_network/rank_{rank}/llama_rank_{rank}-network-1_{step}.safetensors")
        put(tmp_path / f"checkpoint/rank_{rank}/meta.json", b"{}")
        put(tmp_path / f"strategy/ckpt_strategy_rank_{rank}.ckpt")
    return tmp_path


def test_checkpoint_monitor_folders(monitored):
    found = complete(monitored)
    assert [(c.kind, c.prefix, c.epoch, c.step, sorted(c.ranks)) for c in found] == [
        ("network", "llama-network", 1, 2, [0, 1]),
        ("full", "llama", 1, 2, [0, 1]),
        ("network", "llama-network", 1, 4, [0, 1]),
        ("full", "llama", 1, 4, [0, 1]),
    ]
    assert [os.path.basename(path) for path in found[0].strategy_files] == [
        "ckpt_strategy_rank_0.ckpt",
        "ckpt_strategy_rank_1.ckpt",
    ]
    assert [(c.kind, c.step) for c in preferred_candidates(found)] == [("network", 2), ("network", 4)]


def test_a_merged_strategy_is_enough(monitored):
    put(monitored / "strategy/merged_ckpt_strategy.ckpt")
    assert [os.path.basename(p) for p in look(monitored).candidates[0].strategy_files] == ["merged_ckpt_strategy.ckpt"]


def test_a_rank_that_is_not_done_yet(monitored):
    slow = monitored / "checkpoint_network/rank_1/llama_rank_1-network-1_4.safetensors"
    slow.rename(slow.with_suffix(".tmp"))
    found = {c.step: c for c in look(monitored).candidates if c.kind == "network"}
    assert found[2].unfinished == ""
    assert found[4].unfinished == "rank 1 is still writing it"
    slow.with_suffix(".tmp").unlink()
    found = {c.step: c for c in look(monitored).candidates if c.kind == "network"}
    assert found[4].unfinished == "the file of rank 1 is missing (1 of 2 are there)"
    assert 4 not in [c.step for c in complete(monitored) if c.kind == "network"]


def test_rank_folders_alone(made):
    (found,) = complete(made / "ranks_ckpt")
    assert (found.kind, found.step, sorted(found.ranks)) == ("full", None, list(range(8)))


def test_one_of_the_monitors_folders(monitored):
    assert {c.kind for c in complete(monitored / "checkpoint_network")} == {"network"}


def test_both_formats_side_by_side(tmp_path):
    for ending in ("ckpt", "safetensors"):
        put(tmp_path / f"net-1_1.{ending}")
    found = complete(tmp_path)
    assert len(found) == 2
    assert len(preferred_candidates(found)) == 1


def test_a_file_that_still_grows_is_not_complete(tmp_path):
    path = put(tmp_path / "net-1_1.ckpt")
    before = look(tmp_path)
    put(path, b"xy")
    after = look(tmp_path)
    assert complete_candidates(before, after) == ()
    assert [c.step for c in complete_candidates(after, look(tmp_path))] == [1]


def test_a_file_that_was_replaced_is_not_complete(tmp_path):
    path = put(tmp_path / "net-1_1.ckpt")
    before = look(tmp_path)
    put(tmp_path / "other", b"y").rename(path)
    assert complete_candidates(before, look(tmp_path)) == ()


def test_temporary_and_empty_files_are_not_complete(tmp_path):
    put(tmp_path / "net-1_1.ckpt")
    put(tmp_path / "net-1_1.tmp")
    put(tmp_path / "net-1_2.tmp")
    put(tmp_path / "net-1_3.ckpt", b"")
    found = look(tmp_path).candidates
    assert [(c.step, c.unfinished.split("/")[-1]) for c in found] == [
        (1, "net-1_1.tmp is being written"),
        (3, "net-1_3.ckpt is empty"),
    ]
    assert complete(tmp_path) == ()


def test_hugging_face_shards(tmp_path):
    shards = [f"model-0000{index}-of-00002.safetensors" for index in (1, 2)]
    put(tmp_path / "model.safetensors.index.json", json.dumps({"weight_map": dict(zip("ab", shards))}).encode())
    put(tmp_path / shards[0])
    (found,) = look(tmp_path).candidates
    assert found.unfinished == f"the shard {shards[1]} is missing"
    put(tmp_path / shards[1])
    (found,) = complete(tmp_path)
    assert (found.kind, len(found.files)) == ("hugging_face", 3)


@pytest.mark.parametrize("index", [b"{", b"[]", b'{"weight_map": {"a": "../x"}}', b'{"weight_map": {"a": 1}}'])
def test_a_bad_index_is_unfinished(tmp_path, index):
    put(tmp_path / "model.safetensors.index.json", index)
    (found,) = look(tmp_path).candidates
    assert found.unfinished


def test_hugging_face_steps(tmp_path):
    put(tmp_path / "model.safetensors")
    for step in (500, 1000):
        put(tmp_path / f"checkpoint-{step}" / "model.safetensors")
    assert [(c.kind, c.step) for c in complete(tmp_path)] == [
        ("hugging_face", None),
        ("hugging_face", 500),
        ("hugging_face", 1000),
    ]


def test_a_file_by_name(made, tmp_path):
    (found,) = complete(made / "plain.ckpt")
    assert (found.kind, found.prefix) == ("file", "plain")
    with pytest.raises(FormatError, match="neither"):
        look(put(tmp_path / "notes.txt"))
    with pytest.raises(FormatError, match="no such file"):
        look(tmp_path / "absent")


def test_a_link_out_of_the_folder_is_refused(tmp_path):
    outside = put(tmp_path / "secret" / "w.ckpt")
    folder = tmp_path / "run"
    folder.mkdir()
    link = folder / "net-1_1.ckpt"
    link.symlink_to(outside)
    with pytest.raises(FormatError, match="leads out of") as caught:
        look(folder)
    assert caught.value.metadata == {"file": str(link)}
    link.unlink()
    (folder / "rank_0").symlink_to(outside.parent)
    with pytest.raises(FormatError, match="leads out of"):
        look(folder)


def test_links_inside_and_dangling_ones_are_fine(tmp_path):
    put(tmp_path / "net-1_1.ckpt")
    (tmp_path / "net-1_2.ckpt").symlink_to("net-1_1.ckpt")
    (tmp_path / "net-1_3.ckpt").symlink_to("gone")
    assert [c.step for c in complete(tmp_path)] == [1, 2]


def test_the_cache_of_the_hub_is_let_through(tmp_path):
    blob = put(tmp_path / "models--x--y/blobs/abc")
    snapshot = tmp_path / "models--x--y/snapshots/rev"
    snapshot.mkdir(parents=True)
    (snapshot / "model.safetensors").symlink_to(os.path.relpath(blob, snapshot))
    assert [c.kind for c in complete(snapshot)] == ["hugging_face"]


def test_permission_denied(tmp_path):
    folder = tmp_path / "closed"
    put(folder / "net-1_1.ckpt")
    folder.chmod(0)
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(65534)
    try:
        with pytest.raises(FormatError, match="permission denied"):
            look(folder)
    finally:
        if is_root:
            os.seteuid(0)
        folder.chmod(0o700)


def test_too_many_entries(tmp_path, monkeypatch):
    monkeypatch.setattr("mindeval.formats.readers.layouts.MAX_ENTRIES", 5)
    for index in range(6):
        put(tmp_path / f"net-1_{index}.ckpt")
    with pytest.raises(FormatError, match="more than 5 files"):
        look(tmp_path)


def test_strategy_files_are_no_checkpoints(made):
    paths = {c.path for c in look(made).candidates} | {f.path for c in look(made).candidates for f in c.files}
    assert not any("strategy" in os.path.basename(path) for path in paths)
    assert read_strategy([made / "strategy.ckpt"]).ranks == 8
