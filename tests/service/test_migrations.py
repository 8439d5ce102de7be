from __future__ import annotations

from pathlib import Path

from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from mindeval.service.storage.sql.database import Database
from mindeval.service.storage.sql.migrate import migrate
from mindeval.service.storage.sql.schema import METADATA


def test_migrations_make_the_tables_that_the_code_expects(tmp_path: Path) -> None:
    database = Database(tmp_path / "x.db", lambda uid: None)
    migrate(database)
    migrate(database)
    options = {"compare_type": True, "compare_server_default": True}
    with database.migrating() as connection:
        assert compare_metadata(MigrationContext.configure(connection, opts=options), METADATA) == []
    database.close()


def test_constraints_are_those_of_the_metadata(tmp_path: Path) -> None:
    """What autogenerate does not compare: keys, foreign keys, autoincrement."""
    migrated = Database(tmp_path / "migrated.db", lambda uid: None)
    migrate(migrated)
    direct = Database(tmp_path / "direct.db", lambda uid: None)
    with direct.migrating() as connection:
        METADATA.create_all(connection)
    texts = []
    for database in (migrated, direct):
        with database.reading() as connection:
            query = "SELECT name, sql FROM sqlite_master WHERE name NOT LIKE 'alembic%' AND sql IS NOT NULL"
            rows = {name: " ".join(sql.split()) for name, sql in connection.exec_driver_sql(query)}
        texts.append(rows)
        database.close()
    assert texts[0] == texts[1]


def test_acknowledged_writes_are_synchronous(tmp_path: Path) -> None:
    database = Database(tmp_path / "x.db", lambda uid: None)
    with database.writing() as tx:
        connection = tx.connection
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2
        assert connection.exec_driver_sql("PRAGMA foreign_keys").scalar() == 1
    database.close()
