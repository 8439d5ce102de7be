"""Visible blobs, packs, and open uploads."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import Connection, Row, bindparam, delete, func, insert, select, tuple_, update
from sqlalchemy.dialects.sqlite import insert as upsert
from typing_extensions import override

from mindeval.service.errors import ServiceError
from mindeval.service.storage.records import BlobRecord, PackedBlob, PackRecord, UploadRecord, now_us
from mindeval.service.storage.sql.database import Database
from mindeval.service.storage.sql.needed import needed_by_checkpoints, needed_by_datasets
from mindeval.service.storage.sql.schema import blob_usage, blobs, packs, uploads
from mindeval.service.storage.store import BlobIndex, Collected

# Databases bound the number of parameters of a statement.
_DIGESTS_A_QUERY = 500


class SqlBlobIndex(BlobIndex):
    """See `BlobIndex`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @override
    def sizes(self, project: str, digests: Sequence[str]) -> dict[str, int]:
        return {digest: blob.size_bytes for digest, blob in self.find(project, digests).items()}

    @override
    def find(self, project: str, digests: Sequence[str]) -> dict[str, BlobRecord]:
        found: dict[str, BlobRecord] = {}
        with self._database.reading() as connection:
            for part in _parts(digests):
                query = select(blobs).where(blobs.c.project == project, blobs.c.digest.in_(part))
                found.update((row.digest, blob_record(row)) for row in connection.execute(query))
        return found

    @override
    def below(self, project: str, prefix: str) -> list[BlobRecord]:
        query = select(blobs).where(blobs.c.project == project, blobs.c.digest.between(prefix, prefix + "\x7f"))
        with self._database.reading() as connection:
            return [blob_record(row) for row in connection.execute(query.order_by(blobs.c.digest))]

    @override
    def touch(self, project: str, digests: Sequence[str], use_us: int) -> set[str]:
        found: set[str] = set()
        with self._database.writing() as tx:
            for part in _parts(digests):
                statement = update(blobs).where(blobs.c.project == project, blobs.c.digest.in_(part))
                found.update(
                    tx.connection.execute(statement.values(use_us=use_us).returning(blobs.c.digest)).scalars().all()
                )
        return found

    @override
    def remove(self, project: str, digests: Sequence[str]) -> None:
        with self._database.writing() as tx:
            remove_blobs(tx.connection, project, digests)

    @override
    def collect(self, project: str, wanted_bytes: int, before_us: int, after: tuple[int, str], limit: int) -> Collected:
        query = (
            select(blobs)
            .where(
                blobs.c.project == project,
                blobs.c.use_us < before_us,
                tuple_(blobs.c.use_us, blobs.c.digest) > after,
            )
            .order_by(blobs.c.use_us, blobs.c.digest)
            .limit(min(limit, _DIGESTS_A_QUERY))
        )
        # In one transaction: nothing can begin to need a blob between the look and the removal.
        with self._database.writing() as tx:
            idle = [blob_record(row) for row in tx.connection.execute(query)]
            needed = needed_by_checkpoints(tx.connection, project, [blob.digest for blob in idle])
            if idle:
                needed |= needed_by_datasets(tx.connection, project)
            removed: list[BlobRecord] = []
            for blob in idle:
                if wanted_bytes <= 0:
                    break
                if blob.digest not in needed:
                    removed.append(blob)
                    wanted_bytes -= blob.size_bytes
            remove_blobs(tx.connection, project, [blob.digest for blob in removed])
        return Collected(removed, (idle[-1].use_us, idle[-1].digest) if idle else None)

    @override
    def usage(self, project: str) -> int:
        with self._database.reading() as connection:
            query = select(blob_usage.c.size_bytes).where(blob_usage.c.project == project)
            return int(connection.execute(query).scalar() or 0)

    @override
    def projects(self) -> list[str]:
        with self._database.reading() as connection:
            return list(connection.execute(select(blob_usage.c.project).order_by(blob_usage.c.project)).scalars())

    @override
    def add_pack(self, pack: PackRecord, blobs: Sequence[PackedBlob]) -> int:
        with self._database.writing() as tx:
            _insert(tx.connection, pack.project, blobs, pack.id)
            count, size_bytes = _live(tx.connection, pack)
            if count:
                tx.connection.execute(insert(packs).values(**_pack_values(pack)))
                _account(tx.connection, pack.project, size_bytes)
            return count

    @override
    def replace_pack(self, old: str, pack: PackRecord, blobs: Sequence[PackedBlob]) -> int:
        table = _BLOBS
        is_there = (table.c.project == pack.project, table.c.pack == old, table.c.digest == bindparam("b_digest"))
        statement = update(table).where(*is_there).values(pack=pack.id, pack_offset=bindparam("b_offset"))
        moves = [{"b_digest": entry.digest, "b_offset": entry.offset} for entry in blobs]
        with self._database.writing() as tx:
            tx.connection.execute(statement, moves)
            count, _ = _live(tx.connection, pack)
            if count:
                tx.connection.execute(insert(packs).values(**_pack_values(pack)))
            return count

    @override
    def forget_packs(self, project: str, packs: Sequence[str]) -> None:
        table = _PACKS
        used = select(blobs.c.pack).where(blobs.c.project == project, blobs.c.pack == table.c.id).exists()
        with self._database.writing() as tx:
            for part in _parts(packs):
                tx.connection.execute(delete(table).where(table.c.project == project, table.c.id.in_(part), ~used))

    @override
    def packs(self, project: str) -> list[PackRecord]:
        live = (
            select(blobs.c.pack, func.sum(blobs.c.size_bytes).label("live_bytes"))
            .where(blobs.c.project == project, blobs.c.pack != "")
            .group_by(blobs.c.pack)
            .subquery()
        )
        query = (
            select(packs, func.coalesce(live.c.live_bytes, 0).label("live_bytes"))
            .outerjoin(live, live.c.pack == packs.c.id)
            .where(packs.c.project == project)
            .order_by(packs.c.id)
        )
        with self._database.reading() as connection:
            return [
                PackRecord(row.project, row.id, row.digest, row.size_bytes, int(row.live_bytes))
                for row in connection.execute(query)
            ]

    @override
    def find_packs(self, project: str, packs: Sequence[str]) -> dict[str, PackRecord]:
        table = _PACKS
        found: dict[str, PackRecord] = {}
        with self._database.reading() as connection:
            for part in _parts(packs):
                for row in connection.execute(select(table).where(table.c.project == project, table.c.id.in_(part))):
                    found[row.id] = PackRecord(row.project, row.id, row.digest, row.size_bytes)
        return found

    @override
    def packed(self, project: str, pack: str) -> list[BlobRecord]:
        query = select(blobs).where(blobs.c.project == project, blobs.c.pack == pack).order_by(blobs.c.pack_offset)
        with self._database.reading() as connection:
            return [blob_record(row) for row in connection.execute(query)]

    @override
    def open_upload(self, project: str, digest: str, size_bytes: int, expire_us: int) -> UploadRecord:
        with self._database.writing() as tx:
            row = tx.connection.execute(
                update(uploads)
                .where(
                    uploads.c.project == project,
                    uploads.c.digest == digest,
                    uploads.c.size_bytes == size_bytes,
                    uploads.c.complete.is_(False),
                )
                .values(expire_us=expire_us)
                .returning(*uploads.c)
            ).first()
            if row is not None:
                return _upload(row)
            record = UploadRecord(project, uuid.uuid4().hex, digest, size_bytes, 0, False, expire_us)
            tx.connection.execute(
                insert(uploads).values(
                    id=record.id,
                    project=project,
                    digest=digest,
                    size_bytes=size_bytes,
                    committed_offset=0,
                    complete=False,
                    expire_us=expire_us,
                )
            )
            return record

    @override
    def upload(self, project: str, upload_id: str) -> UploadRecord | None:
        with self._database.reading() as connection:
            query = select(uploads).where(uploads.c.id == upload_id, uploads.c.project == project)
            row = connection.execute(query).first()
        return None if row is None else _upload(row)

    @override
    def advance(self, upload_id: str, committed_offset: int, expire_us: int) -> None:
        with self._database.writing() as tx:
            tx.connection.execute(
                update(uploads)
                .where(uploads.c.id == upload_id, uploads.c.complete.is_(False))
                .values(committed_offset=committed_offset, expire_us=expire_us)
            )

    @override
    def complete(self, upload_id: str) -> UploadRecord:
        with self._database.writing() as tx:
            row = tx.connection.execute(
                update(uploads)
                .where(uploads.c.id == upload_id)
                .values(complete=True, committed_offset=uploads.c.size_bytes)
                .returning(*uploads.c)
            ).first()
            if row is None:
                raise ServiceError("UPLOAD_NOT_FOUND", "the upload has expired; create it again")
            if _insert(tx.connection, row.project, [PackedBlob(row.digest, 0, row.size_bytes)], ""):
                _account(tx.connection, row.project, row.size_bytes)
            return _upload(row)

    @override
    def discard(self, upload_id: str) -> None:
        with self._database.writing() as tx:
            tx.connection.execute(delete(uploads).where(uploads.c.id == upload_id))

    @override
    def uploads(self) -> list[UploadRecord]:
        with self._database.reading() as connection:
            return [_upload(row) for row in connection.execute(select(uploads).order_by(uploads.c.id))]

    @override
    def open_bytes(self) -> int:
        query = select(func.coalesce(func.sum(uploads.c.size_bytes - uploads.c.committed_offset), 0))
        with self._database.reading() as connection:
            return int(connection.execute(query.where(uploads.c.complete.is_(False))).scalar_one())

    @override
    def declared_bytes(self, project: str, expire_after_us: int, but_for: str) -> int:
        query = select(func.coalesce(func.sum(uploads.c.size_bytes), 0)).where(
            uploads.c.project == project,
            uploads.c.complete.is_(False),
            uploads.c.expire_us > expire_after_us,
            uploads.c.id != but_for,
        )
        with self._database.reading() as connection:
            return int(connection.execute(query).scalar_one())


