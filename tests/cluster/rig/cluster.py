"""How a test cluster begins and ends: `with Cluster.session() as cluster:` in a test session's fixture."""

from __future__ import annotations

import atexit
import os
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from . import builder, cgroups, record, site
from .console import say, step
from .errors import RigError
from .nodes import tear_down
from .processes import Process
from .record import Blueprint, Record
from .rootfs import USERS
from .running import RunningCluster
from .services import Service
from .topology import COMPUTE_NODES, NODES

CHECKOUT = Path(__file__).resolve().parents[3]
ID_VARIABLE = "FFDL_TEST_CLUSTER"
"""Names the id of the cluster, where two are to be up."""


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """How a cluster is made. `values` overrides names of slurm-configs/values.env, e.g. {"KILL_WAIT_S": "10"}."""

    cluster_id: str = field(default_factory=lambda: os.environ.get(ID_VARIABLE) or record.DEFAULT_ID)
    suite: str = field(default_factory=lambda: os.environ.get("FFDL_TEST_SUITE") or "sid")
    accounting: bool = True
    values: Mapping[str, str] = field(default_factory=dict)
    checkout: Path = CHECKOUT
    wait_s: float = 900.0  # for a place on this machine
    keep: bool = False  # outlive this process; ended by `down` only


@dataclass(frozen=True, slots=True)
class Cluster(RunningCluster):
    """A running cluster. Made by `up`, `attach` or `session`, never directly."""

    @classmethod
    def up(cls, options: ClusterOptions | None = None) -> Cluster:
        """Build what is missing, and start a cluster. It ends with `down`, or with this process.

        Raises RigError: not root, no mirror, no place for one more cluster, a daemon that does not start (its logs are
        then kept in the cache directory under failed-<id>).
        """
        options = options or ClusterOptions()
        record.check_id(options.cluster_id)
        built = builder.build(options.suite, options.checkout)
        state_dir = built.cache / f"cluster-{options.cluster_id}"
        blueprint = Blueprint(
            options.suite,
            (str(state_dir / "project"), *built.layers),
            str(options.checkout),
            built.slurm_version,
            options.accounting,
            built.confined,
            dict(options.values),
        )
        cluster = cls(options.cluster_id, state_dir, blueprint)
        with record.place_on_host(options.cluster_id, options.wait_s) as abandoned:
            for leftover in abandoned:
                with step(f"cleaned up after a crash: {leftover.describe()}"):
                    _erase(leftover.cluster_id, leftover.state_dir)
            _erase(options.cluster_id, state_dir)
            record.write(Record(options.cluster_id, state_dir, Process.current(), False, blueprint))
        try:
            cluster._start(built)
        except BaseException:
            cluster.collect_logs(built.cache / f"failed-{options.cluster_id}")
            cluster.down()
            raise
        owner = None if options.keep else Process.current()
        record.write(Record(options.cluster_id, state_dir, owner, True, blueprint))
        if not options.keep:
            atexit.register(cluster._down_of, os.getpid())
        return cluster

    @classmethod
    def attach(cls, cluster_id: str) -> Cluster:
        """A cluster that is already up; RigError if there is none. `down` still ends it."""
        found = record.read(cluster_id)
        if found is None or not found.complete or found.abandoned():
            raise RigError(f"cluster {cluster_id!r} is not up; start it with `python3 -m tests.cluster.rig up`")
        return cls(cluster_id, found.state_dir, found.blueprint)

    @classmethod
    @contextmanager
    def session(cls, options: ClusterOptions | None = None) -> Iterator[Cluster]:
        """A cluster for a test session: the kept one of that id if it is up, else a new one that ends with the block.

        Ends it also on SIGTERM and SIGHUP, which would otherwise kill Python without clean-up.
        """
        options = options or ClusterOptions()
        found = record.read(options.cluster_id)
        if found is not None and found.complete and found.owner is None:
            if found.blueprint.suite != options.suite:
                raise RigError(
                    f"{found.describe()} has suite {found.blueprint.suite}, not {options.suite}; "
                    f"{ID_VARIABLE} can name another cluster"
                )
            say(f"using {found.describe()}")
            yield cls.attach(options.cluster_id)
            return
        with _ending_on_signals():
            cluster = cls.up(options)
            try:
                yield cluster
            finally:
                cluster.down()

    def down(self) -> None:
        """End every process of the cluster and remove all it made. Safe to repeat."""
        _erase(self.cluster_id, self.state_dir)
        with record.locked() as others:
            if not others:
                for spec in COMPUTE_NODES:
                    cgroups.remove_mount_point(spec.name)

    def _down_of(self, pid: int) -> None:
        """At the exit of the process that started the cluster; not of its forked children."""
        found = record.read(self.cluster_id)
        if os.getpid() == pid and found is not None and found.owner == Process.current():
            self.down()

    def _start(self, built: builder.Built) -> None:
        self.state_dir.mkdir(parents=True)
        (self.state_dir / ".ffdl-batch-rig").touch()
        with step("configuration"):
            builder.write_project(self.state_dir / "project", built)
            site.write_common(self.state_dir / "etc")
            self.write_slurm()
            for user, uid in USERS.items():
                site.make_home(self.state_dir / "home" / user, uid)
            shared = self.state_dir / "shared"
            shared.mkdir()
            shared.chmod(0o1777)
        with step("nodes"):
            self.fabric.create()
            for spec in NODES:
                self.factory.boot(spec)
            for spec in NODES:
                self.factory.wait_ready(spec)
        if self.blueprint.accounting:
            with step("accounting"):
                control = self.services("ctl")
                control.start(Service.MARIADB)
                control.start(Service.SLURMDBD)
                control.make_accounts()
        with step("slurm"):
            for spec in NODES:
                self.start_services(spec.name)
            self.wait_idle()


def _erase(cluster_id: str, state_dir: Path) -> None:
    """Remove all of a cluster, the record last, so that an interrupted removal is taken up again."""
    tear_down(cluster_id)
    record.remove_state(state_dir)
    record.forget(cluster_id)


@contextmanager
def _ending_on_signals() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into SystemExit for the time of the block, where nobody else handles them."""

    def leave(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    taken = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is signal.SIG_DFL]
    for number in taken:
        signal.signal(number, leave)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)
