"""Checks of a manifest that concern several keys."""
