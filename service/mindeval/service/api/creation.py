"""From a request to an evaluation that can be created: everything checked, every name resolved."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable

from mindeval.formats.digest import digest_bytes
from mindeval.formats.names import parse_project
from mindeval.service.api import checks
from mindeval.service.api.checkpoint_source import check_source
from mindeval.service.api.registry import find_version, task_dataset
from mindeval.service.build import evaluator_build
from mindeval.service.errors import FieldError
from mindeval.service.runtime.task_settings import check_task
from mindeval.service.scheduling.jobs import require_blobs
from mindeval.service.storage.access import StoreAccess
from mindeval.service.storage.library import BlobLibrary
from mindeval.service.storage.records import CheckpointContent, ConflictPolicy, NewEvaluation
from mindeval.v1 import evaluation_pb2 as pb

MAX_PARAMETERS = 32
MAX_PARAMETER_LENGTH = 256
MAX_TIMEOUT_S = 30 * 86_400.0

Request = pb.CreateEvaluationRequest | pb.EvaluateCheckpointRequest
FindCheckpoint = Callable[[str, pb.CheckpointSource], Awaitable[CheckpointContent | None]]

_POLICIES = {
    pb.CONFLICT_POLICY_UNSPECIFIED: ConflictPolicy.USE_EXISTING,
    pb.CONFLICT_POLICY_USE_EXISTING: ConflictPolicy.USE_EXISTING,
    pb.CONFLICT_POLICY_FAIL: ConflictPolicy.FAIL,
    pb.CONFLICT_POLICY_RERUN: ConflictPolicy.RERUN,
}


def payload_hash(request: Request) -> str:
    """Of everything in a request but its id, so that both ways to create recognise each other's."""
    policy = request.conflict_policy or pb.CONFLICT_POLICY_USE_EXISTING
    canonical = pb.CreateEvaluationRequest(parent=request.parent, spec=request.spec, conflict_policy=policy)
    return digest_bytes(canonical.SerializeToString(deterministic=True))


def conflict_policy(request: Request) -> ConflictPolicy:
    """The policy asked for.

    Raises:
        ServiceError: INVALID_FIELD.
    """
    if request.conflict_policy not in _POLICIES:
        raise FieldError("conflict_policy", f"{int(request.conflict_policy)} is none of ConflictPolicy")
    return _POLICIES[request.conflict_policy]


async def resolve(
    request: Request, access: StoreAccess, library: BlobLibrary, find_checkpoint: FindCheckpoint
) -> NewEvaluation:
    """Checks a request and resolves its names.

    Args:
        request: The request.
        access: The database.
        library: The blobs.
        find_checkpoint: Finds the checkpoint in a project; called once everything else was found to be right. None
            from it leaves the digest of the checkpoint open.

    Raises:
        MindEvalError: INVALID_FIELD, SUITE_NOT_FOUND, DATASET_NOT_FOUND, UNKNOWN_TASK_TYPE, UNKNOWN_METRIC,
            BLOB_MISSING, and what `find_checkpoint` raises.
    """
    project = parse_project(request.parent, "parent")
    spec = request.spec
    policy = conflict_policy(request)
    _check_scalars(spec)
    run = checks.name_in(project, spec.run, "runs", "spec.run").id if spec.run else ""
    check_source(spec.checkpoint, "spec.checkpoint")
    suite = await find_version(access, checks.name_in(project, spec.suite, "suites", "spec.suite"))
    datasets = []
    for i, task in enumerate(suite.content["tasks"]):
        # The suite may have been registered with an older release that knew other types and metrics.
        check_task(task["type"], task["metrics"], task["settings"])
        name = task_dataset(project, task["dataset"], f"tasks[{i}].dataset")
        dataset = await find_version(access, name)
        sizes = {file["digest"]: file["size_bytes"] for file in dataset.content["files"]}
        await require_blobs(library, project, sizes, f"dataset {dataset.name}")
        datasets.append(dataset.name)
    content = await find_checkpoint(project, spec.checkpoint)
    checkpoint = content.manifest if content is not None else ""
    parameters = dict(spec.parameters)
    natural_key = [project, run, spec.step, suite.name, datasets, checkpoint, sorted(parameters.items())]
    return NewEvaluation(
        project=project,
        request_id=checks.request_id(request.request_id),
        payload_hash=payload_hash(request),
        suite=spec.suite,
        suite_version=suite.name,
        dataset_versions=tuple(datasets),
        checkpoint=checkpoint,
        evaluator_build=evaluator_build(),
        run=run,
        step=spec.step,
        epoch=spec.epoch,
        timeout_s=_timeout_s(spec),
        parameters=parameters,
        natural_key=digest_bytes(json.dumps(natural_key).encode("utf-8")) if run else "",
        conflict_policy=policy,
        content=content,
        checkpoint_uri=spec.checkpoint.uri,
    )


def _check_scalars(spec: pb.EvaluationSpec) -> None:
    checks.whole_number(spec.step, "spec.step")
    checks.finite(spec.epoch, "spec.epoch")
    _timeout_s(spec)
    if len(spec.parameters) > MAX_PARAMETERS:
        raise FieldError("spec.parameters", f"has {len(spec.parameters)} pairs; at most {MAX_PARAMETERS} are taken")
    for key, value in spec.parameters.items():
        field = f"spec.parameters[{key[:40]!r}]"
        if not checks.text(key, field, MAX_PARAMETER_LENGTH):
            raise FieldError("spec.parameters", "has an empty key")
        checks.text(value, field, MAX_PARAMETER_LENGTH)


def _timeout_s(spec: pb.EvaluationSpec) -> float | None:
    if not spec.HasField("timeout"):
        return None
    timeout_s = spec.timeout.seconds + spec.timeout.nanos / 1e9
    if not 0 < timeout_s <= MAX_TIMEOUT_S:
        raise FieldError("spec.timeout", f"is {timeout_s:g} s; must be more than 0 and at most {MAX_TIMEOUT_S:g} s")
    return timeout_s
