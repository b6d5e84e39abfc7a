"""Benchmarks: each figure beside the plain tool's, measured in the same run. Nothing here passes or fails on time."""
