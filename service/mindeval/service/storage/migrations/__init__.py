"""Alembic migrations of the service's database; `sql.migrate` runs them at start."""
