"""Runs and their training metrics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Row, func, select, update
from sqlalchemy.dialects.sqlite import insert as upsert
from typing_extensions import override

from mindeval.service.storage.records import PointRecord, RunRecord, now_us
from mindeval.service.storage.sql.database import Database
from mindeval.service.storage.sql.schema import runs, training_metrics
from mindeval.service.storage.store import Runs


def ensure_run(connection: Connection, project: str, run_id: str) -> None:
    """Makes a run unless it is there."""
    connection.execute(
        upsert(runs).values(project=project, id=run_id, create_us=now_us(), last_step=0).on_conflict_do_nothing()
    )


class SqlRuns(Runs):
    """See `Runs`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @override
    def report(self, project: str, run_id: str, points: Sequence[PointRecord]) -> RunRecord:
        with self._database.writing() as tx:
            ensure_run(tx.connection, project, run_id)
            if points:
                statement = upsert(training_metrics)
                tx.connection.execute(
                    statement.on_conflict_do_update(
                        index_elements=["project", "run", "step"], set_={"body": statement.excluded.body}
                    ),
                    [{"project": project, "run": run_id, "step": p.step, "body": p.body} for p in points],
                )
            newest = max((point.step for point in points), default=0)
            row = tx.connection.execute(
                update(runs)
                .where(runs.c.project == project, runs.c.id == run_id)
                .values(last_step=func.max(runs.c.last_step, newest))
                .returning(*runs.c)
            ).one()
        return _run(row)

    @override
    def get(self, project: str, run_id: str) -> RunRecord | None:
        with self._database.reading() as connection:
            row = connection.execute(select(runs).where(runs.c.project == project, runs.c.id == run_id)).first()
        return None if row is None else _run(row)

    @override
    def page(self, project: str, after_id: str, limit: int) -> list[RunRecord]:
        query = select(runs).where(runs.c.project == project, runs.c.id > after_id).order_by(runs.c.id).limit(limit)
        with self._database.reading() as connection:
            return [_run(row) for row in connection.execute(query)]

    @override
    def points(self, project: str, run_id: str, after_step: int, limit: int) -> list[PointRecord]:
        table = training_metrics
        query = (
            select(table.c.step, table.c.body)
            .where(table.c.project == project, table.c.run == run_id, table.c.step > after_step)
            .order_by(table.c.step)
            .limit(limit)
        )
        with self._database.reading() as connection:
            return [PointRecord(row.step, row.body) for row in connection.execute(query)]


def _run(row: Row[Any]) -> RunRecord:
    return RunRecord(row.project, row.id, row.create_us, row.last_step)
