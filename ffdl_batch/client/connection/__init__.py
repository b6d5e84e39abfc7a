"""Finds, starts and reaches the daemon."""
