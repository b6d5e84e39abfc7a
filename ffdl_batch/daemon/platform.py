"""Opens the database, the directories and the adapters of this daemon, and creates its services."""

from __future__ import annotations

import errno
import logging
import os
import pwd
import socket
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING

from ffdl_batch.attempt.layout import Root
from ffdl_batch.config import Settings
from ffdl_batch.config.daemon_location import check_own_directory, make_own_directory
from ffdl_batch.domain.tenant import BACKEND
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.host.running_clock import SystemClock
from ffdl_batch.host.users import TENANT
from ffdl_batch.plugins import AdapterContext
from ffdl_batch.ports.clock import Clock
from ffdl_batch.services.backends.adapters import Adapters
from ffdl_batch.services.backends.node_exclusion import NodeExclusion
from ffdl_batch.services.data.data_store_checks import StoreChecks
from ffdl_batch.services.data.pending_uploads import PendingUploads, Start
from ffdl_batch.services.deployment.admission import Admission
from ffdl_batch.services.deployment.deployer import Deployer
from ffdl_batch.services.deployment.elastic_pools import INSTALL, ElasticPools
from ffdl_batch.services.hub import Hub, HubListing, hub_of
from ffdl_batch.services.incidents.notices import Notifier
from ffdl_batch.services.job_files.database_binding import bind_tree, leave_out_earlier, refuse_older, refuse_to_forget
from ffdl_batch.services.job_files.removal import end_removed_jobs
from ffdl_batch.services.job_storage import JobStorage, SharedClock, SteadyClock
from ffdl_batch.services.leader_lease import Leases
from ffdl_batch.services.monitoring.heartbeat_loss import SilenceKeeper
from ffdl_batch.services.monitoring.watcher import Reached, Watcher
from ffdl_batch.services.pending.explanation import Explainer
from ffdl_batch.services.queries.followed_jobs import FollowedJobs
from ffdl_batch.store import Store, open_store
from ffdl_batch.store.existing_database import sqlite_file

if TYPE_CHECKING:
    from ffdl_batch.services.elastic.scaler import Scaler
    from ffdl_batch.services.elastic.size_changes import LastChanges

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Platform:
    """The parts of this daemon, from which its services are created."""

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
    hub: Hub | None = None
    """The site's hub; None in personal mode."""
    admission: Admission = field(init=False)
    elastic_pools: ElasticPools = field(init=False)

    def __post_init__(self) -> None:
        store, clock = self.storage.store, self.storage.clock
        self.leases = Leases(store, clock, self.owner, self.settings.lease_s)
        self.followed_jobs = FollowedJobs(store)
        self.node_exclusion = NodeExclusion(store, self.adapters, clock)
        self.explainer = Explainer(self.storage, self.adapters)
        self.admission = Admission(self.storage, self.hub, self._default_account)
        self.elastic_pools = ElasticPools(self.settings, self.adapters, store)

    def _default_account(self, backend: str) -> str:
        return str(self.settings.backend_settings(backend).get("account", ""))

    def deployer(self, reached: Reached = lambda _step: None) -> Deployer:
        """Return the service that hands jobs to schedulers. It calls `reached` at each step."""
        return Deployer(
            self.storage,
            self.adapters,
            self.node_exclusion,
            self.leases,
            self.admission,
            self.elastic_pools,
            reached=reached,
        )

    def watcher(self, reached: Reached = lambda _step: None) -> Watcher:
        """Return the service that follows jobs. It calls `reached` at each step."""
        return Watcher(self.storage, self.adapters, self.leases, reached)

    def pending_uploads(self, start: Start | None = None) -> PendingUploads:
        """Return the service that makes pending uploads. `start` starts one."""
        return PendingUploads(self.storage, self.adapters, self.leases, start)

    def silence_keeper(self, reached: Reached = lambda _step: None) -> SilenceKeeper:
        """Return the service that ends attempts without heartbeats. It calls `reached` at each step."""
        return SilenceKeeper(self.storage, self.adapters, self.leases, reached)

    def scaler(self, reached: Reached = lambda _step: None) -> Scaler | None:
        """Return the scaler of elastic jobs; None if no pool is configured, or if numpy or scipy is missing. It calls
        `reached` at each step."""
        if not self.elastic_pools.pools:
            return None
        if self.elastic_pools.missing:
            missing = " and ".join(self.elastic_pools.missing)
            log.warning("elastic jobs run as submitted: %s not installed; to install: %s", missing, INSTALL)
            return None
        from ffdl_batch.services.elastic.scaler import Scaler  # numpy and scipy, which few daemons need

        return Scaler(self.storage, self.adapters, self.node_exclusion, self.elastic_pools, self.leases, reached)

    def last_size_changes(self) -> LastChanges | None:
        """Return the service that finishes the changes of size that a scaler began before its pool was removed; None if
        no scaler gave a size to a job."""
        if not self.storage.store.elastic.has_sizes():
            return None
        from ffdl_batch.services.elastic.in_place import InPlaceChanges  # few daemons need these
        from ffdl_batch.services.elastic.size_changes import LastChanges

        return LastChanges(self.storage, InPlaceChanges(self.adapters).proceed)

    def notifier(self) -> Notifier:
        """Return the service that sends notices of incidents."""
        return Notifier(self.storage, self.settings, self.leases)

    def close(self) -> None:
        """Close the database."""
        self.storage.store.close()


def open_platform(settings: Settings, clock: Clock | None = None) -> Platform:
    """Create the directories, open and migrate the database, and return the platform. No adapter is asked yet.

    The caller has the lock of the state directory, so an earlier process of this daemon has ended. Its leases are ended
    here, so that a restart continues at once. `clock` is this host's. Raises StoreError, OSError, LockUnreadable.
    """
    own = clock or SystemClock()
    uid = os.getuid()
    tenant = os.environ.get(TENANT, "")
    user = tenant or pwd.getpwuid(uid).pw_name
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
        end_removed_jobs(store, root)
        shared: Clock = SharedClock(store.now, own) if store.is_shared else own
    except BaseException:
        store.close()
        raise
    hub = hub_of(os.environ)
    listing = HubListing(hub) if hub is not None else None
    context = AdapterContext(root=root.path, user=user, uid=uid, shared=listing)
    adapters = Adapters(settings, context, own, only=BACKEND if tenant else "")
    storage = JobStorage(store, root, shared, user, uid, is_tenant=bool(tenant))
    return Platform(settings, storage, adapters, owner, StoreChecks(egress=settings.egress), hub=hub)


def _look_at_tree(store: Store, root: Root) -> None:
    """Check that tree and database have the same jobs.

    Raise OSError if there are live jobs but no tree: without the file system's mount, all jobs would seem to have ended
    without a record. Raise DatabaseMissing if the tree has jobs that the database should have.
    """
    jobs = Path(root.path, "jobs")
    if not jobs.is_dir() and store.live_backends():
        why = "does not exist, but live jobs need it: mount its file system (or create it, if it is lost for good)"
        raise FileNotFoundError(errno.ENOENT, why, str(jobs))
    refuse_older(store, root)


def _make_tree(root: Root) -> None:
    """Create the directories of the tree. Raises OSError, LockUnreadable."""
    make_own_directory(Path(root.path), "jobs_dir")
    for directory in (root.doorbell, root.models, Path(root.path, "jobs")):
        Path(directory).mkdir(mode=0o700, parents=True, exist_ok=True)
