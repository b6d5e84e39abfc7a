"""Add the changes of size in place to attempts."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column: a JSON list, which is empty for attempts that kept their size."""
    op.add_column("attempts", sa.Column("resizes", sa.Text(), nullable=False, server_default="[]"))
