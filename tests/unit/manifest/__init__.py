"""Tests of the manifest room."""
