"""Add the sizes of attempts."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns. 0 learners mean those that the job was submitted with."""
    op.add_column("attempts", sa.Column("learners", sa.Integer(), nullable=False, server_default="0"))
    op.add_column("attempts", sa.Column("global_batch", sa.Integer()))
