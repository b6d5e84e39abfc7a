"""Halts, cancels and resumes jobs, and plays drills."""
