"""The first tables: jobs, attempts, history, leases."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the tables in an empty database."""
    _make_jobs()
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
        sa.UniqueConstraint("token", name="uq_attempts_token"),
    )
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
    op.create_table(
        "leases",
        sa.Column("name", sa.Text(), primary_key=True),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("token", sa.Text(), nullable=False),
        sa.Column("until", sa.Double(), nullable=False),
    )


def _make_jobs() -> None:
    op.create_table(
        "jobs",
        sa.Column("id", sa.Text(), primary_key=True),
        sa.Column("uid", sa.BigInteger(), nullable=False),
        sa.Column("user_name", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("wish", sa.Text(), nullable=False),
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
        sa.UniqueConstraint("uid", "submit_key", name="uq_jobs_uid_submit_key"),
    )
    op.create_index("ix_jobs_uid_submitted_at", "jobs", ["uid", "submitted_at"])
    op.create_index("ix_jobs_submitted_at", "jobs", ["submitted_at"])
    op.create_index("ix_jobs_state_next_try_at", "jobs", ["state", "next_try_at"])
