"""Run by Alembic: migrate over the connection, and inside the transaction, that the store passes."""

from __future__ import annotations

from alembic import context
from alembic.runtime.migration import MigrationInfo

from ffdl_batch.store.schema import METADATA
from ffdl_batch.store.schema_upgrade import note_applied

if context.is_offline_mode():
    raise SystemExit("migrations run inside the store only: open the database with this package")

CONNECTION = context.config.attributes["connection"]
APPLIED_AT: float | None = context.config.attributes["applied_at"]


def note(ctx: object, step: MigrationInfo, heads: object, run_args: object) -> None:  # noqa: ARG001  (alembic's names)
    """Record a revision before its transaction ends."""
    if APPLIED_AT is not None and step.up_revision_id is not None:
        note_applied(CONNECTION, step.up_revision_id, APPLIED_AT)


context.configure(
    connection=CONNECTION,
    target_metadata=METADATA,
    render_as_batch=True,  # SQLite alters few things in place
    on_version_apply=note,
)
with context.begin_transaction():
    context.run_migrations()
