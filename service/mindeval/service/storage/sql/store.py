"""The SQL store."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from mindeval.service.storage.sql.blobs import SqlBlobIndex
from mindeval.service.storage.sql.checkpoints import SqlCheckpoints
from mindeval.service.storage.sql.database import Database
from mindeval.service.storage.sql.evaluations import SqlEvaluations
from mindeval.service.storage.sql.migrate import migrate
from mindeval.service.storage.sql.registry import SqlRegistry
from mindeval.service.storage.sql.runs import SqlRuns
from mindeval.service.storage.store import Store


class SqlStore(Store):
    """A store in a SQLite file, brought to the tables of this release when it is opened."""

    def __init__(self, path: Path, on_change: Callable[[str], None]) -> None:
        """Opens the file, made when it is missing.

        Args:
            path: The file.
            on_change: Called with the uid of each evaluation whose log grew, once that is durable.

        Raises:
            MigrationError: When a newer release has written the file.
        """
        self._database = Database(path, on_change)
        migrate(self._database)
        self.blobs = SqlBlobIndex(self._database)
        self.registry = SqlRegistry(self._database)
        self.runs = SqlRuns(self._database)
        self.checkpoints = SqlCheckpoints(self._database)
        self.evaluations = SqlEvaluations(self._database)

    def close(self) -> None:
        """Closes the file."""
        self._database.close()
