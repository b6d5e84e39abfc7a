"""Finds adapters by entry point; the core never imports one by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points

from ffdl_batch.ports.scheduler import InvalidRequest, Scheduler

GROUP = "ffdl_batch.adapters"


@dataclass(frozen=True, slots=True)
class AdapterContext:
    """What every adapter is told. `root` is the user's tree of job directories; `settings` of the adapter come
    from ``[backend.<name>]`` of the configuration."""

    root: str
    user: str
    uid: int


Settings = Mapping[str, object]
Factory = Callable[[Settings, AdapterContext], Scheduler]


def adapter_names() -> tuple[str, ...]:
    """Names of the installed adapters, sorted."""
    return tuple(sorted({point.name for point in entry_points(group=GROUP)}))


def create_adapter(name: str, settings: Settings, context: AdapterContext) -> Scheduler:
    """The adapter `name`. Raises InvalidRequest that lists the installed ones when there is none of that name."""
    for point in entry_points(group=GROUP):
        if point.name == name:
            factory: Factory = point.load()
            return factory(settings, context)
    known = ", ".join(adapter_names()) or "none is installed"
    raise InvalidRequest(f"there is no backend {name!r}; known: {known}")
