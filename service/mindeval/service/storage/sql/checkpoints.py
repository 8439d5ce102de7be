"""Checkpoints, the blobs they need, the steps they are, and what URIs were read into."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Select, and_, delete, exists, func, insert, or_, select, update
from sqlalchemy.dialects.sqlite import insert as upsert
from typing_extensions import override

from mindeval.service.errors import BlobsMissingError, ServiceError
from mindeval.service.storage.records import (
    BlobRecord,
    CheckpointContent,
    CheckpointQuery,
    CheckpointRecord,
    CheckpointStepRecord,
    State,
    now_us,
)
from mindeval.service.storage.sql.blobs import blob_record, remove_blobs
from mindeval.service.storage.sql.database import Database
from mindeval.service.storage.sql.needed import needed_by_checkpoints, needed_by_datasets
from mindeval.service.storage.sql.runs import ensure_run
from mindeval.service.storage.sql.schema import (
    blobs,
    checkpoint_blobs,
    checkpoint_steps,
    checkpoints,
    evaluations,
    uri_imports,
)
from mindeval.service.storage.store import Checkpoints

# Databases bound the number of parameters of a statement.
_DIGESTS_A_QUERY = 500
_NEEDING_STATES = (State.QUEUED, State.RUNNING, State.CANCELLING)


def register_checkpoint(
    connection: Connection, project: str, content: CheckpointContent, step: CheckpointStepRecord | None
) -> bool:
    """Makes a checkpoint known within a transaction, and tells whether it was new; see `Checkpoints.register`."""
    created = not touch_checkpoint(connection, project, content.manifest)
    if created:
        _insert(connection, project, content)
    missing = list(connection.execute(_missing_digests(project, content.manifest)).scalars())
    if missing:
        raise BlobsMissingError("the checkpoint", missing)
    if step is not None:
        ensure_run(connection, project, step.run)
        connection.execute(
            upsert(checkpoint_steps)
            .values(project=project, run=step.run, step=step.step, manifest=content.manifest)
            .on_conflict_do_nothing()
        )
    return created


def touch_checkpoint(connection: Connection, project: str, manifest: str) -> bool:
    """Notes within a transaction that a checkpoint is used now, and tells whether it is known."""
    statement = update(checkpoints).where(*_is(checkpoints, project, manifest)).values(use_us=now_us())
    return connection.execute(statement).rowcount > 0


class SqlCheckpoints(Checkpoints):
    """See `Checkpoints`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @override
    def register(
        self, project: str, content: CheckpointContent, step: CheckpointStepRecord | None = None
    ) -> tuple[CheckpointRecord, bool]:
        with self._database.writing() as tx:
            created = register_checkpoint(tx.connection, project, content, step)
            record = _one(tx.connection, project, content.manifest)
        assert record is not None
        return record, created

    @override
    def get(self, project: str, manifest: str) -> CheckpointRecord | None:
        with self._database.reading() as connection:
            return _one(connection, project, manifest)

    @override
    def page(self, query: CheckpointQuery) -> list[CheckpointRecord]:
        statement = _of_run(query) if query.run else _by_use(query)
        with self._database.reading() as connection:
            return _records(connection, query.project, connection.execute(statement.limit(query.limit)).all())

    @override
    def pin(self, project: str, manifest: str, pinned: bool) -> CheckpointRecord | None:
        with self._database.writing() as tx:
            tx.connection.execute(update(checkpoints).where(*_is(checkpoints, project, manifest)).values(pinned=pinned))
            return _one(tx.connection, project, manifest)

    @override
    def remove(self, project: str, manifest: str) -> list[BlobRecord] | None:
        with self._database.writing() as tx:
            record = _one(tx.connection, project, manifest)
            if record is None:
                return None
            if record.pinned:
                raise _in_use(record, "it is pinned; let go of it first (PinCheckpoint)")
            needed_by = tx.connection.execute(
                select(evaluations.c.id).where(
                    evaluations.c.project == project,
                    evaluations.c.checkpoint == manifest,
                    evaluations.c.state.in_(_NEEDING_STATES),
                )
            ).scalar()
            if needed_by is not None:
                raise _in_use(record, f"projects/{project}/evaluations/{needed_by} needs it; wait for it, or cancel it")
            own = select(checkpoint_blobs.c.digest).where(*_is(checkpoint_blobs, project, manifest), ~_is_shared())
            digests = list(tx.connection.execute(own).scalars())
            for table in (uri_imports, checkpoint_steps, checkpoint_blobs, checkpoints):
                tx.connection.execute(delete(table).where(*_is(table, project, manifest)))
            return _remove_unneeded(tx.connection, project, digests)

    @override
    def touch(self, project: str, manifest: str) -> None:
        with self._database.writing() as tx:
            touch_checkpoint(tx.connection, project, manifest)

    @override
    def find_import(self, project: str, uri: str, stamp: str) -> str:
        query = select(uri_imports.c.manifest).where(
            uri_imports.c.project == project, uri_imports.c.uri == uri, uri_imports.c.stamp == stamp
        )
        with self._database.reading() as connection:
            return connection.execute(query).scalar() or ""

    @override
    def record_import(self, project: str, uri: str, stamp: str, manifest: str) -> None:
        values = {"stamp": stamp, "manifest": manifest, "create_us": now_us()}
        with self._database.writing() as tx:
            tx.connection.execute(
                upsert(uri_imports)
                .values(project=project, uri=uri, **values)
                .on_conflict_do_update(index_elements=["project", "uri"], set_=values)
            )


