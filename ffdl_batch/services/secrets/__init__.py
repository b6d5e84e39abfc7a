"""Secrets of users and of jobs, in files."""
