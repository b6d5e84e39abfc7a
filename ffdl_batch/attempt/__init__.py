"""Reads and writes files of attempts' directories. Standard library; runs on Python 3.9."""
