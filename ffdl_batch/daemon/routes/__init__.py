"""The routes of the HTTP API."""

PREFIX = "/api/v1"
"""The beginning of all paths of the API."""