# Under other names, for methods whose parameters are called as the tables are.
_BLOBS, _PACKS = blobs, packs


def _parts(digests: Sequence[str]) -> Iterator[Sequence[str]]:
    for begin in range(0, len(digests), _DIGESTS_A_QUERY):
        yield digests[begin : begin + _DIGESTS_A_QUERY]


def _insert(connection: Connection, project: str, entries: Sequence[PackedBlob], pack: str) -> int:
    """Makes blobs visible that are not, and tells how many."""
    time_us = now_us()
    rows = [
        {
            "project": project,
            "digest": entry.digest,
            "size_bytes": entry.size_bytes,
            "pack": pack,
            "pack_offset": entry.offset,
            "create_us": time_us,
            "use_us": time_us,
        }
        for entry in entries
    ]
    return connection.execute(upsert(blobs).on_conflict_do_nothing(), rows).rowcount


def remove_blobs(connection: Connection, project: str, digests: Sequence[str]) -> None:
    """Makes blobs invisible within a transaction; harmless when they are not there."""
    freed = 0
    for part in _parts(digests):
        statement = delete(blobs).where(blobs.c.project == project, blobs.c.digest.in_(part))
        freed += sum(connection.execute(statement.returning(blobs.c.size_bytes)).scalars().all())
    if freed:
        _account(connection, project, -freed)


