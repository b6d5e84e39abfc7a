"""Finds adapters by entry point; the core never imports one by name."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from importlib import import_module
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


def unknown_setting(table: str, key: str, known: Collection[str]) -> InvalidRequest:
    """What an adapter raises for a key that `table` does not have: with the nearest one, else with all."""
    import difflib

    near = difflib.get_close_matches(key, known, n=1, cutoff=0.75)
    cure = f"did you mean {near[0]}?" if near else f"known: {', '.join(sorted(known))}"
    return InvalidRequest(f"{table}: unknown key {key!r}; {cure}")


def harmless_settings(name: str) -> Collection[str]:
    """Return the keys of ``[backend.<name>]`` that an ``ffdl.toml`` in the working directory may set.

    The module `settings` beside an adapter's factory lists them in `HARMLESS_KEYS`
    (:mod:`ffdl_batch.domain.harmless_settings`). Without this list, or without an adapter of that name, there are none.
    """
    for point in entry_points(group=GROUP):
        if point.name == name:
            try:
                module = import_module(f"{point.module.rpartition('.')[0]}.settings")
            except ImportError:
                return ()
            keys: Collection[str] = getattr(module, "HARMLESS_KEYS", ())
            return keys
    return ()


def create_adapter(name: str, settings: Settings, context: AdapterContext, origins: Collection[str] = ()) -> Scheduler:
    """The adapter `name`; `origins` are the files that `settings` came from. Raises InvalidRequest that names them
    where the settings cannot be used, and one that lists the installed adapters where there is none of that name."""
    for point in entry_points(group=GROUP):
        if point.name == name:
            factory: Factory = point.load()
            try:
                return factory(settings, context)
            except InvalidRequest as error:
                if not origins:
                    raise
                raise InvalidRequest(f"{', '.join(origins)}: {error}", error.findings) from error
    known = ", ".join(adapter_names()) or "none is installed"
    raise InvalidRequest(f"there is no backend {name!r}; known: {known}")
