"""Moves trees between a directory and a store: planning, download and upload."""
