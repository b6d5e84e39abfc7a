"""Which array a job is an element of, and which element."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns; the rows that are there read as jobs of no array."""
    op.add_column("jobs", sa.Column("array_id", sa.Text(), nullable=False, server_default=sa.text("''")))
    op.add_column("jobs", sa.Column("array_index", sa.Integer(), nullable=False, server_default="0"))
    op.create_index("ix_jobs_array_id_array_index", "jobs", ["array_id", "array_index"])
