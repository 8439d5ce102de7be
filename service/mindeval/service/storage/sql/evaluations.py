"""Evaluations: creation, states, attempts, and the log that is written with each change."""

from __future__ import annotations

import json
import secrets
import uuid
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, delete, insert, or_, select, update
from typing_extensions import override

from mindeval.formats.names import parse
from mindeval.service.errors import ServiceError
from mindeval.service.storage import wire
from mindeval.service.storage.records import (
    CheckpointStepRecord,
    Condition,
    ConflictPolicy,
    EvaluationQuery,
    EvaluationRecord,
    EventRecord,
    Failure,
    NewEvaluation,
    ProgressRecord,
    State,
    Statistics,
    TaskRecord,
    now_us,
)
from mindeval.service.storage.sql import schema
from mindeval.service.storage.sql.checkpoints import register_checkpoint, touch_checkpoint
from mindeval.service.storage.sql.database import Database, Transaction
from mindeval.service.storage.sql.rows import evaluation_records, failure_text, insert_task, statistics_text
from mindeval.service.storage.sql.runs import ensure_run
from mindeval.service.storage.store import Evaluations

_table = schema.evaluations
_ACTIVE = (State.RUNNING, State.CANCELLING)

MAX_ATTEMPTS = 10
"""Attempts after which an evaluation that a dying service has left behind is not tried again."""


