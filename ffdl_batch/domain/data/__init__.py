"""Data stores, mounts, and the task of the staging program. Pure."""
