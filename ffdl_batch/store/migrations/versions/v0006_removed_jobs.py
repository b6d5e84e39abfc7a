"""Add the time at which a job was removed."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column. NULL means that the job was not removed."""
    op.add_column("jobs", sa.Column("removed_at", sa.Double()))
