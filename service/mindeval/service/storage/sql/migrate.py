"""Brings a database to the tables of this release."""

from __future__ import annotations

from alembic import command
from alembic.config import Config
from alembic.util import CommandError

from mindeval.service.storage.sql.database import Database


class MigrationError(Exception):
    """The database cannot be brought to this release; the message is one line for the user."""


def migrate(database: Database) -> None:
    """Runs the migrations that are missing, in one transaction.

    Raises:
        MigrationError: When a newer release has written the database.
    """
    config = Config()
    config.set_main_option("script_location", "mindeval.service.storage:migrations")
    try:
        with database.migrating() as connection:
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
    except CommandError as error:
        raise MigrationError(
            f"the database was written by another release, probably a newer one ({error}); install that one"
        ) from None
