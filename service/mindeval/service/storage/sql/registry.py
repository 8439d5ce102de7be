"""Versions of datasets and suites."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Row, and_, select
from sqlalchemy.dialects.sqlite import insert as upsert
from typing_extensions import override

from mindeval.service.storage.records import VersionRecord, now_us
from mindeval.service.storage.sql.database import Database
from mindeval.service.storage.sql.schema import newest_versions, versions
from mindeval.service.storage.store import Registry

_IS_NEWEST = and_(
    versions.c.project == newest_versions.c.project,
    versions.c.collection == newest_versions.c.collection,
    versions.c.id == newest_versions.c.id,
    versions.c.digest == newest_versions.c.digest,
)


class SqlRegistry(Registry):
    """See `Registry`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @override
    def put(
        self, project: str, collection: str, item_id: str, digest: str, content: Mapping[str, Any]
    ) -> tuple[VersionRecord, bool]:
        key = {"project": project, "collection": collection, "id": item_id}
        with self._database.writing() as tx:
            created = tx.connection.execute(
                upsert(versions)
                .values(**key, digest=digest, content=json.dumps(content, sort_keys=True), create_us=now_us())
                .on_conflict_do_nothing()
            )
            tx.connection.execute(
                upsert(newest_versions)
                .values(**key, digest=digest)
                .on_conflict_do_update(index_elements=["project", "collection", "id"], set_={"digest": digest})
            )
            row = tx.connection.execute(
                select(versions).where(
                    versions.c.project == project,
                    versions.c.collection == collection,
                    versions.c.id == item_id,
                    versions.c.digest == digest,
                )
            ).one()
        return _version(row), created.rowcount == 1

    @override
    def get(self, project: str, collection: str, item_id: str, digest: str = "") -> VersionRecord | None:
        query = select(versions).where(
            versions.c.project == project, versions.c.collection == collection, versions.c.id == item_id
        )
        query = query.where(versions.c.digest == digest) if digest else query.join(newest_versions, _IS_NEWEST)
        with self._database.reading() as connection:
            row = connection.execute(query).first()
        return None if row is None else _version(row)

    @override
    def page(self, project: str, collection: str, after_id: str, limit: int) -> list[VersionRecord]:
        query = (
            select(versions)
            .join(newest_versions, _IS_NEWEST)
            .where(versions.c.project == project, versions.c.collection == collection, versions.c.id > after_id)
            .order_by(versions.c.id)
            .limit(limit)
        )
        with self._database.reading() as connection:
            return [_version(row) for row in connection.execute(query)]


def _version(row: Row[Any]) -> VersionRecord:
    return VersionRecord(row.project, row.collection, row.id, row.digest, json.loads(row.content), row.create_us)
