"""A database and the tree of its jobs' directories belong together.

Marks, claims and records of attempts lie in the tree. A daemon with the same rows and another tree would find no mark
of what was submitted, and submit it again. So the database remembers which tree it goes with: by a name that the tree
itself holds, so that it may be moved. And a SQLite database that is not there is not made anew where the tree has
jobs, nor is an older copy of it gone on with: jobs would be forgotten without a word.
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
            "back, or a copy of it in its place (ffdl-admin db restore FILE), or correct database_url; only to start "
            f"without these jobs, move {jobs} away"
        )


def find_unknown(root: Root, known: Callable[[], Collection[str]]) -> list[str]:
    """The ids of jobs that the tree has, that an attempt was deployed of, and that are not `known`, in order.

    The tree is looked through before the rows: an attempt is committed before its directory is made, so that a daemon
    at work is no reason for alarm. Directories of known jobs are not looked into. Raises OSError.
    """
    place = Path(root.path, "jobs")
    try:
        there = {name for name in os.listdir(place) if is_job_id(name)}  # noqa: PTH208 - names, of very many
    except FileNotFoundError:
        return []
    return sorted(job_id for job_id in there.difference(known()) if _was_deployed(root.job(job_id).path))


def _was_deployed(directory: str) -> bool:
    """What a submission left that was never acknowledged has no attempt."""
    try:
        with os.scandir(directory) as entries:
            return any(_ATTEMPT.fullmatch(entry.name) for entry in entries)
    except (FileNotFoundError, NotADirectoryError):  # the janitor's
        return False


def refuse_older(store: Store, root: Root) -> None:
    """Raise DatabaseMissing where jobs were deployed that the database does not know and was not told to do without.

    A PostgreSQL database without any job is begun with the tree of another one. Raises StoreError, OSError.
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
    """The first of these ids, and how many more there are, for a person."""
    return ", ".join(ids[:_NAMED]) + (f" and {len(ids) - _NAMED} more" if len(ids) > _NAMED else "")


def leave_out_earlier(store: Store, root: Root) -> None:
    """Have a PostgreSQL database that has no job yet do without those of its tree: they are another database's.

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
        write_text(written, f"{secrets.token_hex(8)}\n")
        with contextlib.suppress(FileExistsError):
            path.hardlink_to(written)
    finally:
        written.unlink(missing_ok=True)
    sync_directory(str(path.parent))
