"""Secrets of users and jobs, in files."""
