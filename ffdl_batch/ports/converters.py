"""Finds converters of job scripts by entry point; the core never imports one by name."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points

from ffdl_batch.ports.conversion import CannotConvert, WritesScripts
from ffdl_batch.ports.export import ExportsJobs

GROUP = "ffdl_batch.converters"
Factory = Callable[[], object]


def converter_names() -> tuple[str, ...]:
    """Names of the installed converters, sorted: those of the formats that they read or write."""
    return tuple(sorted({point.name for point in entry_points(group=GROUP)}))


def writer_names() -> tuple[str, ...]:
    """Those of them that write, sorted: what can be made of a manifest."""
    return tuple(name for name in converter_names() if isinstance(create_converter(name), ExportsJobs | WritesScripts))


def create_converter(name: str) -> object:
    """The converter `name`; what it can do is asked for with isinstance. Raises CannotConvert that lists those that are
    there when there is none of that name."""
    for point in entry_points(group=GROUP):
        if point.name == name:
            factory: Factory = point.load()
            return factory()
    known = ", ".join(converter_names()) or "none is installed"
    raise CannotConvert(f"there is no converter {name!r}; known: {known}")