class SqlEvaluations(Evaluations):
    """See `Evaluations`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @override
    def find_request(self, project: str, request_id: str, payload_hash: str) -> EvaluationRecord | None:
        with self._database.reading() as connection:
            return _find_request(connection, project, request_id, payload_hash)

    @override
    def create(self, new: NewEvaluation) -> tuple[EvaluationRecord, bool]:
        with self._database.writing() as tx:
            existing = _find_existing(tx.connection, new)
            if existing is not None:
                touch_checkpoint(tx.connection, new.project, new.checkpoint)
                _remember_request(tx.connection, new, existing.uid)
                return existing, False
            if new.content is not None:
                step = CheckpointStepRecord(new.run, new.step) if new.run else None
                register_checkpoint(tx.connection, new.project, new.content, step)
            record = _insert(tx, new)
            _remember_request(tx.connection, new, record.uid)
            return record, True

    @override
    def preview(self, new: NewEvaluation) -> EvaluationRecord:
        with self._database.reading() as connection:
            existing = _find_existing(connection, new)
        return existing if existing is not None else _as_record(new, serial=0, uid="", evaluation_id="", time_us=0)

    @override
    def get(self, project: str, evaluation_id: str) -> EvaluationRecord | None:
        with self._database.reading() as connection:
            return _one(connection, _table.c.project == project, _table.c.id == evaluation_id)

    @override
    def page(self, query: EvaluationQuery) -> list[EvaluationRecord]:
        columns = [_table.c.serial] if query.order == "create_time" else [_table.c.step, _table.c.serial]
        statement = select(_table).where(_table.c.project == query.project, *map(_condition, query.conditions))
        if query.after is not None:
            statement = statement.where(_beyond(query.order, query.after, query.descending))
        statement = statement.order_by(*(c.desc() if query.descending else c.asc() for c in columns))
        with self._database.reading() as connection:
            return evaluation_records(connection, connection.execute(statement.limit(query.limit)).all())

    @override
    def events(self, uid: str, after_sequence: int, limit: int) -> list[EventRecord]:
        table = schema.events
        query = (
            select(table.c.sequence, table.c.is_final, table.c.body)
            .where(table.c.uid == uid, table.c.sequence > after_sequence)
            .order_by(table.c.sequence)
            .limit(limit)
        )
        with self._database.reading() as connection:
            return [EventRecord(row.sequence, row.is_final, row.body) for row in connection.execute(query)]

    @override
    def cancel(self, project: str, evaluation_id: str, etag: str) -> EvaluationRecord:
        with self._database.writing() as tx:
            record = _one(tx.connection, _table.c.project == project, _table.c.id == evaluation_id)
            name = f"projects/{project}/evaluations/{evaluation_id}"
            if record is None:
                raise ServiceError("EVALUATION_NOT_FOUND", f"there is no {name}", {"evaluation": name})
            if etag and etag != record.etag:
                raise ServiceError(
                    "ETAG_MISMATCH",
                    f"{name} has changed since (etag {record.etag}); read it and decide again",
                    {"evaluation": name, "etag": record.etag},
                )
            if record.state in (State.CANCELLING, State.CANCELLED):
                return record
            if record.state.is_terminal:
                raise ServiceError(
                    "EVALUATION_TERMINAL",
                    f"{name} has ended ({record.state.name}); it cannot be cancelled any more",
                    {"evaluation": name, "state": record.state.name},
                )
            if record.state is State.QUEUED:
                return _end(tx, record, State.CANCELLED, cancelled_by_user(), None)
            return _change_state(tx, record, State.CANCELLING, {})

    @override
    def start_next(self, device: str, evaluator_build: str) -> EvaluationRecord | None:
        with self._database.writing() as tx:
            record = _one(tx.connection, _table.c.state == State.QUEUED, order=_table.c.serial)
            if record is None:
                return None
            if record.evaluator_build != evaluator_build:
                # What another build has computed must not be mixed into one set of results.
                for table in (schema.metric_results, schema.task_outcomes):
                    tx.connection.execute(delete(table).where(table.c.uid == record.uid))
            values = {
                "attempt": record.attempt + 1,
                "attempt_token": secrets.token_hex(8),
                "evaluator_build": evaluator_build,
                "start_us": record.start_us or now_us(),
                "statistics": statistics_text(Statistics(device=device)),
            }
            return _change_state(tx, record, State.RUNNING, values)

    @override
    def record_progress(self, uid: str, token: str, progress: ProgressRecord) -> EvaluationRecord | None:
        with self._database.writing() as tx:
            record = _current_attempt(tx.connection, uid, token)
            if record is None:
                return None
            record = _update(tx.connection, record, {"last_sequence": record.last_sequence + 1})
            _log(tx, record, wire.progress_event(record, progress, now_us()))
            return record

    @override
    def record_task(self, uid: str, token: str, task: TaskRecord) -> EvaluationRecord | None:
        with self._database.writing() as tx:
            record = _current_attempt(tx.connection, uid, token)
            if record is None or any(task.task == known.task for known in record.tasks):
                return record
            insert_task(tx.connection, uid, len(record.tasks), task)
            steps = {"last_sequence": record.last_sequence + 1, "revision": record.revision + 1}
            record = _update(tx.connection, record, steps)
            _log(tx, record, wire.task_event(record, task, now_us()))
            return record

    @override
    def finish(
        self, uid: str, token: str, state: State, failure: Failure | None, statistics: Statistics | None
    ) -> EvaluationRecord | None:
        assert state.is_terminal
        with self._database.writing() as tx:
            record = _current_attempt(tx.connection, uid, token)
            if record is None:
                return None
            if State.CANCELLED is state or record.state is State.CANCELLING:
                state, failure = State.CANCELLED, cancelled_by_user()
            return _end(tx, record, state, failure, statistics)

    @override
    def requeue(self, uid: str, token: str) -> EvaluationRecord | None:
        with self._database.writing() as tx:
            record = _current_attempt(tx.connection, uid, token)
            return None if record is None else _give_back(tx, record)

    @override
    def recover(self) -> list[EvaluationRecord]:
        with self._database.writing() as tx:
            rows = tx.connection.execute(
                select(_table).where(_table.c.state.in_(_ACTIVE)).order_by(_table.c.serial)
            ).all()
            return [
                _end(tx, record, State.FAILED, _too_many_attempts(record), None)
                if record.state == State.RUNNING and record.attempt >= MAX_ATTEMPTS
                else _give_back(tx, record)
                for record in evaluation_records(tx.connection, rows)
            ]

    @override
    def fail_queued(self, failure: Failure) -> list[EvaluationRecord]:
        with self._database.writing() as tx:
            rows = tx.connection.execute(
                select(_table).where(_table.c.state == State.QUEUED).order_by(_table.c.serial)
            ).all()
            return [_end(tx, record, State.FAILED, failure, None) for record in evaluation_records(tx.connection, rows)]

    @override
    def forget_requests(self, before_us: int) -> int:
        table = schema.request_ids
        with self._database.writing() as tx:
            return tx.connection.execute(delete(table).where(table.c.create_us < before_us)).rowcount


def _too_many_attempts(record: EvaluationRecord) -> Failure:
    # One evaluation that takes the service down with it must not do so for ever.
    return Failure(
        "RUNNER_LOST",
        f"the service ended during each of {record.attempt} attempts at it; look into its log, and evaluate again",
        {"attempts": str(record.attempt)},
    )


def cancelled_by_user() -> Failure:
    """Why a cancelled evaluation ended."""
    return Failure("CANCELLED_BY_USER", "the evaluation was cancelled on request")


def _one(
    connection: Connection, *conditions: ColumnElement[bool], order: ColumnElement[Any] | None = None
) -> EvaluationRecord | None:
    query = select(_table).where(*conditions).limit(1)
    row = connection.execute(query if order is None else query.order_by(order)).first()
    return None if row is None else evaluation_records(connection, [row])[0]


def _current_attempt(connection: Connection, uid: str, token: str) -> EvaluationRecord | None:
    """The evaluation, if the token is that of the attempt that is under way."""
    if not token:
        return None
    return _one(connection, _table.c.uid == uid, _table.c.attempt_token == token, _table.c.state.in_(_ACTIVE))


def _find_request(connection: Connection, project: str, request_id: str, payload_hash: str) -> EvaluationRecord | None:
    if not request_id:
        return None
    table = schema.request_ids
    row = connection.execute(select(table).where(table.c.project == project, table.c.request_id == request_id)).first()
    if row is None:
        return None
    if row.payload_hash != payload_hash:
        raise ServiceError(
            "REQUEST_ID_REUSED",
            f"request_id {request_id} was used with another payload; choose a new one for a new request",
            {"field": "request_id"},
        )
    return _one(connection, _table.c.uid == row.uid)


def _find_existing(connection: Connection, new: NewEvaluation) -> EvaluationRecord | None:
    """The evaluation that a request leads to without a new one, by its request id or by its natural key."""
    same_request = _find_request(connection, new.project, new.request_id, new.payload_hash)
    if same_request is not None or not new.natural_key or new.conflict_policy is ConflictPolicy.RERUN:
        return same_request
    same_key = _table.c.natural_key == new.natural_key
    if new.conflict_policy is ConflictPolicy.USE_EXISTING:
        same_key = and_(same_key, _table.c.state.not_in((State.FAILED, State.CANCELLING, State.CANCELLED)))
    existing = _one(connection, _table.c.project == new.project, same_key, order=_table.c.serial.desc())
    if existing is not None and new.conflict_policy is ConflictPolicy.FAIL:
        raise ServiceError(
            "EVALUATION_EXISTS",
            f"{existing.name} evaluates this checkpoint under this suite already (same run, step and parameters)",
            {"evaluation": existing.name},
        )
    return existing


def _remember_request(connection: Connection, new: NewEvaluation, uid: str) -> None:
    table = schema.request_ids
    key = (table.c.project == new.project, table.c.request_id == new.request_id)
    if new.request_id and connection.execute(select(table.c.uid).where(*key)).first() is None:
        connection.execute(
            insert(table).values(
                project=new.project,
                request_id=new.request_id,
                payload_hash=new.payload_hash,
                uid=uid,
                create_us=now_us(),
            )
        )


def _as_record(new: NewEvaluation, serial: int, uid: str, evaluation_id: str, time_us: int) -> EvaluationRecord:
    return EvaluationRecord(
        serial=serial,
        uid=uid,
        project=new.project,
        id=evaluation_id,
        suite=new.suite,
        suite_version=new.suite_version,
        dataset_versions=new.dataset_versions,
        checkpoint=new.checkpoint,
        checkpoint_uri=new.checkpoint_uri,
        evaluator_build=new.evaluator_build,
        run=new.run,
        step=new.step,
        epoch=new.epoch,
        timeout_s=new.timeout_s,
        parameters=dict(new.parameters),
        state=State.QUEUED,
        create_us=time_us,
    )


def _insert(tx: Transaction, new: NewEvaluation) -> EvaluationRecord:
    if new.run:
        ensure_run(tx.connection, new.project, new.run)
    time_us = now_us()
    draft = _as_record(new, serial=0, uid=str(uuid.uuid4()), evaluation_id=secrets.token_hex(8), time_us=time_us)
    tx.connection.execute(
        insert(_table).values(
            uid=draft.uid,
            project=draft.project,
            id=draft.id,
            suite=draft.suite,
            suite_id=parse(draft.suite_version, "suites", "suite").id,
            suite_version=draft.suite_version,
            dataset_versions=json.dumps(draft.dataset_versions),
            checkpoint=draft.checkpoint,
            checkpoint_uri=draft.checkpoint_uri,
            evaluator_build=draft.evaluator_build,
            run=draft.run,
            step=draft.step,
            epoch=draft.epoch,
            timeout_s=draft.timeout_s,
            parameters=json.dumps(draft.parameters, sort_keys=True),
            natural_key=new.natural_key,
            state=draft.state,
            attempt=0,
            attempt_token="",
            revision=1,
            last_sequence=1,
            superseded_by="",
            create_us=time_us,
            start_us=0,
            end_us=0,
        )
    )
    record = _one(tx.connection, _table.c.uid == draft.uid)
    assert record is not None
    _log(tx, record, wire.state_event(record, None, time_us))
    return record


def _end(
    tx: Transaction, record: EvaluationRecord, state: State, failure: Failure | None, statistics: Statistics | None
) -> EvaluationRecord:
    values: dict[str, Any] = {"attempt_token": "", "failure": failure_text(failure), "end_us": now_us()}
    if statistics is not None:
        values["statistics"] = statistics_text(statistics)
    return _change_state(tx, record, state, values)


def _give_back(tx: Transaction, record: EvaluationRecord) -> EvaluationRecord:
    if record.state is State.CANCELLING:
        return _end(tx, record, State.CANCELLED, cancelled_by_user(), None)
    return _change_state(tx, record, State.QUEUED, {"attempt_token": ""})


def _change_state(tx: Transaction, record: EvaluationRecord, state: State, values: dict[str, Any]) -> EvaluationRecord:
    steps = {"state": state, "last_sequence": record.last_sequence + 1, "revision": record.revision + 1}
    changed = _update(tx.connection, record, {**values, **steps})
    _log(tx, changed, wire.state_event(changed, record.state, now_us()))
    return changed


def _update(connection: Connection, record: EvaluationRecord, values: dict[str, Any]) -> EvaluationRecord:
    connection.execute(update(_table).where(_table.c.serial == record.serial).values(values))
    changed = _one(connection, _table.c.serial == record.serial)
    assert changed is not None
    return changed


def _log(tx: Transaction, record: EvaluationRecord, body: bytes) -> None:
    tx.connection.execute(
        insert(schema.events).values(
            uid=record.uid, sequence=record.last_sequence, is_final=record.state.is_terminal, body=body
        )
    )
    tx.changed[record.uid] = None


def _condition(condition: Condition) -> ColumnElement[bool]:
    column = {
        "state": _table.c.state,
        "run": _table.c.run,
        "step": _table.c.step,
        "suite": _table.c.suite_id,
        "suite_version": _table.c.suite_version,
        "checkpoint": _table.c.checkpoint,
    }[condition.field]
    value = condition.value
    comparisons: dict[str, ColumnElement[bool]] = {
        "=": column == value,
        "!=": column != value,
        "<": column < value,
        "<=": column <= value,
        ">": column > value,
        ">=": column >= value,
    }
    return comparisons[condition.operator]


def _beyond(order: str, after: tuple[int, int], descending: bool) -> ColumnElement[bool]:
    step, serial = after
    later = _table.c.serial < serial if descending else _table.c.serial > serial
    if order == "create_time":
        return later
    further = _table.c.step < step if descending else _table.c.step > step
    return or_(further, and_(_table.c.step == step, later))
