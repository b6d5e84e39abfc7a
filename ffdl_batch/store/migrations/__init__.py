"""Alembic's migrations; append only. ``ffdl_batch.store.schema_upgrade`` runs them."""
