"""Finds adapters, converters and histories by entry point; the core never imports one by name."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points

from ffdl_batch.domain.conversion import CannotConvert
from ffdl_batch.domain.job.past_job import HistoryMissing
from ffdl_batch.domain.scheduler_errors import InvalidRequest
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.ports.conversion import ExportsJobs, History, WritesScripts
from ffdl_batch.ports.scheduler import Scheduler
from ffdl_batch.ports.shared_listing import SharedListing

GROUP = "ffdl_batch.adapters"
CONVERTERS = "ffdl_batch.converters"
HISTORIES = "ffdl_batch.histories"


@dataclass(frozen=True, slots=True)
class AdapterContext:
    """What every adapter gets. Its settings come from ``[backend.<name>]`` of the configuration."""

    root: str
    """The user's tree of job directories."""
    user: str
    uid: int
    shared: SharedListing | None = None
    """The listing of the site's hub; None in personal mode."""


Settings = Mapping[str, object]
Factory = Callable[[Settings, AdapterContext], Scheduler]


@cache
def installed(group: str) -> Collection[EntryPoint]:
    """Return the entry points of a group. Finding them reads a file of each installed distribution."""
    return entry_points(group=group)


def adapter_names() -> tuple[str, ...]:
    """Return the names of the installed adapters, sorted."""
    return tuple(sorted({point.name for point in installed(GROUP)}))


def unknown_setting(table: str, key: str, known: Collection[str]) -> InvalidRequest:
    """Return the error for a key that `table` does not have; it names the nearest key, else all of them."""
    import difflib

    near = difflib.get_close_matches(key, known, n=1, cutoff=0.75)
    cure = f"did you mean {near[0]}?" if near else f"known: {', '.join(sorted(known))}"
    return InvalidRequest(f"{table}: unknown key {key!r}; {cure}")


def harmless_settings(name: str) -> Collection[str]:
    """Return the keys of ``[backend.<name>]`` that an ``ffdl.toml`` in the working directory may set.

    The module `settings` beside an adapter's factory lists them in `HARMLESS_KEYS`
    (:mod:`ffdl_batch.domain.harmless_settings`). Without this list, or without an adapter of that name, there are none.
    """
    for point in installed(GROUP):
        if point.name == name:
            try:
                module = import_module(f"{point.module.rpartition('.')[0]}.settings")
            except ImportError:
                return ()
            keys: Collection[str] = getattr(module, "HARMLESS_KEYS", ())
            return keys
    return ()


def create_adapter(name: str, settings: Settings, context: AdapterContext, origins: Collection[str] = ()) -> Scheduler:
    """Return the adapter `name`. `origins` are the files that `settings` came from. Raises InvalidRequest: one that
    names these files if the settings cannot be used, and one that lists the installed adapters if there is none of that
    name."""
    for point in installed(GROUP):
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


def converter_names() -> tuple[str, ...]:
    """Return the names of the installed converters, sorted: those of the formats that they read or write."""
    return tuple(sorted({point.name for point in installed(CONVERTERS)}))


def writer_names() -> tuple[str, ...]:
    """Return the names of the converters that write, sorted: the formats that a manifest can become."""
    return tuple(name for name in converter_names() if isinstance(create_converter(name), ExportsJobs | WritesScripts))


def create_converter(name: str) -> object:
    """Return the converter `name`; callers ask with isinstance what it can do. Raises CannotConvert that lists the
    known ones if there is none of that name."""
    for point in installed(CONVERTERS):
        if point.name == name:
            created: object = point.load()()
            return created
    known = ", ".join(converter_names()) or "none is installed"
    raise CannotConvert(f"there is no converter {name!r}; known: {known}")


def history_names() -> tuple[str, ...]:
    """Return the names of the backends with a history, sorted."""
    return tuple(sorted({point.name for point in installed(HISTORIES)}))


def open_history(name: str, settings: Mapping[str, object]) -> History:
    """Return the history of the backend `name` with its own table of the configuration. Raises HistoryUnknown,
    HistoryMissing if no backend of that name has a history, and InvalidRequest for settings that cannot be used."""
    for point in installed(HISTORIES):
        if point.name == name:
            found: History = point.load()(settings)
            return found
    known = ", ".join(history_names()) or "none is installed"
    raise HistoryMissing(f"the backend {name!r} keeps no history; known: {known}")
