"""Readers of the job files of other systems: Kubernetes objects, SkyPilot and dstack tasks. One module a format."""
