"""Add the GPUs of attempts."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column. NULL means that the attempt is not submitted yet, or that an older release started it."""
    op.add_column("attempts", sa.Column("gpus", sa.Double()))
