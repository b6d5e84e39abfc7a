"""Calls of the daemon's HTTP API."""
