"""Checkpoints that are named by URI: what may be named, what is read, and what changes meanwhile."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.service.conftest import QUICK
from tests.service.stubs import TIMEOUT_S, Client, refused
from tests.service.test_checkpoints import get, listed, push
from tests.support import containers
from tests.support.containers import CONFIG, weights, write_ckpt, write_hugging_face, write_ranks, write_shards
from tests.support.s3 import ENVIRONMENT, S3Server
from tests.support.service import FAULTY_RUNNER, ServiceProcess

from mindeval.formats.manifest import Manifest
from mindeval.v1 import checkpoint_pb2, evaluation_pb2

DTYPES = {"f2": "F16", "f4": "F32", "i8": "I64"}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Storage that the service shares, with a folder a team."""
    root = tmp_path_factory.mktemp("shared")
    for name in ("team-a", "team-b", "team-a-evil", "everyone"):
        (root / name).mkdir()
    return root


@pytest.fixture(scope="module")
def service(shared: Path, s3: S3Server) -> Iterator[ServiceProcess]:
    roots = {
        "team-a": [f"file://{shared}/team-a", "s3://models/team-a"],
        "team-b": [f"file://{shared}/team-b", "s3://models/team-b/one.safetensors"],
        "*": [f"file://{shared}/everyone"],
    }
    environment = {**ENVIRONMENT, "MINDEVAL_STORAGE_ROOTS": json.dumps(roots)}
    with ServiceProcess(
        runner_command=FAULTY_RUNNER, env=environment, s3_endpoint_url=s3.endpoint_url, **QUICK
    ) as process:
        yield process


@pytest.fixture
def team_a(channel: grpc.Channel) -> Client:
    return Client(channel, "team-a")


