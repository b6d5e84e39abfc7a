"""Data directories that can be looked at from here, before a job waits for what is not there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from ffdl_batch.domain.findings import Finding, Severity
from ffdl_batch.domain.launch import LaunchFile
from ffdl_batch.domain.remote_stores import stores_with_input
from ffdl_batch.domain.spec import DataStore

CODE = "C103"
NOT_YET = "does not exist yet"


def missing_dirs(stores: Sequence[DataStore], launch: LaunchFile, *, later: bool, is_node: bool) -> Iterator[Finding]:
    """Those that are surely missing: this machine is the only node (`is_node`), or sees the place, and the directory is
    not in it. A place that only the nodes see is left to them (S302). `later`: the job waits for another, which may
    make it, so it is a warning."""
    for path, directory in _directories(stores, launch):
        if Path(directory).exists() or not (is_node or Path(directory).parent.is_dir()):
            continue
        if later:
            said, cure = f"data directory {directory} {NOT_YET} ({CODE})", "it has to be there when the job starts"
            yield Finding(Severity.WARNING, said, cure, path=path, code=CODE)
        else:
            said, cure = f"data directory {directory} does not exist", "correct the data store, or put the data there"
            yield Finding(Severity.ERROR, said, cure, path=path, code=CODE)


def _directories(stores: Sequence[DataStore], launch: LaunchFile) -> Iterator[tuple[str, str]]:
    """The directories that data come from, and the manifest's field of each."""
    copied, mounted = (copy.source for copy in launch.copies), iter(launch.needs_dirs)
    for index in stores_with_input(stores, remote=False):
        store = stores[index]
        if store.connection.get("path"):
            directory = next(copied if store.is_copied else mounted, "")
            if directory:
                yield f"data_stores[{index}].training_data.container", directory