def _insert(connection: Connection, project: str, content: CheckpointContent) -> None:
    time_us = now_us()
    connection.execute(
        insert(checkpoints).values(
            project=project,
            manifest=content.manifest,
            size_bytes=sum(content.blobs.values()),
            tensor_count=content.tensor_count,
            pinned=False,
            create_us=time_us,
            use_us=time_us,
        )
    )
    connection.execute(
        insert(checkpoint_blobs),
        [
            {"project": project, "manifest": content.manifest, "digest": digest, "size_bytes": size}
            for digest, size in content.blobs.items()
        ],
    )


def _remove_unneeded(connection: Connection, project: str, digests: Sequence[str]) -> list[BlobRecord]:
    """Makes those of the blobs invisible that neither an evaluation nor a dataset needs, and tells which."""
    kept = needed_by_datasets(connection, project)
    removed: list[BlobRecord] = []
    for begin in range(0, len(digests), _DIGESTS_A_QUERY):
        part = digests[begin : begin + _DIGESTS_A_QUERY]
        kept |= needed_by_checkpoints(connection, project, part)
        rows = connection.execute(select(blobs).where(blobs.c.project == project, blobs.c.digest.in_(part)))
        removed += [blob_record(row) for row in rows if row.digest not in kept]
    remove_blobs(connection, project, [blob.digest for blob in removed])
    return removed


def _is(table: Any, project: str, manifest: str) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    return table.c.project == project, table.c.manifest == manifest


def _is_shared() -> ColumnElement[bool]:
    """Whether another checkpoint needs the blob of a row of checkpoint_blobs."""
    other = checkpoint_blobs.alias("other")
    return exists(
        select(other.c.digest).where(
            other.c.project == checkpoint_blobs.c.project,
            other.c.digest == checkpoint_blobs.c.digest,
            other.c.manifest != checkpoint_blobs.c.manifest,
        )
    )


def _missing_digests(project: str, manifest: str) -> Select[Any]:
    held = exists(select(blobs.c.digest).where(blobs.c.project == project, blobs.c.digest == checkpoint_blobs.c.digest))
    return select(checkpoint_blobs.c.digest).where(*_is(checkpoint_blobs, project, manifest), ~held)


def _by_use(query: CheckpointQuery) -> Select[Any]:
    table = checkpoints
    statement = select(table).where(table.c.project == query.project)
    if query.after is not None:
        use_us, manifest = query.after
        statement = statement.where(
            or_(table.c.use_us < use_us, and_(table.c.use_us == use_us, table.c.manifest < manifest))
        )
    return statement.order_by(table.c.use_us.desc(), table.c.manifest.desc())


def _of_run(query: CheckpointQuery) -> Select[Any]:
    lowest = (
        select(checkpoint_steps.c.manifest, func.min(checkpoint_steps.c.step).label("step"))
        .where(checkpoint_steps.c.project == query.project, checkpoint_steps.c.run == query.run)
        .group_by(checkpoint_steps.c.manifest)
        .subquery()
    )
    statement = select(checkpoints).join(lowest, checkpoints.c.manifest == lowest.c.manifest)
    statement = statement.where(checkpoints.c.project == query.project)
    if query.after is not None:
        step, manifest = query.after
        statement = statement.where(
            or_(lowest.c.step > step, and_(lowest.c.step == step, lowest.c.manifest > manifest))
        )
    return statement.order_by(lowest.c.step, lowest.c.manifest)


def _one(connection: Connection, project: str, manifest: str) -> CheckpointRecord | None:
    rows = connection.execute(select(checkpoints).where(*_is(checkpoints, project, manifest))).all()
    return _records(connection, project, rows)[0] if rows else None


def _records(connection: Connection, project: str, rows: Sequence[Row[Any]]) -> list[CheckpointRecord]:
    if not rows:
        return []
    manifests = [row.manifest for row in rows]
    of_these = (checkpoint_blobs.c.project == project, checkpoint_blobs.c.manifest.in_(manifests))
    own = _by_manifest(connection, func.sum(checkpoint_blobs.c.size_bytes), (*of_these, ~_is_shared()))
    held = exists(select(blobs.c.digest).where(blobs.c.project == project, blobs.c.digest == checkpoint_blobs.c.digest))
    missing = _by_manifest(connection, func.count(), (*of_these, ~held))
    steps: dict[str, list[CheckpointStepRecord]] = {}
    query = select(checkpoint_steps).where(
        checkpoint_steps.c.project == project, checkpoint_steps.c.manifest.in_(manifests)
    )
    for row in connection.execute(query.order_by(checkpoint_steps.c.run, checkpoint_steps.c.step)):
        steps.setdefault(row.manifest, []).append(CheckpointStepRecord(row.run, row.step))
    return [
        CheckpointRecord(
            project=project,
            manifest=row.manifest,
            size_bytes=row.size_bytes,
            own_size_bytes=own.get(row.manifest, 0),
            tensor_count=row.tensor_count,
            missing_count=missing.get(row.manifest, 0),
            pinned=row.pinned,
            steps=tuple(steps.get(row.manifest, ())),
            create_us=row.create_us,
            use_us=row.use_us,
        )
        for row in rows
    ]


def _by_manifest(
    connection: Connection, value: ColumnElement[Any], conditions: Iterable[ColumnElement[bool]]
) -> dict[str, int]:
    query = select(checkpoint_blobs.c.manifest, value).where(*conditions).group_by(checkpoint_blobs.c.manifest)
    return {row[0]: int(row[1]) for row in connection.execute(query)}


def _in_use(record: CheckpointRecord, why: str) -> ServiceError:
    return ServiceError("CHECKPOINT_IN_USE", f"{record.name}: {why}", {"checkpoint": record.name})
