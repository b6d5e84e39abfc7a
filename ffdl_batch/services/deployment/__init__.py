"""Submits attempts to schedulers."""
