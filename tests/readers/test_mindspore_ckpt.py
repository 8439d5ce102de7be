"""What MindSpore's own checkpoints hold, read without it."""

from __future__ import annotations

import hashlib
import json

import pytest

from mindeval.formats.errors import FormatError
from mindeval.formats.readers import (
    is_training_state,
    iter_record_bytes,
    open_tensors,
    read_mindspore_ckpt,
    read_progress,
    select_weights,
    verify_crc,
)


def digests(file):
    return {
        t.name: [t.dtype, list(t.shape), hashlib.sha256(b"".join(iter_record_bytes(t))).hexdigest()]
        for t in file.tensors
    }


@pytest.fixture(scope="module")
def expected(made):
    return json.loads((made / "expected.json").read_text())


@pytest.mark.parametrize("name", ["plain.ckpt", "crc.ckpt", "split.ckpt", "plain.safetensors"])
def test_tensors_are_those_that_mindspore_loads(made, expected, name):
    assert digests(open_tensors(made / name)) == expected["weights"]


def test_tensors_come_in_the_order_of_the_file(made, expected):
    file = read_mindspore_ckpt(made / "plain.ckpt")
    assert [tensor.name for tensor in file.tensors] == list(expected["weights"])
    begins = [tensor.spans[0].begin for tensor in file.tensors]
    assert begins == sorted(begins)


@pytest.mark.parametrize("name", ["plain", "appended"])
def test_both_formats_give_the_same(made, raw, name):
    assert raw(made / f"{name}.ckpt") == raw(made / f"{name}.safetensors")


def test_a_tensor_over_several_records_is_one(made):
    big = read_mindspore_ckpt(made / "split.ckpt").find("big")
    assert [span.size_bytes for span in big.spans] == [16384, 16384, 16384]
    assert big.shape == (96, 128)


def test_a_background_save_may_leave_an_empty_record(made, expected):
    file = read_mindspore_ckpt(made / "split_async.ckpt")
    assert digests(file) == expected["wide"]
    # (1, 9000) is cut along its first axis: all of it, and then nothing twice.
    assert len(file.find("wide").spans) == 1


@pytest.mark.parametrize("name", ["appended.ckpt", "appended.safetensors"])
def test_appended_values_are_read(made, expected, name):
    file = open_tensors(made / name)
    known = {key: expected["numbers"][key] for key in ("epoch_num", "step_num", "loss_scale")}
    assert {**known, **({"note": "grüße"} if name.endswith("ckpt") else {})} == file.extras
    assert file.find("note") is None
    progress = read_progress(file.extras)
    assert (progress.epoch, progress.step) == (3, 77)
    left = {tensor.name for tensor in select_weights(file.tensors)}
    assert left == {*expected["weights"], "lr", "flag"}


def test_model_checkpoint_says_its_step(made):
    file = open_tensors(made / "run" / "net-2_1.safetensors")
    assert read_progress(file.extras).step == 3
    assert {tensor.name for tensor in select_weights(file.tensors)} == {"weight", "bias"}


def test_numbers_of_old_releases_have_dims_zero(tmp_path, encode):
    path = tmp_path / "old.ckpt"
    path.write_bytes(encode("w", dims=(0,), content=b"\0\0\x80?") + encode("empty", dims=(0, 4), content=b""))
    scalar, empty = read_mindspore_ckpt(path).tensors
    assert (scalar.shape, scalar.size_bytes) == ((), 4)
    assert (empty.shape, empty.spans) == ((0, 4), ())


def test_checksum(made):
    file = read_mindspore_ckpt(made / "crc.ckpt")
    assert verify_crc(file)
    assert not verify_crc(read_mindspore_ckpt(made / "plain.ckpt"))


def test_an_encrypted_file_is_refused_by_name(made):
    with pytest.raises(FormatError, match=r"encrypted \(AES-GCM\)") as caught:
        read_mindspore_ckpt(made / "encrypted.ckpt")
    assert caught.value.reason == "CHECKPOINT_UNREADABLE"
    assert caught.value.metadata["file"] == str(made / "encrypted.ckpt")


def test_training_state_of_every_optimizer_is_recognised(made):
    networks = json.loads((made / "networks.json").read_text())
    assert len(networks) == 15
    for optimizer, names in networks.items():
        every = set(names["all"])
        assert {n for n in every if not is_training_state(n, every)} == set(names["weights"]), optimizer


@pytest.mark.parametrize(
    "name", ["linear.weight", "accum.weight", "moment.bias", "stat.mean", "prev.token", "model.momentum", "mu_net.w"]
)
def test_weights_of_cells_with_such_names_stay(name):
    assert not is_training_state(name, {name, "head.weight"})


def test_ambiguous_prefixes_need_their_weight():
    names = {"fc.w", "accum.fc.w", "stat.fc.w", "moments.fc.w", "linear.fc.w", "linear.w", "w"}
    state = {name for name in names if is_training_state(name, names)}
    assert state == {"accum.fc.w", "stat.fc.w", "moments.fc.w", "linear.fc.w"}
