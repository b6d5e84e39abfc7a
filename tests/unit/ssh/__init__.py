"""Unit tests of the SSH room."""
