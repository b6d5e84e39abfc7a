"""Add the tables of scalers."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "elastic_sizes",
        sa.Column("job_id", sa.Text(), sa.ForeignKey("jobs.id", name="fk_elastic_sizes_job_id"), primary_key=True),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("learners", sa.Integer(), nullable=False),
        sa.Column("global_batch", sa.Integer(), nullable=False),
        sa.Column("requested_at", sa.Double(), nullable=False),
        sa.Column("restart_s", sa.Double()),
    )
    op.create_table(
        "elastic_decisions",
        sa.Column("pool", sa.Text(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("inputs", sa.Text(), nullable=False),
        sa.Column("targets", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("pool", "at", name="pk_elastic_decisions"),
    )
    op.create_table(
        "elastic_pools",
        sa.Column("name", sa.Text(), primary_key=True),
        sa.Column("paused_at", sa.Double(), nullable=False),
    )
