"""Replaces names of modules and classes in programs of tests."""

from __future__ import annotations


def substitute(target: object, **values: object) -> None:
    """Replace attributes of a module or class. Raise AttributeError if it has no such name: nothing would use it."""
    for name, value in values.items():
        getattr(target, name)
        setattr(target, name, value)
