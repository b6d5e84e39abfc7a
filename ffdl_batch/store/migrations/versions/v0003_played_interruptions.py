"""Which attempts were interrupted by a drill."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; the rows that are there read as interrupted in earnest."""
    op.add_column("attempts", sa.Column("played", sa.Integer(), nullable=False, server_default="0"))
