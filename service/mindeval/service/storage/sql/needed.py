"""Which blobs must stay, as queries within a transaction."""

from __future__ import annotations

import json
from collections.abc import Sequence

from sqlalchemy import Connection, or_, select

from mindeval.service.storage.records import State
from mindeval.service.storage.sql.schema import checkpoint_blobs, checkpoints, evaluations, versions


def needed_by_checkpoints(connection: Connection, project: str, digests: Sequence[str]) -> set[str]:
    """Those of the blobs that a pinned checkpoint, or one of a queued or running evaluation, consists of."""
    pinned = select(checkpoints.c.manifest).where(checkpoints.c.project == project, checkpoints.c.pinned.is_(True))
    awaited = select(evaluations.c.checkpoint).where(
        evaluations.c.project == project, evaluations.c.state.in_((State.QUEUED, State.RUNNING, State.CANCELLING))
    )
    of_checkpoints = select(checkpoint_blobs.c.digest).where(
        checkpoint_blobs.c.project == project,
        checkpoint_blobs.c.digest.in_(digests),
        or_(checkpoint_blobs.c.manifest.in_(pinned), checkpoint_blobs.c.manifest.in_(awaited)),
    )
    needed = set(connection.execute(of_checkpoints).scalars())
    # The manifest itself, also of a checkpoint that nobody has registered.
    needed.update(set(connection.execute(awaited.where(evaluations.c.checkpoint.in_(digests))).scalars()))
    needed.update(set(connection.execute(pinned.where(checkpoints.c.manifest.in_(digests))).scalars()))
    return needed


def needed_by_datasets(connection: Connection, project: str) -> set[str]:
    """Files of all registered versions of datasets."""
    query = select(versions.c.content).where(versions.c.project == project, versions.c.collection == "datasets")
    return {file["digest"] for content in connection.execute(query).scalars() for file in json.loads(content)["files"]}
