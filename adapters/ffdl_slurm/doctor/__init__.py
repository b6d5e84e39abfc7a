"""Checks a cluster and its nodes for what jobs need."""
