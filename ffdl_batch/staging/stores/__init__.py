"""Kinds of stores."""
