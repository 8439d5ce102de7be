"""A folder that a training job saves into: what is complete, what was pushed, which step it is."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from tests.support.containers import encode_ckpt, weights, write_config, write_hugging_face, write_ranks

from mindeval.client._watched_folder import NewCheckpoint, PushedBefore, WatchedFolder, state_path
from mindeval.formats.errors import FormatError


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state" / "watch.json"


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return write_config(tmp_path / "out")


def watched(output: Path, state: Path, steps_per_epoch: int | None = None) -> WatchedFolder:
    return WatchedFolder(output, PushedBefore(state), steps_per_epoch)


def save(file: Path, seed: int = 0, **extras: object) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(encode_ckpt({**weights(seed), **extras}))  # type: ignore[dict-item]
    return file


def names(found: list[NewCheckpoint]) -> list[str]:
    return [os.path.basename(item.candidate.files[0].path) for item in found]


def test_each_is_given_out_once_it_is_complete_and_until_it_was_pushed(output: Path, state: Path) -> None:
    folder = watched(output, state)
    assert folder.poll() == []
    file = save(output / "net-1_10.ckpt")
    assert folder.poll() == [], "it may still be written"
    found = folder.poll()
    assert names(found) == ["net-1_10.ckpt"]
    assert names(folder.poll()) == ["net-1_10.ckpt"], "nobody said that it was pushed"
    folder.pushed(found[0])
    assert folder.poll() == []
    assert watched(output, state).poll() == watched(output, state).poll() == []
    restarted = watched(output, state)
    restarted.poll()
    assert restarted.poll() == [], "a restart remembers"
    save(file, seed=1)
    restarted.poll()
    assert names(restarted.poll()) == ["net-1_10.ckpt"], "another file of the same name"


def test_files_in_the_making_are_left_alone(output: Path, state: Path) -> None:
    folder = watched(output, state)
    (output / "net-1_10.tmp").write_bytes(b"x")
    (output / "net-1_10.ckpt").write_bytes(b"")
    for size in (10, 20, 30):
        (output / "net-2_10.ckpt").write_bytes(b"x" * size)
        assert folder.poll() == []


def test_a_rank_that_is_late_is_waited_for(tmp_path: Path, state: Path) -> None:
    write_ranks(tmp_path / "out", weights())
    late = tmp_path / "out" / "checkpoint_network" / "rank_1"
    late.rename(tmp_path / "late")
    late.mkdir()
    folder = watched(tmp_path / "out", state)
    folder.poll()
    assert folder.poll() == []
    late.rmdir()
    shutil.move(tmp_path / "late", late)
    folder.poll()
    (found,) = folder.poll()
    assert len(found.candidate.files) == 2
    assert (found.step, found.epoch) == (100, 1), "step_num or global_step, as the trainer saved it"


def test_weights_alone_come_before_those_with_the_optimizer(output: Path, state: Path) -> None:
    for kind, ending in (
        ("checkpoint", ""),
        ("checkpoint_network", "-network"),
        ("checkpoint_trainable", "-trainable"),
    ):
        save(output / kind / "rank_0" / f"net_rank_0{ending}-1_10.ckpt")
    folder = watched(output, state)
    folder.poll()
    assert names(folder.poll()) == ["net_rank_0-network-1_10.ckpt"]


@pytest.mark.parametrize(("given", "expected"), [(None, [10, 20, 25]), (100, [10, 110, 205])])
def test_steps_within_epochs_become_steps_of_the_training(
    output: Path, state: Path, given: int | None, expected: list[int]
) -> None:
    for name in ("net-1_10", "net-2_10", "net-3_5"):
        save(output / f"{name}.ckpt")
    folder = watched(output, state, given)
    folder.poll()
    assert [item.step for item in folder.poll()] == expected


def test_hugging_face_folders_say_the_step(output: Path, state: Path) -> None:
    write_hugging_face(output / "checkpoint-500", weights())
    write_hugging_face(output / "checkpoint-1000", weights(1))
    folder = watched(output, state)
    folder.poll()
    assert [(item.step, item.epoch) for item in folder.poll()] == [(500, None), (1000, None)]


def test_what_failed_comes_again_when_it_changes(output: Path, state: Path) -> None:
    file = save(output / "net-1_10.ckpt")
    folder = watched(output, state)
    folder.poll()
    folder.failed(folder.poll()[0])
    assert folder.poll() == []
    save(file, seed=1)
    folder.poll()
    assert names(folder.poll()) == ["net-1_10.ckpt"]


def test_state_is_pruned_and_survives_damage(output: Path, state: Path) -> None:
    file = save(output / "net-1_10.ckpt")
    folder = watched(output, state)
    folder.poll()
    folder.pushed(folder.poll()[0])
    file.unlink()
    save(output / "net-2_10.ckpt")
    folder.poll()
    folder.pushed(folder.poll()[0])
    assert "net-1_10" not in state.read_text()
    state.write_text('{"mindeval_watch": 1, "pushed": 3}')
    restarted = watched(output, state)
    restarted.poll()
    assert names(restarted.poll()) == ["net-2_10.ckpt"]
    assert os.listdir(state.parent) == [state.name]


def test_a_folder_that_cannot_be_read(output: Path, state: Path, tmp_path: Path) -> None:
    os.symlink(tmp_path / "elsewhere.ckpt", output / "x-1_1.ckpt")
    save(tmp_path / "elsewhere.ckpt")
    with pytest.raises(FormatError, match="leads out of"):
        watched(output, state).poll()
    assert watched(tmp_path / "not yet there", state).poll() == []


def test_state_is_kept_for_each_service_and_project(output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    one = state_path(str(output), "a:1", "p")
    assert one.is_relative_to("/somewhere/mindeval")
    assert one == state_path(f"{output}/", "a:1", "p")
    assert len({one, state_path(str(output), "a:2", "p"), state_path(str(output), "a:1", "q")}) == 3
