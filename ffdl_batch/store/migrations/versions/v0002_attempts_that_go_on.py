"""What a chain of attempts needs: overrides and budgets of jobs, interruptions and checkpoints of attempts."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add columns; the rows that are there read as jobs that nothing was altered of, and as plain attempts.

    Plain ALTER TABLE ADD COLUMN, which SQLite does in place: no table is copied, however large it is.
    """
    op.add_column("jobs", sa.Column("overrides", sa.Text(), nullable=False, server_default="{}"))
    op.add_column("jobs", sa.Column("spent", sa.Text(), nullable=False, server_default="{}"))
    op.add_column("attempts", sa.Column("interruption", sa.Text(), nullable=False, server_default=sa.text("''")))
    op.add_column("attempts", sa.Column("checkpoint", sa.Text(), nullable=False, server_default="{}"))
    op.add_column("attempts", sa.Column("gpu_seconds", sa.Double(), nullable=False, server_default="0"))
    op.add_column("attempts", sa.Column("owed", sa.Integer(), nullable=False, server_default="0"))
    op.create_index("ix_attempts_owed", "attempts", ["owed"])
