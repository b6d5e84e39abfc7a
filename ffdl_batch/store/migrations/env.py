"""Alembic runs this: migrate over the connection, and inside the transaction, that the store hands in."""

from __future__ import annotations

from alembic import context

from ffdl_batch.store.schema import METADATA

if context.is_offline_mode():
    raise SystemExit("migrations run inside the store only: open the database with this package")

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=METADATA,
    render_as_batch=True,  # SQLite alters few things in place
)
with context.begin_transaction():
    context.run_migrations()
