"""Checks a cluster, and by a canary its network policies."""
