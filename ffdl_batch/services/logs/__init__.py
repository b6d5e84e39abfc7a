"""Reads, searches and follows learners' logs."""
