"""Unit tests of the local adapter."""
