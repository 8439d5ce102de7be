"""Runs the migrations on the connection that `sql.migrate` hands over."""

from alembic import context

from mindeval.service.storage.sql.schema import METADATA

connection = context.config.attributes["connection"]
# SQLite cannot alter most things about a table: batch mode copies it instead.
context.configure(connection=connection, target_metadata=METADATA, render_as_batch=True)
with context.begin_transaction():
    context.run_migrations()
