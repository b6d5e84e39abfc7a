"""Reads facts from this machine's kernel. Standard library; runs on Python 3.9."""
