"""Create all tables of the first release."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables in an empty database."""
    _create_jobs()
    _create_attempts()
    _create_history()
    _create_incidents()
    _create_notices()
    op.create_table(
        "leases",
        sa.Column("name", sa.Text(), primary_key=True),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("token", sa.Text(), nullable=False),
        sa.Column("until", sa.Double(), nullable=False),
    )


def _create_attempts() -> None:
    op.create_table(
        "attempts",
        sa.Column("job_id", sa.Text(), sa.ForeignKey("jobs.id", name="fk_attempts_job_id"), primary_key=True),
        sa.Column("number", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("token", sa.Text(), nullable=False),
        sa.Column("backend", sa.Text(), nullable=False),
        sa.Column("native_id", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("submitted_at", sa.Double()),
        sa.Column("ended_at", sa.Double()),
        sa.Column("outcome_code", sa.Text(), nullable=False),
        sa.Column("network", sa.Text(), nullable=False),
        sa.Column("nodes", sa.Text(), nullable=False),
        sa.Column("interruption", sa.Text(), nullable=False, server_default=sa.text("''")),
        sa.Column("checkpoint", sa.Text(), nullable=False, server_default="{}"),
        sa.Column("gpu_seconds", sa.Double(), nullable=False, server_default="0"),
        sa.Column("upload_pending", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("simulated", sa.Integer(), nullable=False, server_default="0"),
        sa.UniqueConstraint("token", name="uq_attempts_token"),
    )
    op.create_index("ix_attempts_upload_pending", "attempts", ["upload_pending"])


def _create_history() -> None:
    op.create_table(
        "history",
        sa.Column("job_id", sa.Text(), sa.ForeignKey("jobs.id", name="fk_history_job_id"), primary_key=True),
        sa.Column("seq", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("cause", sa.Text(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("error_code", sa.Text(), nullable=False),
    )


def _create_jobs() -> None:
    op.create_table(
        "jobs",
        sa.Column("id", sa.Text(), primary_key=True),
        sa.Column("uid", sa.BigInteger(), nullable=False),
        sa.Column("user_name", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("requested_action", sa.Text(), nullable=False),
        sa.Column("backend", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("native_id", sa.Text(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("submitted_at", sa.Double(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.Column("ended_at", sa.Double()),
        sa.Column("error_code", sa.Text(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("exit_code", sa.Integer()),
        sa.Column("exit_signal", sa.Integer()),
        sa.Column("pending_reason", sa.Text(), nullable=False),
        sa.Column("nodes", sa.Text(), nullable=False),
        sa.Column("network", sa.Text(), nullable=False),
        sa.Column("results", sa.Text(), nullable=False),
        sa.Column("model_digest", sa.Text(), nullable=False),
        sa.Column("uncertain_since", sa.Double()),
        sa.Column("warnings", sa.Text(), nullable=False),
        sa.Column("log_tail", sa.Text(), nullable=False),
        sa.Column("submit_key", sa.Text()),
        sa.Column("lease_owner", sa.Text(), nullable=False),
        sa.Column("lease_token", sa.Text(), nullable=False),
        sa.Column("lease_until", sa.Double(), nullable=False),
        sa.Column("next_try_at", sa.Double(), nullable=False),
        sa.Column("deploy_tries", sa.Integer(), nullable=False),
        sa.Column("overrides", sa.Text(), nullable=False, server_default="{}"),
        sa.Column("spent", sa.Text(), nullable=False, server_default="{}"),
        sa.Column("array_id", sa.Text(), nullable=False, server_default=sa.text("''")),
        sa.Column("array_index", sa.Integer(), nullable=False, server_default="0"),
        sa.UniqueConstraint("uid", "submit_key", name="uq_jobs_uid_submit_key"),
    )
    op.create_index("ix_jobs_uid_submitted_at", "jobs", ["uid", "submitted_at"])
    op.create_index("ix_jobs_submitted_at", "jobs", ["submitted_at"])
    op.create_index("ix_jobs_state_next_try_at", "jobs", ["state", "next_try_at"])
    op.create_index("ix_jobs_array_id_array_index", "jobs", ["array_id", "array_index"])


def _create_incidents() -> None:
    op.create_table(
        "incidents",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("episode", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("noticed_at", sa.Double(), nullable=False),
        sa.Column("code", sa.Text(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("nodes", sa.Text(), nullable=False),
        sa.Column("learner", sa.Integer(), nullable=False),
        sa.Column("evidence", sa.Text(), nullable=False),
        sa.Column("lost_gpu_s", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_incidents_job_id"),
        sa.PrimaryKeyConstraint("job_id", "attempt", "episode", name="pk_incidents"),
    )
    op.create_index("ix_incidents_noticed_at", "incidents", ["noticed_at"])
    op.create_index("ix_incidents_at", "incidents", ["at"])


def _create_notices() -> None:
    op.create_table(
        "notices",
        sa.Column("id", sa.Text(), primary_key=True),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("episode", sa.Text(), nullable=False),
        sa.Column("channel", sa.Text(), nullable=False),
        sa.Column("address", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("next_try_at", sa.Double(), nullable=False),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("sent_at", sa.Double(), nullable=True),
        sa.Column("failure", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_notices_job_id"),
        sa.UniqueConstraint("job_id", "attempt", "episode", "channel", "address", name="uq_notices_of"),
    )
    op.create_index("ix_notices_sent_at_next_try_at", "notices", ["sent_at", "next_try_at"])
