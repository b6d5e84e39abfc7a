"""Data stores and secrets of the user."""
