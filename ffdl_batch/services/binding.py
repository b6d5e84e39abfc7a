"""A database and the tree of its jobs' directories belong together.

Marks, claims and records of attempts lie in the tree. A daemon with the same rows and another tree would find no mark
of what was submitted, and submit it again. So the database remembers which tree it goes with: by a name that the tree
itself holds, so that it may be moved. And a SQLite database that is not there is not made anew where the tree has
jobs: they would be forgotten without a word.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from pathlib import Path

from ffdl_batch.domain.jobdir import Root
from ffdl_batch.services.whole_files import sync_directory, write_whole
from ffdl_batch.store import DatabaseMissing, Store, StoreError

NAME = ".tree"
_JOB = "training-"
_PATIENCE_S = 5.0


def refuse_to_forget(place: str, root: Root) -> None:
    """Raise DatabaseMissing where the tree has directories of jobs. `place` is a SQLite database that is not there, or
    empty. Raises OSError.

    A PostgreSQL database is not asked about: whoever begins to use one may bring the tree along.
    """
    jobs = Path(root.path, "jobs")
    try:
        with os.scandir(jobs) as entries:
            found = any(entry.name.startswith(_JOB) for entry in entries)
    except FileNotFoundError:
        return
    if found:
        raise DatabaseMissing(
            f"there is no database {place}, or it is empty, though {jobs} has directories of jobs: put the database "
            "back, or a copy of it in its place (ffdl-admin db restore FILE), or correct database_url; only to begin "
            f"anew without these jobs, move {jobs} away"
        )


def bind_tree(store: Store, root: Root, owner: str) -> None:
    """Make sure that the database goes with this tree; one that has no work left may get another tree.

    `owner` is this daemon in leases. Raises StoreError, OSError.
    """
    name = _name_of(root)
    mine = f"{name} {root.path}"
    bound = store.bind_tree(mine)
    bound_name, _, place = bound.partition(" ")
    if bound_name == name or (store.is_idle(owner) and store.bind_tree(mine, instead_of=bound) == mine):
        return
    raise StoreError(
        f"the jobs of the database {store.place} have their directories in {place}, but jobs_dir is {root.path}: set "
        "jobs_dir to that directory (daemons that share a database share it, too), or database_url to another "
        f"database; only if that directory is gone for good, write {bound_name} into {Path(root.path, NAME)}"
    )


def _name_of(root: Root) -> str:
    """The tree's own name; it gets one the first time."""
    path = Path(root.path, NAME)
    if not path.exists():
        _give_name(path)
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        name = path.read_text(encoding="ascii").strip()
        if name or time.monotonic() > deadline:
            break
        time.sleep(0.05)  # a daemon of an older release is writing it
    if not name:  # it was killed over it
        path.unlink(missing_ok=True)
        return _name_of(root)
    return name


def _give_name(path: Path) -> None:
    """A whole file under its final name, or none, whenever this process dies; another daemon's name stays."""
    written = path.with_name(f"{NAME}.{secrets.token_hex(8)}")
    try:
        write_whole(written, f"{secrets.token_hex(8)}\n", durable=True)
        with contextlib.suppress(FileExistsError):
            path.hardlink_to(written)
    finally:
        written.unlink(missing_ok=True)
    sync_directory(path.parent)
