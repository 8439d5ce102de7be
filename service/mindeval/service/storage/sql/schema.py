"""Tables. Every change here needs a migration beside it (storage/migrations/versions)."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
)

# Named constraints, so that migrations can refer to them on every database.
METADATA = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "ix": "ix_%(table_name)s_%(column_0_name)s",
        "uq": "uq_%(table_name)s_%(column_0_name)s",
    }
)

# SQLite gives out row ids only for a column that is exactly INTEGER PRIMARY KEY.
_Serial = BigInteger().with_variant(Integer, "sqlite")

blobs = Table(
    "blobs",
    METADATA,
    Column("project", Text, nullable=False),
    Column("digest", Text, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    # Pack that holds it, and where in it; "" and 0 for a blob that is an object of its own.
    Column("pack", Text, nullable=False),
    Column("pack_offset", BigInteger, nullable=False),
    Column("create_us", BigInteger, nullable=False),
    Column("use_us", BigInteger, nullable=False),
    PrimaryKeyConstraint("project", "digest"),
    Index("ix_blobs_pack", "project", "pack"),
    Index("ix_blobs_use", "project", "use_us"),
)

packs = Table(
    "packs",
    METADATA,
    Column("project", Text, nullable=False),
    Column("id", Text, nullable=False),
    Column("digest", Text, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    PrimaryKeyConstraint("project", "id"),
)

# Bytes of the visible blobs of a project; kept, because summing them up takes long for very many.
blob_usage = Table(
    "blob_usage",
    METADATA,
    Column("project", Text, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    PrimaryKeyConstraint("project"),
)

uploads = Table(
    "uploads",
    METADATA,
    Column("id", Text, primary_key=True),
    Column("project", Text, nullable=False),
    Column("digest", Text, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("committed_offset", BigInteger, nullable=False),
    Column("complete", Boolean, nullable=False),
    Column("expire_us", BigInteger, nullable=False),
    Index("ix_uploads_digest", "project", "digest"),
)

versions = Table(
    "versions",
    METADATA,
    Column("project", Text, nullable=False),
    Column("collection", Text, nullable=False),
    Column("id", Text, nullable=False),
    Column("digest", Text, nullable=False),
    Column("content", Text, nullable=False),
    Column("create_us", BigInteger, nullable=False),
    PrimaryKeyConstraint("project", "collection", "id", "digest"),
)

newest_versions = Table(
    "newest_versions",
    METADATA,
    Column("project", Text, nullable=False),
    Column("collection", Text, nullable=False),
    Column("id", Text, nullable=False),
    Column("digest", Text, nullable=False),
    PrimaryKeyConstraint("project", "collection", "id"),
)

runs = Table(
    "runs",
    METADATA,
    Column("project", Text, nullable=False),
    Column("id", Text, nullable=False),
    Column("create_us", BigInteger, nullable=False),
    Column("last_step", BigInteger, nullable=False),
    PrimaryKeyConstraint("project", "id"),
)

training_metrics = Table(
    "training_metrics",
    METADATA,
    Column("project", Text, nullable=False),
    Column("run", Text, nullable=False),
    Column("step", BigInteger, nullable=False),
    Column("body", LargeBinary, nullable=False),
    PrimaryKeyConstraint("project", "run", "step"),
)

checkpoints = Table(
    "checkpoints",
    METADATA,
    Column("project", Text, nullable=False),
    Column("manifest", Text, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("tensor_count", BigInteger, nullable=False),
    Column("pinned", Boolean, nullable=False),
    Column("create_us", BigInteger, nullable=False),
    Column("use_us", BigInteger, nullable=False),
    PrimaryKeyConstraint("project", "manifest"),
    Index("ix_checkpoints_use", "project", "use_us"),
)

checkpoint_blobs = Table(
    "checkpoint_blobs",
    METADATA,
    Column("project", Text, nullable=False),
    Column("manifest", Text, nullable=False),
    Column("digest", Text, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    PrimaryKeyConstraint("project", "manifest", "digest"),
    # With the manifest, so that who shares a blob is answered from the index alone.
    Index("ix_checkpoint_blobs_digest", "project", "digest", "manifest"),
)

checkpoint_steps = Table(
    "checkpoint_steps",
    METADATA,
    Column("project", Text, nullable=False),
    Column("run", Text, nullable=False),
    Column("step", BigInteger, nullable=False),
    Column("manifest", Text, nullable=False),
    PrimaryKeyConstraint("project", "run", "step", "manifest"),
    Index("ix_checkpoint_steps_manifest", "project", "manifest"),
)

uri_imports = Table(
    "uri_imports",
    METADATA,
    Column("project", Text, nullable=False),
    Column("uri", Text, nullable=False),
    Column("stamp", Text, nullable=False),
    Column("manifest", Text, nullable=False),
    Column("create_us", BigInteger, nullable=False),
    PrimaryKeyConstraint("project", "uri"),
)

evaluations = Table(
    "evaluations",
    METADATA,
    Column("serial", _Serial, primary_key=True, autoincrement=True),
    Column("uid", Text, nullable=False),
    Column("project", Text, nullable=False),
    Column("id", Text, nullable=False),
    Column("suite", Text, nullable=False),
    Column("suite_id", Text, nullable=False),
    Column("suite_version", Text, nullable=False),
    Column("dataset_versions", Text, nullable=False),
    Column("checkpoint", Text, nullable=False),
    Column("checkpoint_uri", Text, nullable=False),
    Column("evaluator_build", Text, nullable=False),
    Column("run", Text, nullable=False),
    Column("step", BigInteger, nullable=False),
    Column("epoch", Float, nullable=False),
    Column("timeout_s", Float),
    Column("parameters", Text, nullable=False),
    Column("natural_key", Text, nullable=False),
    Column("state", Integer, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("attempt_token", Text, nullable=False),
    Column("revision", BigInteger, nullable=False),
    Column("last_sequence", BigInteger, nullable=False),
    Column("failure", Text),
    Column("superseded_by", Text, nullable=False),
    Column("create_us", BigInteger, nullable=False),
    Column("start_us", BigInteger, nullable=False),
    Column("end_us", BigInteger, nullable=False),
    Column("statistics", Text),
    Index("ix_evaluations_uid", "uid", unique=True),
    Index("ix_evaluations_id", "project", "id", unique=True),
    Index("ix_evaluations_state", "state", "serial"),
    Index("ix_evaluations_project", "project", "serial"),
    Index("ix_evaluations_natural_key", "natural_key"),
    sqlite_autoincrement=True,
)

task_outcomes = Table(
    "task_outcomes",
    METADATA,
    Column("uid", Text, ForeignKey("evaluations.uid"), nullable=False),
    Column("task", Text, nullable=False),
    Column("position", Integer, nullable=False),
    Column("expected_count", BigInteger, nullable=False),
    Column("scored_count", BigInteger, nullable=False),
    Column("failed_count", BigInteger, nullable=False),
    Column("device_seconds", Float, nullable=False),
    Column("failure", Text),
    PrimaryKeyConstraint("uid", "task"),
)

metric_results = Table(
    "metric_results",
    METADATA,
    Column("uid", Text, ForeignKey("evaluations.uid"), nullable=False),
    Column("task", Text, nullable=False),
    Column("metric", Text, nullable=False),
    Column("position", Integer, nullable=False),
    # SQLite keeps NaN as NULL: a value that is NULL is NaN.
    Column("value", Float),
    Column("standard_error", Float),
    Column("standard_error_method", Text, nullable=False),
    Column("count", BigInteger, nullable=False),
    Column("higher_is_better", Boolean),
    Column("signature", Text, nullable=False),
    Column("flags", Text, nullable=False),
    PrimaryKeyConstraint("uid", "task", "metric"),
)

events = Table(
    "events",
    METADATA,
    Column("uid", Text, ForeignKey("evaluations.uid"), nullable=False),
    Column("sequence", BigInteger, nullable=False),
    Column("is_final", Boolean, nullable=False),
    Column("body", LargeBinary, nullable=False),
    PrimaryKeyConstraint("uid", "sequence"),
)

request_ids = Table(
    "request_ids",
    METADATA,
    Column("project", Text, nullable=False),
    Column("request_id", Text, nullable=False),
    Column("payload_hash", Text, nullable=False),
    Column("uid", Text, ForeignKey("evaluations.uid"), nullable=False),
    Column("create_us", BigInteger, nullable=False),
    PrimaryKeyConstraint("project", "request_id"),
    Index("ix_request_ids_create_us", "create_us"),
)
