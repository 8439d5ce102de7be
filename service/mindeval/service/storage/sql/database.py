"""Connections and transactions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.exc import OperationalError

from mindeval.service.errors import ServiceError

_BUSY_TIMEOUT_MS = 10_000


@dataclass
class Transaction:
    """One transaction that writes.

    Attributes:
        connection: Where statements go.
        changed: Evaluations whose log grew; their watchers are told once the transaction is durable.
    """

    connection: Connection
    changed: dict[str, None] = field(default_factory=dict)


class Database:
    """A SQLite file, in WAL mode with full synchronisation: what was committed survives a power cut."""

    def __init__(self, path: Path, on_change: Callable[[str], None]) -> None:
        """Opens the file; see `migrate` for its tables.

        Args:
            path: The file, made when it is missing.
            on_change: Called with the uid of each evaluation whose log grew, after the commit, on the thread that
                wrote.
        """
        self._writer = _engine(path, "BEGIN IMMEDIATE")
        self._reader = _engine(path, "BEGIN")
        self._on_change = on_change

    @contextmanager
    def writing(self) -> Iterator[Transaction]:
        """A transaction that is committed when the block ends, and undone when it raises."""
        with _translated():
            with self._writer.begin() as connection:
                transaction = Transaction(connection)
                yield transaction
            for uid in transaction.changed:
                self._on_change(uid)

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A transaction that sees one state of the database."""
        with _translated(), self._reader.begin() as connection:
            yield connection

    @contextmanager
    def migrating(self) -> Iterator[Connection]:
        """As `writing`, for changes of the tables themselves."""
        with self._writer.begin() as connection:
            yield connection

    def close(self) -> None:
        """Closes all connections."""
        self._reader.dispose()
        self._writer.dispose()


def _engine(path: Path, begin: str) -> Engine:
    engine = create_engine(f"sqlite:///{path}", pool_size=4)

    # The driver's own transaction handling begins late and not before reads; SQLAlchemy's documentation replaces it so.
    @event.listens_for(engine, "connect")
    def _on_connect(connection: Any, _: Any) -> None:
        connection.isolation_level = None
        cursor = connection.cursor()
        for pragma in (
            f"busy_timeout={_BUSY_TIMEOUT_MS}",
            "journal_mode=WAL",
            "synchronous=FULL",
            "foreign_keys=ON",
        ):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    @event.listens_for(engine, "begin")
    def _on_begin(connection: Connection) -> None:
        connection.exec_driver_sql(begin)

    return engine


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except OperationalError as error:
        if "disk is full" in str(error.orig):
            raise ServiceError(
                "STORAGE_FULL", "the service's disk is full; free some space, or try again later"
            ) from error
        raise
