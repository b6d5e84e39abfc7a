"""Queries: jobs, their learners, their output and what was measured of them."""
