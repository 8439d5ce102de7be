"""CheckpointService over the wire."""

from __future__ import annotations

from pathlib import Path

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2
from tests.service.stubs import TIMEOUT_S, Client, refused
from tests.support.service import ServiceProcess

from mindeval.formats.digest import digest_bytes, digest_hex
from mindeval.formats.manifest import FileEntry, Manifest, TensorEntry
from mindeval.v1 import checkpoint_pb2 as pb
from mindeval.v1 import evaluation_pb2

CONFIG = b"{}"


def entry(name: str, data: bytes, dtype: str = "U8", shape: tuple[int, ...] | None = None) -> TensorEntry:
    return TensorEntry(name, dtype, (len(data),) if shape is None else shape, len(data), digest_bytes(data))


def push(client: Client, tensors: dict[str, bytes | tuple[str, np.ndarray]], config: bytes = CONFIG) -> str:
    """Pushes a checkpoint, and returns the digest of its manifest."""
    entries = []
    for name, value in tensors.items():
        if isinstance(value, bytes):
            entries.append(entry(name, value))
            client.put_blob(value)
        else:
            dtype, array = value
            data = array.tobytes()
            entries.append(entry(name, data, dtype, array.shape))
            client.put_blob(data)
    client.put_blob(config)
    manifest = Manifest.of(entries, [FileEntry("config.json", len(config), digest_bytes(config))])
    return client.put_blob(manifest.to_bytes())


def register(client: Client, manifest: str, run: str = "", step: int = 0) -> pb.CreateCheckpointResponse:
    request = pb.CreateCheckpointRequest(parent=client.parent, manifest=manifest)
    if run:
        request.step.run = f"{client.parent}/runs/{run}"
        request.step.step = step
    return client.checkpoints.CreateCheckpoint(request, timeout=TIMEOUT_S)


def name_of(client: Client, manifest: str) -> str:
    return f"{client.parent}/checkpoints/{digest_hex(manifest)}"


def get(client: Client, manifest: str) -> pb.Checkpoint:
    request = pb.GetCheckpointRequest(name=name_of(client, manifest))
    return client.checkpoints.GetCheckpoint(request, timeout=TIMEOUT_S).checkpoint


def delete(client: Client, manifest: str) -> int:
    request = pb.DeleteCheckpointRequest(name=name_of(client, manifest))
    return client.checkpoints.DeleteCheckpoint(request, timeout=TIMEOUT_S).freed_bytes


def pin(client: Client, manifest: str, pinned: bool) -> pb.Checkpoint:
    request = pb.PinCheckpointRequest(name=name_of(client, manifest), pinned=pinned)
    return client.checkpoints.PinCheckpoint(request, timeout=TIMEOUT_S).checkpoint


def listed(client: Client, run: str = "", page_size: int = 0) -> list[pb.Checkpoint]:
    found: list[pb.Checkpoint] = []
    token = ""
    while True:
        request = pb.ListCheckpointsRequest(parent=client.parent, page_size=page_size, page_token=token, run=run)
        page = client.checkpoints.ListCheckpoints(request, timeout=TIMEOUT_S)
        assert not page_size or len(page.checkpoints) <= page_size
        found += page.checkpoints
        token = page.next_page_token
        if not token:
            return found


def diff(client: Client, base: str, other: str, timeout_s: float = TIMEOUT_S) -> pb.DiffCheckpointsResponse:
    request = pb.DiffCheckpointsRequest(base=name_of(client, base), other=name_of(client, other), with_values=True)
    return client.checkpoints.DiffCheckpoints(request, timeout=timeout_s)


def test_the_service_is_healthy(client: Client) -> None:
    request = health_pb2.HealthCheckRequest(service="mindeval.v1.CheckpointService")
    assert client.health.Check(request, timeout=TIMEOUT_S).status == health_pb2.HealthCheckResponse.SERVING


# Registration


