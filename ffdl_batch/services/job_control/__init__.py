"""Halt, cancel, resume, drills."""
