"""Finds converters of job scripts by entry point; the core never imports one by name."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points

from ffdl_batch.ports.conversion import CannotConvert

GROUP = "ffdl_batch.converters"
Factory = Callable[[], object]


def converter_names() -> tuple[str, ...]:
    """Names of the installed converters, sorted: those of the formats that they read or write."""
    return tuple(sorted({point.name for point in entry_points(group=GROUP)}))


def create_converter(name: str) -> object:
    """The converter `name`; what it can do is asked for with isinstance. Raises CannotConvert that lists those that are
    there when there is none of that name."""
    for point in entry_points(group=GROUP):
        if point.name == name:
            factory: Factory = point.load()
            return factory()
    known = ", ".join(converter_names()) or "none is installed"
    raise CannotConvert(f"there is no converter {name!r}; known: {known}")