def test_a_checkpoint_is_registered_once_and_collects_its_steps(client: Client) -> None:
    manifest = push(client, {"a": b"12345", "b": b"1234567890"})

    first = register(client, manifest, "r", 20)
    again = register(client, manifest, "r", 10)
    register(client, manifest, "q", 20)
    register(client, manifest, "r", 10)

    assert first.created
    assert not again.created
    checkpoint = get(client, manifest)
    assert checkpoint.name == name_of(client, manifest)
    assert checkpoint.manifest == manifest
    assert checkpoint.state == pb.CHECKPOINT_STATE_READY
    assert checkpoint.tensor_count == 2
    assert not checkpoint.pinned
    assert [(step.run.rpartition("/")[2], step.step) for step in checkpoint.steps] == [("q", 20), ("r", 10), ("r", 20)]
    assert checkpoint.create_time.seconds
    assert checkpoint.use_time.ToMicroseconds() > checkpoint.create_time.ToMicroseconds()


def test_an_evaluation_registers_its_checkpoint(client: Client) -> None:
    suite = client.suite("s")
    manifest = client.checkpoint("of an evaluation")
    with refused("CHECKPOINT_NOT_FOUND"):
        get(client, manifest)

    client.finished(client.create(client.spec(suite, manifest, run=f"{client.parent}/runs/r", step=7)).evaluation.name)

    checkpoint = get(client, manifest)
    assert [(step.run, step.step) for step in checkpoint.steps] == [(f"{client.parent}/runs/r", 7)]


def test_validate_only_registers_nothing(client: Client) -> None:
    suite = client.suite("s")
    manifest = client.checkpoint("only looked at")

    client.create(client.spec(suite, manifest), validate_only=True)

    with refused("CHECKPOINT_NOT_FOUND"):
        get(client, manifest)


def test_what_cannot_be_registered(client: Client) -> None:
    manifest = push(client, {"a": b"weights"})
    lacking = Manifest.of([entry("a", b"never sent")]).to_bytes()

    with refused("INVALID_FIELD"):
        client.checkpoints.CreateCheckpoint(pb.CreateCheckpointRequest(parent=client.parent), timeout=TIMEOUT_S)
    with refused("INVALID_FIELD"):
        register(client, "sha256:00")
    with refused("INVALID_FIELD"):
        register(client, manifest, "r", -1)
    with refused("INVALID_FIELD"):
        step = pb.CheckpointStep(run="projects/another/runs/r", step=1)
        request = pb.CreateCheckpointRequest(parent=client.parent, manifest=manifest, step=step)
        client.checkpoints.CreateCheckpoint(request, timeout=TIMEOUT_S)
    with refused("BLOB_MISSING"):
        register(client, digest_bytes(b"no such manifest"))
    with refused("BLOB_MISSING") as refusals:
        register(client, client.put_blob(lacking))
    assert refusals[0].metadata["missing_count"] == "1"
    with refused("MANIFEST_INVALID"):
        register(client, client.put_blob(b"not a manifest"))
    assert listed(client) == []


def test_a_checkpoint_of_another_project_is_not_found(client: Client, channel: grpc.Channel) -> None:
    manifest = push(client, {"a": b"weights"})
    register(client, manifest)
    other = Client(channel, f"{client.project}-other")

    with refused("CHECKPOINT_NOT_FOUND"):
        get(other, manifest)
    with refused("CHECKPOINT_NOT_FOUND"):
        pin(other, manifest, True)
    with refused("CHECKPOINT_NOT_FOUND"):
        delete(other, manifest)
    with refused("INVALID_FIELD"):
        other.checkpoints.GetCheckpoint(
            pb.GetCheckpointRequest(name=f"{other.parent}/checkpoints/x"), timeout=TIMEOUT_S
        )


# Listing


def test_checkpoints_are_listed_by_use_and_by_step(client: Client) -> None:
    manifests = [push(client, {"a": bytes([i])}) for i in range(5)]
    for step, manifest in zip((30, 10, 20, 50, 40), manifests):
        register(client, manifest, "r", step)
    register(client, manifests[1], "other", 1)

    by_use = [checkpoint.manifest for checkpoint in listed(client, page_size=2)]
    by_step = [checkpoint.manifest for checkpoint in listed(client, f"{client.parent}/runs/r", page_size=2)]

    assert by_use == [manifests[i] for i in (1, 4, 3, 2, 0)]
    assert by_step == [manifests[i] for i in (1, 2, 0, 4, 3)]
    assert [c.manifest for c in listed(client, f"{client.parent}/runs/other")] == [manifests[1]]
    assert listed(client, f"{client.parent}/runs/none") == []


