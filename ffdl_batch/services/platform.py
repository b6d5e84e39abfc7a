"""What every service needs: settings, store, clock, directories and adapters."""

from __future__ import annotations

import errno
import os
import pwd
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from ffdl_batch.attempt.layout import Root
from ffdl_batch.config import Settings
from ffdl_batch.config.daemon_location import check_own_directory, make_own_directory
from ffdl_batch.plugins import AdapterContext
from ffdl_batch.ports.clock import Clock, SystemClock
from ffdl_batch.services.backends.adapters import Adapters
from ffdl_batch.services.backends.node_exclusion import Lemons
from ffdl_batch.services.clocks import SharedClock, SteadyClock, file_time
from ffdl_batch.services.data.data_store_checks import StoreChecks
from ffdl_batch.services.job_files.database_binding import bind_tree, leave_out_earlier, refuse_older, refuse_to_forget
from ffdl_batch.services.job_files.tree_probe import Tree
from ffdl_batch.services.pending.trial_requests import Desk
from ffdl_batch.services.queries.followed_jobs import Looks
from ffdl_batch.store import Store, open_store
from ffdl_batch.store.existing_database import sqlite_file


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks: the peer of the socket, never a field of the request."""

    uid: int
    is_admin: bool = False


@dataclass(slots=True)
class Platform:
    """Everything a service works with. `owner` names this daemon in leases, the same in each of its lives.

    `clock` tells the time of what is written into the database, by the database's clock where several daemons share it.
    `file_time` tells it for files in a directory of the tree (see :mod:`ffdl_batch.services.clocks`). `tree` knows
    whether the tree's file system answers. `store_checks` asks data stores at submission. `looks` sees the rows of jobs
    that are followed. `desk` puts trials to schedulers. `lemons` knows nodes that fail often.
    """

    settings: Settings
    store: Store
    clock: Clock
    root: Root
    user: str
    uid: int
    adapters: Adapters
    owner: str
    file_time: Callable[[str], float] = file_time
    store_checks: StoreChecks = field(default_factory=StoreChecks)
    desk: Desk = field(default_factory=Desk)
    tree: Tree = field(init=False)
    looks: Looks = field(init=False)
    lemons: Lemons = field(init=False)

    def __post_init__(self) -> None:
        self.tree = Tree(self.root)
        self.looks = Looks(self.store)
        self.lemons = Lemons(self.settings, self.store, self.adapters, self.clock)

    def close(self) -> None:
        """Close the database."""
        self.store.close()


def open_platform(settings: Settings, clock: Clock | None = None) -> Platform:
    """Directories made, database migrated and open, adapters not yet asked. Raises StoreError, OSError, LockUnreadable.

    The caller holds the lock of the state directory: whoever had it before is dead, and leases that this daemon
    held in an earlier life end here, so that a restart goes on at once. `clock` is this host's.
    """
    own = clock or SystemClock()
    uid = os.getuid()
    user = pwd.getpwuid(uid).pw_name
    root = Root(settings.jobs_dir)
    make_own_directory(Path(settings.state_dir))
    check_own_directory(Path(settings.jobs_dir), "jobs_dir")
    if (file := sqlite_file(settings.database)) is not None:
        check_own_directory(file.parent, "database_url")
    store = open_store(
        settings.database,
        clock=SteadyClock(own),
        may_begin=lambda place: refuse_to_forget(place, root),
        may_use=lambda store: _look_at_tree(store, root),
    )
    try:
        _make_tree(root)
        owner = f"{socket.gethostname()}:{settings.state_dir}"
        store.end_leases_of(owner)
        bind_tree(store, root, owner)
        leave_out_earlier(store, root)
        shared: Clock = SharedClock(store.now, own) if store.is_shared else own
    except BaseException:
        store.close()
        raise
    adapters = Adapters(settings, AdapterContext(root=root.path, user=user, uid=uid), own)
    return Platform(settings, store, shared, root, user, uid, adapters, owner)


def _look_at_tree(store: Store, root: Root) -> None:
    """Raise OSError where jobs live whose files ought to be in the tree: in the empty place of a file system that is
    not mounted, everything would look as if it had ended without a word. Raise DatabaseMissing where the tree has jobs
    that ought to be in the database."""
    jobs = Path(root.path, "jobs")
    if not jobs.is_dir() and store.live_backends():
        why = "not there, though jobs live in it: mount its file system (or make it, if it is gone for good)"
        raise FileNotFoundError(errno.ENOENT, why, str(jobs))
    refuse_older(store, root)


def _make_tree(root: Root) -> None:
    """Make the directories of all jobs. Raises OSError, LockUnreadable."""
    make_own_directory(Path(root.path), "jobs_dir")
    for directory in (root.doorbell, root.models, Path(root.path, "jobs")):
        Path(directory).mkdir(mode=0o700, parents=True, exist_ok=True)
