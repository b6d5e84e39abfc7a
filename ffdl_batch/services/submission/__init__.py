"""Checks a submission and accepts it."""
