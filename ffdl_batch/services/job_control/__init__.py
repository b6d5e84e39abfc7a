"""Halts, cancels and resumes jobs, and makes drills."""
