"""Visible blobs and open uploads."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Row, delete, func, insert, select, update
from sqlalchemy.dialects.sqlite import insert as upsert
from typing_extensions import override

from mindeval.service.errors import ServiceError
from mindeval.service.storage.records import UploadRecord, now_us
from mindeval.service.storage.sql.database import Database
from mindeval.service.storage.sql.schema import blobs, uploads
from mindeval.service.storage.store import BlobIndex

# Databases bound the number of parameters of a statement.
_DIGESTS_A_QUERY = 500


class SqlBlobIndex(BlobIndex):
    """See `BlobIndex`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @override
    def sizes(self, project: str, digests: Sequence[str]) -> dict[str, int]:
        found: dict[str, int] = {}
        with self._database.reading() as connection:
            for begin in range(0, len(digests), _DIGESTS_A_QUERY):
                part = digests[begin : begin + _DIGESTS_A_QUERY]
                query = select(blobs.c.digest, blobs.c.size_bytes).where(
                    blobs.c.project == project, blobs.c.digest.in_(part)
                )
                found.update((row.digest, row.size_bytes) for row in connection.execute(query))
        return found

    @override
    def remove(self, project: str, digest: str) -> None:
        with self._database.writing() as tx:
            tx.connection.execute(delete(blobs).where(blobs.c.project == project, blobs.c.digest == digest))

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
            tx.connection.execute(
                upsert(blobs)
                .values(project=row.project, digest=row.digest, size_bytes=row.size_bytes, create_us=now_us())
                .on_conflict_do_nothing()
            )
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


def _upload(row: Row[Any]) -> UploadRecord:
    return UploadRecord(
        row.project, row.id, row.digest, row.size_bytes, row.committed_offset, row.complete, row.expire_us
    )