@pytest.fixture
def folder(shared: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A folder of team A for one test."""
    path = shared / "team-a" / request.node.name.partition("[")[0]
    path.mkdir(exist_ok=True)
    yield path
    shutil.rmtree(path)


def load(client: Client, uri: str | Path) -> checkpoint_pb2.CreateCheckpointResponse:
    text = f"file://{uri}" if isinstance(uri, Path) else uri
    request = checkpoint_pb2.CreateCheckpointRequest(parent=client.parent, uri=text)
    return client.checkpoints.CreateCheckpoint(request, timeout=TIMEOUT_S)


def pushed_manifest(client: Client, seed: int) -> str:
    """Pushes weights as a client does, and returns the manifest's digest."""
    tensors = {name: (DTYPES[value.dtype.str[1:]], value) for name, value in weights(seed).items()}
    return push(client, tensors, CONFIG)


# The same as a push


@pytest.mark.parametrize("kind", ["hugging_face", "shards", "ckpt", "ranks"])
def test_every_container_gives_the_manifest_of_a_push(folder: Path, team_a: Client, kind: str) -> None:
    seed = ["hugging_face", "shards", "ckpt", "ranks"].index(kind)
    path = {
        "hugging_face": lambda: write_hugging_face(folder / "hf", weights(seed)),
        "shards": lambda: write_shards(folder / "shards", weights(seed)),
        "ckpt": lambda: write_ckpt(containers.write_config(folder / "ckpt") / "net-1_10.ckpt", weights(seed)),
        "ranks": lambda: write_ranks(folder / "ranks", weights(seed)),
    }[kind]()

    response = load(team_a, path)

    checkpoint = response.checkpoint
    assert response.created
    assert checkpoint.state == checkpoint_pb2.CHECKPOINT_STATE_READY
    assert checkpoint.tensor_count == len(weights())
    manifest = Manifest.from_bytes(team_a.read_blob(checkpoint.manifest))
    assert [file.path for file in manifest.files] == ["config.json"]
    for tensor in manifest.tensors:
        assert team_a.read_blob(tensor.digest) == weights(seed)[tensor.name].tobytes()
    assert checkpoint.manifest == pushed_manifest(team_a, seed)
    assert not load(team_a, path).created


def test_an_evaluation_by_uri(folder: Path, team_a: Client) -> None:
    path = write_hugging_face(folder, weights(10))
    suite = team_a.suite("by-uri")
    source = evaluation_pb2.CheckpointSource(uri=f"file://{path}")
    run = f"{team_a.parent}/runs/by-uri"
    spec = evaluation_pb2.EvaluationSpec(suite=suite, checkpoint=source, run=run, step=3)

    seen = team_a.create(spec, validate_only=True).evaluation
    assert (seen.spec.checkpoint.uri, seen.resolved.checkpoint) == (source.uri, "")
    assert listed(team_a, run) == []
    response = team_a.create(spec)
    evaluation = team_a.finished(response.evaluation.name)

    assert response.created
    assert evaluation.state == evaluation_pb2.EVALUATION_STATE_SUCCEEDED
    assert evaluation.spec.checkpoint.uri == source.uri
    (checkpoint,) = listed(team_a, run)
    assert evaluation.resolved.checkpoint == checkpoint.manifest == pushed_manifest(team_a, 10)
    assert [step.step for step in checkpoint.steps] == [3]
    again = team_a.create(spec)
    assert (again.created, again.evaluation.name) == (False, evaluation.name)
    assert team_a.create(spec, validate_only=True).evaluation.name == evaluation.name


def test_a_changed_folder_is_another_checkpoint(folder: Path, team_a: Client) -> None:
    first = load(team_a, write_hugging_face(folder, weights(20))).checkpoint
    second = load(team_a, write_hugging_face(folder, weights(21))).checkpoint
    assert first.manifest != second.manifest
    assert second.manifest == pushed_manifest(team_a, 21)


def test_a_forgotten_checkpoint_is_read_again(folder: Path, team_a: Client) -> None:
    path = write_hugging_face(folder, weights(22))
    checkpoint = load(team_a, path).checkpoint
    team_a.checkpoints.DeleteCheckpoint(checkpoint_pb2.DeleteCheckpointRequest(name=checkpoint.name), timeout=TIMEOUT_S)

    again = load(team_a, path)

    assert again.created
    assert again.checkpoint.manifest == checkpoint.manifest
    assert get(team_a, checkpoint.manifest).state == checkpoint_pb2.CHECKPOINT_STATE_READY


# What may be named


def test_without_roots_nothing_may_be_named(client: Client, shared: Path) -> None:
    with refused("URI_FORBIDDEN") as refusals:
        load(client, shared / "team-a" / "x")
    assert refusals[0].code == grpc.StatusCode.PERMISSION_DENIED
    assert "storage_roots" in refusals[0].message


def test_roots_for_every_project(client: Client, shared: Path) -> None:
    path = write_hugging_face(shared / "everyone" / "model", weights(30))
    assert load(client, path).created


@pytest.mark.parametrize(
    "uri",
    [
        "file://{shared}/team-a/../team-b/secret",
        "file://{shared}/team-a/./secret",
        "file://{shared}/team-a//secret",
        "file://{shared}/team-a/secret?x=1",
        "file://{shared}/team-a/secret#x",
        "file://{shared}/team-a/%2e%2e/team-b/secret",
        "file://{shared}/team-a/secret%00",
        "file://{shared}/team-a\\..\\team-b/secret",
        "file://localhost{shared}/team-a/secret",
        "file://user@host{shared}/team-a/secret",
        "file://{shared}/team-b/secret",
        "file://{shared}/team-a-evil/secret",
        "file://{shared}",
        "file:///etc/passwd",
        "file:///",
        "FILE://{shared}/team-a/secret",
        "http://127.0.0.1/team-a",
        "https://models/team-a",
        "ftp://models/team-a",
        "s3://secret/team-a",
        "s3://models/team-a-evil/x",
        "s3://models/team-b/one.safetensors",
        "s3://models/team-a/../team-b/one.safetensors",
        "s3://models",
        "s3:///models/team-a",
        "s3://user:key@models/team-a/x",
        "s3://Models/team-a/x",
    ],
)
def test_what_may_not_be_named(team_a: Client, shared: Path, uri: str) -> None:
    write_hugging_face(shared / "team-b" / "secret", weights(31))
    write_hugging_face(shared / "team-a-evil" / "secret", weights(31))
    with refused("URI_FORBIDDEN"):
        load(team_a, uri.format(shared=shared))
    source = evaluation_pb2.CheckpointSource(uri=uri.format(shared=shared))
    with refused("URI_FORBIDDEN"):
        team_a.create(evaluation_pb2.EvaluationSpec(suite=team_a.suite("s"), checkpoint=source))


@pytest.mark.parametrize(
    "uri", ["", "/shared/team-a/x", "file:/shared/team-a", "s3", "file:///a\nb", "file:///" + "a" * 3000]
)
def test_what_is_no_uri(team_a: Client, uri: str) -> None:
    with refused("INVALID_FIELD"):
        load(team_a, uri)


def test_links_out_of_the_root_are_not_followed(folder: Path, team_a: Client, shared: Path) -> None:
    secret = write_hugging_face(shared / "team-b" / "links", weights(32))
    (folder / "whole").symlink_to(secret)
    (folder / "weights").mkdir()
    (folder / "weights" / "config.json").write_bytes(CONFIG)
    (folder / "weights" / "model.safetensors").symlink_to(secret / "model.safetensors")
    (folder / "config").mkdir()
    shutil.copy(secret / "model.safetensors", folder / "config")
    (folder / "config" / "config.json").symlink_to(secret / "config.json")

    with refused("URI_FORBIDDEN"):
        load(team_a, folder / "whole")
    with refused("URI_FORBIDDEN"):
        load(team_a, folder / "whole" / "model.safetensors")
    with refused("CHECKPOINT_UNREADABLE"):
        load(team_a, folder / "weights")
    with refused("URI_FORBIDDEN"):
        load(team_a, folder / "config")


def test_links_within_the_root_are_followed(folder: Path, team_a: Client) -> None:
    write_hugging_face(folder / "run" / "step-1", weights(33))
    (folder / "latest").symlink_to(folder / "run" / "step-1")
    (folder / "config.json").write_bytes(CONFIG)
    assert load(team_a, folder / "latest").checkpoint.manifest == pushed_manifest(team_a, 33)


# What cannot be read


def test_what_is_not_there_or_may_not_be_read(folder: Path, team_a: Client) -> None:
    with refused("URI_UNREADABLE") as refusals:
        load(team_a, folder / "none")
    assert refusals[0].metadata["uri"] == f"file://{folder}/none"
    assert "no such file" in refusals[0].message


def test_what_is_no_checkpoint(folder: Path, team_a: Client) -> None:
    with refused("CHECKPOINT_UNREADABLE"):
        load(team_a, folder)
    path = write_hugging_face(folder / "cut", weights(41))
    file = path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with refused("CHECKPOINT_TRUNCATED") as refusals:
        load(team_a, path)
    assert refusals[0].metadata["file"] == str(file)
    assert refusals[0].metadata["tensor"]
    file.write_bytes(b"\x80\x04 pickle")
    with refused("CHECKPOINT_UNREADABLE"):
        load(team_a, path)
    os.mkfifo(folder / "pipe.ckpt")
    with refused("CHECKPOINT_UNREADABLE"):
        load(team_a, folder / "pipe.ckpt")


def test_what_says_nothing_about_its_model(folder: Path, team_a: Client) -> None:
    path = write_hugging_face(folder, weights(42))
    (path / "config.json").unlink()
    with refused("MODEL_UNSUPPORTED"):
        load(team_a, path)


def test_a_wrong_checksum(folder: Path, team_a: Client) -> None:
    file = write_ckpt(containers.write_config(folder) / "net.ckpt", weights(43))
    data = bytearray(file.read_bytes())
    data[2000] ^= 1
    file.write_bytes(data)
    with refused("CHECKPOINT_CORRUPT"):
        load(team_a, file)


# Object stores


@pytest.mark.parametrize("kind", ["hugging_face", "shards", "ckpt", "ranks", "file of a rank"])
def test_an_object_store_is_read_like_a_folder(tmp_path: Path, team_a: Client, bucket: Any, kind: str) -> None:
    seed = 50 + ["hugging_face", "shards", "ckpt", "ranks", "file of a rank"].index(kind)
    name = kind.replace(" ", "-")
    path = {
        "hugging_face": lambda: write_hugging_face(tmp_path / name, weights(seed)),
        "shards": lambda: write_shards(tmp_path / name, weights(seed)),
        "ckpt": lambda: write_ckpt(containers.write_config(tmp_path / name) / "net-1_10.ckpt", weights(seed)),
        "ranks": lambda: write_ranks(tmp_path / name, weights(seed)),
        "file of a rank": lambda: (
            write_ranks(tmp_path / name, weights(seed)) / "rank_1" / "net_rank_1-network-1_10.ckpt"
        ),
    }[kind]()
    bucket.put(str(tmp_path / name), f"models/team-a/{name}", recursive=True)
    uri = f"s3://models/team-a/{path.relative_to(tmp_path)}"

    response = load(team_a, uri)

    assert response.created
    assert response.checkpoint.manifest == pushed_manifest(team_a, seed)
    assert not load(team_a, uri).created


def test_objects_that_cannot_be_read(tmp_path: Path, team_a: Client, bucket: Any, service: ServiceProcess) -> None:
    with refused("URI_UNREADABLE"):
        load(team_a, "s3://models/team-a/none")
    path = write_hugging_face(tmp_path / "cut", weights(60))
    file = path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    bucket.put(str(path), "models/team-a/cut", recursive=True)
    with refused("CHECKPOINT_TRUNCATED") as refusals:
        load(team_a, "s3://models/team-a/cut/")
    assert refusals[0].metadata["file"] == "s3://models/team-a/cut/model.safetensors"
    assert str(service.data_dir) not in refusals[0].message
    assert list((service.data_dir / "imports").iterdir()) == []


def test_an_object_as_root_shows_nothing_beside_it(tmp_path: Path, channel: grpc.Channel, bucket: Any) -> None:
    path = write_hugging_face(tmp_path / "x", weights(61))
    bucket.put_file(str(path / "model.safetensors"), "models/team-b/one.safetensors")
    bucket.put_file(str(path / "config.json"), "models/team-b/config.json")
    with refused("MODEL_UNSUPPORTED"):
        load(Client(channel, "team-b"), "s3://models/team-b/one.safetensors")
