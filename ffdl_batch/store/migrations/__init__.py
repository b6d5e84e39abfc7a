"""Alembic's migrations; append only. ``ffdl_batch.store.revisions`` runs them."""
