"""Asking learners for a checkpoint, and what became of it."""