def test_listing_refuses_what_it_does_not_understand(client: Client) -> None:
    with refused("INVALID_FIELD"):
        listed(client, "projects/another/runs/r")
    with refused("PAGE_TOKEN_INVALID"):
        request = pb.ListCheckpointsRequest(parent=client.parent, page_token="x")
        client.checkpoints.ListCheckpoints(request, timeout=TIMEOUT_S)


# Sharing and lifetime


def test_own_bytes_are_those_that_nothing_else_shares(client: Client) -> None:
    backbone = b"b" * 1000
    first = push(client, {"backbone": backbone, "head": b"1" * 10})
    second = push(client, {"backbone": backbone, "head": b"2" * 20})
    register(client, first)
    alone = get(client, first)
    register(client, second)

    shared = get(client, first)
    manifest_size = len(client.read_blob(first))
    assert alone.size_bytes == alone.own_size_bytes == 1000 + 10 + len(CONFIG) + manifest_size
    assert shared.size_bytes == alone.size_bytes
    assert shared.own_size_bytes == 10 + manifest_size
    assert get(client, second).own_size_bytes == 20 + len(client.read_blob(second))


def test_deleting_frees_what_nothing_else_needs(client: Client) -> None:
    backbone, dataset = b"b" * 1000, b"ok\none two three\nfour five\n"
    client.dataset("d")  # Its file is the tensor "data" as well.
    first = push(client, {"backbone": backbone, "head": b"1" * 10, "data": dataset})
    second = push(client, {"backbone": backbone, "head": b"2" * 20})
    register(client, first, "r", 1)
    register(client, second)
    own = 10 + len(client.read_blob(first))

    assert delete(client, first) == own

    with refused("CHECKPOINT_NOT_FOUND"):
        get(client, first)
    with refused("CHECKPOINT_NOT_FOUND"):
        delete(client, first)
    assert client.missing(first, digest_bytes(b"1" * 10)) == [first, digest_bytes(b"1" * 10)]
    assert client.missing(digest_bytes(backbone), digest_bytes(dataset)) == []
    assert get(client, second).state == pb.CHECKPOINT_STATE_READY
    assert listed(client, f"{client.parent}/runs/r") == []

    register(client, push(client, {"backbone": backbone, "head": b"1" * 10, "data": dataset}))
    assert get(client, first).steps == []


def test_results_outlive_their_checkpoint(client: Client) -> None:
    suite = client.suite("s")
    manifest = client.checkpoint("soon forgotten")
    name = client.create(client.spec(suite, manifest)).evaluation.name
    client.finished(name)

    assert delete(client, manifest) > 0

    assert client.get(name).state == evaluation_pb2.EVALUATION_STATE_SUCCEEDED
    with refused("BLOB_MISSING"):
        client.create(client.spec(suite, manifest))


