"""Files in directories that are stores, while they are written: nothing of them is left by whom a signal ends.

Their names are those that listings leave out (:data:`ffdl_batch.staging.object_names.PART_NAME`): what a killed process
left is no file of anybody's.
"""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_numbers = itertools.count()
_being_made: dict[str, int] = {}
"""Names, each with the descriptor of its directory."""


@contextmanager
def half_made(directory: int) -> Iterator[str]:
    """A name in the directory for a file that is renamed when it is whole; what has the name afterwards is removed."""
    whose = f"{os.uname().nodename} {os.getpid()} {next(_numbers)}"
    name = f".ffdl-{hashlib.sha256(whose.encode()).hexdigest()[:24]}.part"
    _being_made[name] = directory
    try:
        yield name
    finally:
        _being_made.pop(name)
        with suppress(FileNotFoundError):  # it has its own name now
            os.unlink(name, dir_fd=directory)


def remove_half_made() -> None:
    """For a process that ends at once: threads may be at work still, and are not waited for."""
    for name, directory in list(_being_made.items()):
        with suppress(OSError):
            os.unlink(name, dir_fd=directory)
