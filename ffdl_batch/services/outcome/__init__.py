"""Derives how attempts ended and what follows."""