def test_what_is_pinned_or_needed_is_not_deleted(client: Client, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    suite = client.suite("s", f"gate {gate}")
    manifest = client.checkpoint("needed")
    name = client.create(client.spec(suite, manifest)).evaluation.name
    client.working(name)

    with refused("CHECKPOINT_IN_USE") as refusals:
        delete(client, manifest)
    assert name in refusals[0].message
    gate.touch()
    client.finished(name)
    assert pin(client, manifest, True).pinned
    with refused("CHECKPOINT_IN_USE"):
        delete(client, manifest)
    assert not pin(client, manifest, False).pinned
    assert delete(client, manifest) > 0
    with refused("CHECKPOINT_NOT_FOUND"):
        pin(client, manifest, True)


def test_a_lost_blob_makes_a_checkpoint_missing(client: Client, service: ServiceProcess) -> None:
    base, other = push(client, {"w": ("F32", np.ones(3, "<f4"))}), push(client, {"w": ("F32", np.zeros(3, "<f4"))})
    for manifest in (base, other):
        register(client, manifest)
    data = np.zeros(3, "<f4").tobytes()
    digits = digest_hex(digest_bytes(data))
    (service.data_dir / "blobs" / client.project / digits[:2] / digits).unlink()

    with refused("BLOB_MISSING"):
        diff(client, base, other)

    assert get(client, other).state == pb.CHECKPOINT_STATE_MISSING
    assert get(client, base).state == pb.CHECKPOINT_STATE_READY
    with refused("BLOB_MISSING"):
        register(client, other)
    client.put_blob(data)
    assert get(client, other).state == pb.CHECKPOINT_STATE_READY
    assert diff(client, base, other).differences[0].relative_change == 1.0


# Differences


def as_bf16(values: np.ndarray) -> np.ndarray:
    return (values.astype("<f4").view("<u4") >> 16).astype("<u2")


def from_bf16(values: np.ndarray) -> np.ndarray:
    return (values.astype("<u4") << 16).view("<f4")


def test_differences_are_those_that_numpy_finds(client: Client) -> None:
    random = np.random.default_rng(7)
    # More than one chunk, and not a whole number of them.
    large = random.normal(size=(3, 100_003)).astype("<f4")
    changed = large + np.where(random.random(large.shape) < 0.1, 1e-3, 0).astype("<f4")
    half, half_after = as_bf16(random.normal(size=300)), as_bf16(random.normal(size=300))
    double = np.array([np.inf, 1.0, -2.0])
    base = push(
        client,
        {
            "same": b"same",
            "large": ("F32", large),
            "half": ("BF16", half),
            "double": ("F64", double),
            "counts": ("I32", np.arange(3, dtype="<i4")),
            "reshaped": ("F32", large[:2, :2].copy()),
            "gone": b"1234",
            "zeros": ("F16", np.zeros(4, "<f2")),
        },
    )
    other = push(
        client,
        {
            "same": b"same",
            "large": ("F32", changed),
            "half": ("BF16", half_after),
            "double": ("F64", np.array([np.inf, 1.5, -2.0])),
            "counts": ("I32", np.arange(3, dtype="<i4") + 1),
            "reshaped": ("F32", large[:2, :2].reshape(4).copy()),
            "new": b"123",
            "zeros": ("F16", np.ones(4, "<f2")),
        },
    )
    register(client, base)
    register(client, other)

    response = diff(client, base, other)

    found = {difference.name: difference for difference in response.differences}
    assert [difference.name for difference in response.differences] == sorted(found)
    assert (response.equal_count, response.different_count) == (1, 8)
    assert {name: pb.TensorChange.Name(d.change).rpartition("_")[2] for name, d in found.items()} == {
        "large": "VALUES",
        "half": "VALUES",
        "double": "VALUES",
        "zeros": "VALUES",
        "counts": "VALUES",
        "reshaped": "SHAPE",
        "gone": "REMOVED",
        "new": "ADDED",
    }
    for name, before, after in (
        ("large", large, changed),
        ("half", from_bf16(half), from_bf16(half_after)),
    ):
        change = after.astype(np.float64) - before.astype(np.float64)
        expected = np.linalg.norm(change) / np.linalg.norm(before.astype(np.float64))
        assert found[name].relative_change == pytest.approx(expected, rel=1e-12)
        assert found[name].largest_difference == np.abs(change).max()
    assert (found["double"].relative_change, found["double"].largest_difference) == (0.0, 0.5)
    assert (found["zeros"].relative_change, found["zeros"].largest_difference) == (np.inf, 1.0)
    for name in ("counts", "reshaped", "gone", "new"):
        assert not found[name].HasField("relative_change")
        assert not found[name].HasField("largest_difference")
    assert (found["gone"].size_bytes, found["new"].size_bytes, found["large"].size_bytes) == (4, 3, large.nbytes)


def test_a_difference_without_values_reads_no_tensor(client: Client) -> None:
    base, other = push(client, {"a": ("F32", np.ones(2, "<f4"))}), push(client, {"a": ("F32", np.zeros(2, "<f4"))})
    register(client, base)
    register(client, other)

    request = pb.DiffCheckpointsRequest(base=name_of(client, base), other=name_of(client, other))
    response = client.checkpoints.DiffCheckpoints(request, timeout=TIMEOUT_S)

    assert [(d.name, d.HasField("relative_change")) for d in response.differences] == [("a", False)]
    assert diff(client, base, base).differences == []


def test_differences_need_two_checkpoints_of_one_project(client: Client) -> None:
    manifest = push(client, {"a": b"weights"})
    register(client, manifest)

    with refused("CHECKPOINT_NOT_FOUND"):
        diff(client, manifest, digest_bytes(b"no such checkpoint"))
    with refused("INVALID_FIELD"):
        request = pb.DiffCheckpointsRequest(
            base=name_of(client, manifest), other=f"projects/another/checkpoints/{digest_hex(manifest)}"
        )
        client.checkpoints.DiffCheckpoints(request, timeout=TIMEOUT_S)
