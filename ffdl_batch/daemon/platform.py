"""Opens database, directories and adapters of this daemon, and builds from them what services take."""

from __future__ import annotations

import errno
import os
import pwd
import socket
from dataclasses import dataclass, field
from pathlib import Path

from ffdl_batch.attempt.layout import Root
from ffdl_batch.config import Settings
from ffdl_batch.config.daemon_location import check_own_directory, make_own_directory
from ffdl_batch.host.running_clock import SystemClock
from ffdl_batch.plugins import AdapterContext
from ffdl_batch.ports.clock import Clock
from ffdl_batch.services.backends.adapters import Adapters
from ffdl_batch.services.backends.node_exclusion import NodeExclusion
from ffdl_batch.services.data.data_store_checks import StoreChecks
from ffdl_batch.services.data.pending_uploads import PendingUploads, Start
from ffdl_batch.services.deployment.deployer import Deployer
from ffdl_batch.services.incidents.notices import Notifier
from ffdl_batch.services.job_files.database_binding import bind_tree, leave_out_earlier, refuse_older, refuse_to_forget
from ffdl_batch.services.job_storage import JobStorage, SharedClock, SteadyClock
from ffdl_batch.services.leader_lease import Leases
from ffdl_batch.services.monitoring.heartbeat_loss import SilenceKeeper
from ffdl_batch.services.monitoring.watcher import Reached, Watcher
from ffdl_batch.services.pending.explanation import Explainer
from ffdl_batch.services.queries.followed_jobs import FollowedJobs
from ffdl_batch.store import Store, open_store
from ffdl_batch.store.existing_database import sqlite_file


@dataclass(slots=True)
class Platform:
    """The parts of this daemon that services are given."""

    settings: Settings
    storage: JobStorage
    adapters: Adapters
    owner: str
    """The name of this daemon in leases, the same after each restart."""
    store_checks: StoreChecks = field(default_factory=StoreChecks)
    leases: Leases = field(init=False)
    followed_jobs: FollowedJobs = field(init=False)
    node_exclusion: NodeExclusion = field(init=False)
    explainer: Explainer = field(init=False)

    def __post_init__(self) -> None:
        store, clock = self.storage.store, self.storage.clock
        self.leases = Leases(store, clock, self.owner, self.settings.lease_s)
        self.followed_jobs = FollowedJobs(store)
        self.node_exclusion = NodeExclusion(store, self.adapters, clock)
        self.explainer = Explainer(self.storage, self.adapters)

    def deployer(self, reached: Reached = lambda _step: None) -> Deployer:
        """Return a service that hands jobs to schedulers. `reached` is told of its steps."""
        return Deployer(self.storage, self.adapters, self.node_exclusion, self.leases, reached)

    def watcher(self, reached: Reached = lambda _step: None) -> Watcher:
        """Return a service that follows jobs. `reached` is told of its steps."""
        return Watcher(self.storage, self.adapters, self.leases, reached)

    def debt_payer(self, start: Start | None = None) -> PendingUploads:
        """Return a service that stores pending uploads. `start` starts one."""
        return PendingUploads(self.storage, self.adapters, self.leases, start)

    def silence_keeper(self, reached: Reached = lambda _step: None) -> SilenceKeeper:
        """Return a service that ends attempts without heartbeats. `reached` is told of its steps."""
        return SilenceKeeper(self.storage, self.adapters, self.leases, reached)

    def notifier(self) -> Notifier:
        """Return a service that sends notices of incidents."""
        return Notifier(self.storage, self.settings, self.leases)

    def close(self) -> None:
        """Close the database."""
        self.storage.store.close()


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
    return Platform(settings, JobStorage(store, root, shared, user, uid), adapters, owner)


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
