"""Add the GPUs of attempts, and their changes of size in place."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns. `gpus` is NULL if the attempt is not submitted yet, or if an older release started it. `resizes`
    is a JSON list, which is empty for attempts that kept their size."""
    op.add_column("attempts", sa.Column("gpus", sa.Double()))
    op.add_column("attempts", sa.Column("resizes", sa.Text(), nullable=False, server_default="[]"))
