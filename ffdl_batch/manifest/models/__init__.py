"""The pydantic models of a manifest."""
