"""Tables of the first release."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_SERIAL = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    """Makes the tables."""
    op.create_table(
        "blobs",
        sa.Column("project", sa.Text, nullable=False),
        sa.Column("digest", sa.Text, nullable=False),
        sa.Column("size_bytes", sa.BigInteger, nullable=False),
        sa.Column("pack", sa.Text, nullable=False),
        sa.Column("pack_offset", sa.BigInteger, nullable=False),
        sa.Column("create_us", sa.BigInteger, nullable=False),
        sa.Column("use_us", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("project", "digest", name="pk_blobs"),
    )
    op.create_index("ix_blobs_pack", "blobs", ["project", "pack"])
    op.create_index("ix_blobs_use", "blobs", ["project", "use_us"])
    op.create_table(
        "packs",
        sa.Column("project", sa.Text, nullable=False),
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("digest", sa.Text, nullable=False),
        sa.Column("size_bytes", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("project", "id", name="pk_packs"),
    )
    op.create_table(
        "blob_usage",
        sa.Column("project", sa.Text, nullable=False),
        sa.Column("size_bytes", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("project", name="pk_blob_usage"),
    )
    op.create_table(
        "uploads",
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("project", sa.Text, nullable=False),
        sa.Column("digest", sa.Text, nullable=False),
        sa.Column("size_bytes", sa.BigInteger, nullable=False),
        sa.Column("committed_offset", sa.BigInteger, nullable=False),
        sa.Column("complete", sa.Boolean, nullable=False),
        sa.Column("expire_us", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_uploads"),
    )
    op.create_index("ix_uploads_digest", "uploads", ["project", "digest"])
    op.create_table(
        "versions",
        sa.Column("project", sa.Text, nullable=False),
        sa.Column("collection", sa.Text, nullable=False),
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("digest", sa.Text, nullable=False),
        sa.Column("content", sa.Text, nullable=False),
        sa.Column("create_us", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("project", "collection", "id", "digest", name="pk_versions"),
    )
    op.create_table(
        "newest_versions",
        sa.Column("project", sa.Text, nullable=False),
        sa.Column("collection", sa.Text, nullable=False),
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("digest", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("project", "collection", "id", name="pk_newest_versions"),
    )
    op.create_table(
        "runs",
        sa.Column("project", sa.Text, nullable=False),
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("create_us", sa.BigInteger, nullable=False),
        sa.Column("last_step", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("project", "id", name="pk_runs"),
    )
    op.create_table(
        "training_metrics",
        sa.Column("project", sa.Text, nullable=False),
        sa.Column("run", sa.Text, nullable=False),
        sa.Column("step", sa.BigInteger, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("project", "run", "step", name="pk_training_metrics"),
    )
    op.create_table(
        "checkpoints",
        sa.Column("project", sa.Text, nullable=False),
        sa.Column("manifest", sa.Text, nullable=False),
        sa.Column("size_bytes", sa.BigInteger, nullable=False),
        sa.Column("tensor_count", sa.BigInteger, nullable=False),
        sa.Column("pinned", sa.Boolean, nullable=False),
        sa.Column("create_us", sa.BigInteger, nullable=False),
        sa.Column("use_us", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("project", "manifest", name="pk_checkpoints"),
    )
    op.create_index("ix_checkpoints_use", "checkpoints", ["project", "use_us"])
    op.create_table(
        "checkpoint_blobs",
        sa.Column("project", sa.Text, nullable=False),
        sa.Column("manifest", sa.Text, nullable=False),
        sa.Column("digest", sa.Text, nullable=False),
        sa.Column("size_bytes", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("project", "manifest", "digest", name="pk_checkpoint_blobs"),
    )
    op.create_index("ix_checkpoint_blobs_digest", "checkpoint_blobs", ["project", "digest", "manifest"])
    op.create_table(
        "checkpoint_steps",
        sa.Column("project", sa.Text, nullable=False),
        sa.Column("run", sa.Text, nullable=False),
        sa.Column("step", sa.BigInteger, nullable=False),
        sa.Column("manifest", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("project", "run", "step", "manifest", name="pk_checkpoint_steps"),
    )
    op.create_index("ix_checkpoint_steps_manifest", "checkpoint_steps", ["project", "manifest"])
    op.create_table(
        "uri_imports",
        sa.Column("project", sa.Text, nullable=False),
        sa.Column("uri", sa.Text, nullable=False),
        sa.Column("stamp", sa.Text, nullable=False),
        sa.Column("manifest", sa.Text, nullable=False),
        sa.Column("create_us", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("project", "uri", name="pk_uri_imports"),
    )
    op.create_table(
        "evaluations",
        sa.Column("serial", _SERIAL, nullable=False, autoincrement=True),
        sa.Column("uid", sa.Text, nullable=False),
        sa.Column("project", sa.Text, nullable=False),
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("suite", sa.Text, nullable=False),
        sa.Column("suite_id", sa.Text, nullable=False),
        sa.Column("suite_version", sa.Text, nullable=False),
        sa.Column("dataset_versions", sa.Text, nullable=False),
        sa.Column("checkpoint", sa.Text, nullable=False),
        sa.Column("checkpoint_uri", sa.Text, nullable=False),
        sa.Column("evaluator_build", sa.Text, nullable=False),
        sa.Column("run", sa.Text, nullable=False),
        sa.Column("step", sa.BigInteger, nullable=False),
        sa.Column("epoch", sa.Float, nullable=False),
        sa.Column("timeout_s", sa.Float),
        sa.Column("parameters", sa.Text, nullable=False),
        sa.Column("natural_key", sa.Text, nullable=False),
        sa.Column("state", sa.Integer, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("attempt_token", sa.Text, nullable=False),
        sa.Column("revision", sa.BigInteger, nullable=False),
        sa.Column("last_sequence", sa.BigInteger, nullable=False),
        sa.Column("failure", sa.Text),
        sa.Column("superseded_by", sa.Text, nullable=False),
        sa.Column("create_us", sa.BigInteger, nullable=False),
        sa.Column("start_us", sa.BigInteger, nullable=False),
        sa.Column("end_us", sa.BigInteger, nullable=False),
        sa.Column("statistics", sa.Text),
        sa.PrimaryKeyConstraint("serial", name="pk_evaluations"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_evaluations_uid", "evaluations", ["uid"], unique=True)
    op.create_index("ix_evaluations_id", "evaluations", ["project", "id"], unique=True)
    op.create_index("ix_evaluations_state", "evaluations", ["state", "serial"])
    op.create_index("ix_evaluations_project", "evaluations", ["project", "serial"])
    op.create_index("ix_evaluations_natural_key", "evaluations", ["natural_key"])
    op.create_table(
        "task_outcomes",
        sa.Column("uid", sa.Text, nullable=False),
        sa.Column("task", sa.Text, nullable=False),
        sa.Column("position", sa.Integer, nullable=False),
        sa.Column("expected_count", sa.BigInteger, nullable=False),
        sa.Column("scored_count", sa.BigInteger, nullable=False),
        sa.Column("failed_count", sa.BigInteger, nullable=False),
        sa.Column("device_seconds", sa.Float, nullable=False),
        sa.Column("failure", sa.Text),
        sa.PrimaryKeyConstraint("uid", "task", name="pk_task_outcomes"),
        sa.ForeignKeyConstraint(["uid"], ["evaluations.uid"], name="fk_task_outcomes_uid"),
    )
    op.create_table(
        "metric_results",
        sa.Column("uid", sa.Text, nullable=False),
        sa.Column("task", sa.Text, nullable=False),
        sa.Column("metric", sa.Text, nullable=False),
        sa.Column("position", sa.Integer, nullable=False),
        sa.Column("value", sa.Float),
        sa.Column("standard_error", sa.Float),
        sa.Column("standard_error_method", sa.Text, nullable=False),
        sa.Column("count", sa.BigInteger, nullable=False),
        sa.Column("higher_is_better", sa.Boolean),
        sa.Column("signature", sa.Text, nullable=False),
        sa.Column("flags", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("uid", "task", "metric", name="pk_metric_results"),
        sa.ForeignKeyConstraint(["uid"], ["evaluations.uid"], name="fk_metric_results_uid"),
    )
    op.create_table(
        "events",
        sa.Column("uid", sa.Text, nullable=False),
        sa.Column("sequence", sa.BigInteger, nullable=False),
        sa.Column("is_final", sa.Boolean, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("uid", "sequence", name="pk_events"),
        sa.ForeignKeyConstraint(["uid"], ["evaluations.uid"], name="fk_events_uid"),
    )
    op.create_table(
        "request_ids",
        sa.Column("project", sa.Text, nullable=False),
        sa.Column("request_id", sa.Text, nullable=False),
        sa.Column("payload_hash", sa.Text, nullable=False),
        sa.Column("uid", sa.Text, nullable=False),
        sa.Column("create_us", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("project", "request_id", name="pk_request_ids"),
        sa.ForeignKeyConstraint(["uid"], ["evaluations.uid"], name="fk_request_ids_uid"),
    )
    op.create_index("ix_request_ids_create_us", "request_ids", ["create_us"])


def downgrade() -> None:
    """There is nothing before the first release."""
    raise NotImplementedError("there is no release before the first one")
