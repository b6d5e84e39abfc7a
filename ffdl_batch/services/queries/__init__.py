"""Answers questions about jobs."""