def _account(connection: Connection, project: str, change_bytes: int) -> None:
    connection.execute(
        upsert(blob_usage)
        .values(project=project, size_bytes=change_bytes)
        .on_conflict_do_update(index_elements=["project"], set_={"size_bytes": blob_usage.c.size_bytes + change_bytes})
    )


def _live(connection: Connection, pack: PackRecord) -> tuple[int, int]:
    """How many visible blobs lie in a pack, and their bytes."""
    query = select(func.count(), func.coalesce(func.sum(blobs.c.size_bytes), 0)).where(
        blobs.c.project == pack.project, blobs.c.pack == pack.id
    )
    count, size_bytes = connection.execute(query).one()
    return int(count), int(size_bytes)


def _pack_values(pack: PackRecord) -> dict[str, Any]:
    return {"project": pack.project, "id": pack.id, "digest": pack.digest, "size_bytes": pack.size_bytes}


def blob_record(row: Row[Any]) -> BlobRecord:
    """A row of the table blobs as a record."""
    return BlobRecord(row.project, row.digest, row.size_bytes, row.pack, row.pack_offset, row.use_us)


def _upload(row: Row[Any]) -> UploadRecord:
    return UploadRecord(
        row.project, row.id, row.digest, row.size_bytes, row.committed_offset, row.complete, row.expire_us
    )
