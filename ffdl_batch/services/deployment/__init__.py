"""Hands attempts to schedulers."""
