"""Binds a database to the tree of its jobs' directories.

Marks, claims and records of attempts are in the tree. A daemon with the same rows and another tree would find no mark
of a submission, and submit again. So the database stores the name of its tree, which is in a file of the tree, so that
the tree can be moved. If the tree has jobs, a missing SQLite database is not created again, and an older copy of it is
refused, because jobs would be lost silently.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import secrets
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from ffdl_batch.attempt.file_writer import sync_directory, write_text
from ffdl_batch.attempt.layout import Root
from ffdl_batch.domain.job.job import is_job_id
from ffdl_batch.store import DatabaseMissing, Store, StoreError

log = logging.getLogger(__name__)

NAME = ".tree"
_JOB = "training-"
_ATTEMPT = re.compile(r"attempt-\d+", re.ASCII)
_PATIENCE_S = 5.0
_NAMED = 5


def refuse_to_forget(place: str, root: Root) -> None:
    """Raise DatabaseMissing if the tree has directories of jobs. `place` is a SQLite database that is missing or empty.

    A PostgreSQL database is not checked: users who migrate to one keep their tree. Raises OSError.
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
            "back, or a copy of it in its place (ffdl-admin db restore FILE), or correct database_url; only to start "
            f"without these jobs, move {jobs} away"
        )


def find_unknown(root: Root, known: Callable[[], Collection[str]]) -> list[str]:
    """Return the ids of jobs in the tree that have a deployed attempt and are not `known`, in order. Raises OSError.

    The tree is read before the rows: an attempt is committed before its directory is created, so a daemon at work
    causes no false alarm. Directories of known jobs are not read.
    """
    place = Path(root.path, "jobs")
    try:
        there = {name for name in os.listdir(place) if is_job_id(name)}  # noqa: PTH208 - names, of very many
    except FileNotFoundError:
        return []
    return sorted(job_id for job_id in there.difference(known()) if _was_deployed(root.job(job_id).path))


def _was_deployed(directory: str) -> bool:
    """Return whether a job's directory has an attempt. A submission that was never acknowledged leaves none."""
    try:
        with os.scandir(directory) as entries:
            return any(_ATTEMPT.fullmatch(entry.name) for entry in entries)
    except (FileNotFoundError, NotADirectoryError):  # the janitor's
        return False


def refuse_older(store: Store, root: Root) -> None:
    """Raise DatabaseMissing if the tree has deployed jobs that the database does not know and does not leave out.

    A PostgreSQL database without any job may be used with the tree of another one. Raises StoreError, OSError.
    """
    known: frozenset[str] = frozenset()

    def ask() -> frozenset[str]:
        nonlocal known
        known = store.job_ids()
        return known | store.left_out()

    unknown = find_unknown(root, ask)
    if not unknown or (store.is_shared and not known):
        return
    jobs, cure = Path(root.path, "jobs"), "ffdl-admin db restore FILE --force"
    verbs = ("job that has a directory", "was") if len(unknown) == 1 else ("jobs that have directories", "were")
    raise DatabaseMissing(
        f"the database {store.place} does not know {len(unknown)} {verbs[0]} in {jobs} and {verbs[1]} executed "
        f"({some_of(unknown)}): it is an older copy, or another one. Put the one that knew them in its place "
        f"({cure}), or correct database_url; only to continue without these jobs, restore the database over itself "
        f"(ffdl-admin db backup FILE; {cure}), or move their directories away"
    )


def some_of(ids: Sequence[str]) -> str:
    """Return the first of these ids, and the number of the others, as text."""
    return ", ".join(ids[:_NAMED]) + (f" and {len(ids) - _NAMED} more" if len(ids) > _NAMED else "")


def leave_out_earlier(store: Store, root: Root) -> None:
    """Leave the jobs in the tree out of a PostgreSQL database that has no job yet: they are another database's.

    Raises StoreError, OSError.
    """
    if not store.is_shared or store.list_jobs(uid=None, limit=1):
        return
    earlier = find_unknown(root, lambda: store.job_ids() | store.left_out())
    if earlier:
        log.warning(
            "%s begins without %d jobs that have directories in %s/jobs (%s): another database's",
            store.place, len(earlier), root.path, some_of(earlier),
        )  # fmt: skip
        store.leave_out(store.left_out().union(earlier))


def bind_tree(store: Store, root: Root, owner: str) -> None:
    """Bind the database to this tree. A database without unfinished work may change its tree.

    `owner` is this daemon in leases. Raises StoreError, also if the database has another tree, and OSError.
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
    """Return the tree's name; create it the first time."""
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
    """Create the file with the tree's name, as a whole or not at all; keep the name that another daemon gave."""
    written = path.with_name(f"{NAME}.{secrets.token_hex(8)}")
    try:
        write_text(written, f"{secrets.token_hex(8)}\n")
        with contextlib.suppress(FileExistsError):
            path.hardlink_to(written)
    finally:
        written.unlink(missing_ok=True)
    sync_directory(str(path.parent))
