"""What a daemon makes at its first start, made once for all tests: the migrations of a SQLite database and the build of
the controller are a large part of what a short test costs."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sqlalchemy import Dialect

    from ffdl_batch.ports.clock import Clock
    from ffdl_batch.store import Store

_COMPILED: dict[Any, Any] = {}
_DIALECTS: dict[str, Dialect] = {}
"""The one that the compiled statements are for."""


@functools.cache
def _migrated(network_fs: bool) -> bytes:
    from ffdl_batch.store import open_store

    with tempfile.TemporaryDirectory() as place:
        open_store(f"sqlite:///{place}/jobs.db", network_fs=network_fs).close()
        return Path(place, "jobs.db").read_bytes()


@functools.cache
def _controller() -> tuple[str, bytes]:
    from ffdl_batch.controller.zipapp import place_zipapp

    with tempfile.TemporaryDirectory() as place:
        file = place_zipapp(Path(place))
        return file.name, file.read_bytes()


def write_schema(file: Path, *, network_fs: bool = False) -> None:
    """Make a SQLite database, and the state directory around it, for one user alone."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    file.touch(0o600)
    file.write_bytes(_migrated(network_fs))


def new_store(file: Path, clock: Clock, *, network_fs: bool = False) -> Store:
    """Return a store over a new SQLite database. All share the compiled statements of the first one."""
    from ffdl_batch.store import Store
    from ffdl_batch.store.database import connect

    write_schema(file, network_fs=network_fs)
    database = connect(f"sqlite:///{file}", network_fs, clock)
    database.engine.dialect = _DIALECTS.setdefault("sqlite", database.engine.dialect)
    database.engine.update_execution_options(compiled_cache=_COMPILED)
    return Store(database)


def write_controller(jobs: Path) -> None:
    """Put the controller for nodes that do not see this installation below the directory of jobs."""
    directory, (name, content) = jobs / "controller", _controller()
    for place in (jobs, directory):
        place.mkdir(mode=0o700, exist_ok=True)
    (directory / name).write_bytes(content)
    (directory / name).chmod(0o755)
