"""What differs between worlds: the cluster, the jobs, and the pace."""

from __future__ import annotations

import fcntl
import os
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.ports.scheduler import Scheduler
from ffdl_batch.services.data.pending_uploads import LOCK
from tests.crash.fuzz.cluster import Cluster
from tests.crash.fuzz.companions import Companion, fork_companion
from tests.crash.fuzz.habits import SWEEP, SWEPT, VERBS_WITH_SLURM, Habits
from tests.crash.fuzz.heads import EXIT_OF_FAILURE, RECORD, RESULT, Fate
from tests.crash.fuzz.mutations import Mutation
from tests.crash.fuzz.remote import FATE, STORED, RemoteScheduler
from tests.crash.fuzz.steps import Plan


class Stage(ABC):
    """One kind of world. `environment` is what its daemons and users inherit, `pace_s` how long a life may last on a
    machine that does nothing else, `make_scheduler` makes the adapter (None = the one that is installed).
    `settle_s`: how long pending uploads may take when all work is done."""

    environment: Mapping[str, str]
    habits: Habits
    pace_s: float
    settle_s: float
    make_scheduler: Callable[[], Scheduler] | None = None

    @abstractmethod
    def arm(self, plan: Plan, pid: int) -> Sequence[str]:
        """Let the cluster strike the daemon `pid` (0 = nobody) by `plan`; what it reported since the last call."""

    @abstractmethod
    def close(self) -> None:
        """End what this stage started."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a world lies, and its seed. `database_url` "" = SQLite in the state directory."""

    base: Path
    seed: int
    database_url: str = ""


class FakeStage(Stage):
    """The cluster process of :mod:`tests.crash.fuzz.cluster`."""

    pace_s = 0.2
    settle_s = 120.0

    def __init__(self, place: Place, mutation: Mutation | None) -> None:
        base = place.base
        self.environment = environment_in(base, {"PATH": os.defpath, "HOME": str(base)}, place.database_url)
        (base / "config.toml").write_text(_FAKE_CONFIG, encoding="utf-8")
        manifests = _write_manifests(base, {fate: _MANIFEST.format(version="any", command="true") for fate in _FATES})
        self.habits = Habits(3, 5, 0.04, manifests, _FATES, self.environment, str(base))
        self._base = base
        self._socket = base / "cluster"

        def serve_cluster(parent: socket.socket) -> None:
            if mutation is not None:
                mutation.alter_cluster()
            Cluster(self._socket, place.seed).serve(parent)

        self._cluster: Companion = fork_companion("cluster", base / "cluster.log", serve_cluster)
        self.arm(Plan(), 0)  # it answers, so it listens
        self.make_scheduler = lambda: RemoteScheduler(self._socket)

    def arm(self, plan: Plan, pid: int) -> Sequence[str]:
        """See :class:`Stage`."""
        targets = [name for name in plan.targets if name.startswith("cluster ")]
        heard: Sequence[str] = self._cluster.ask({"targets": targets, "passing": plan.passing, "pid": pid})["heard"]
        return heard

    def close(self) -> None:
        """See :class:`Stage`. Uploads outlive their daemons."""
        self._cluster.end()
        for path in self._base.rglob(LOCK):
            with path.open() as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)


class SlurmStage(Stage):
    """A real Slurm: this process runs on a login node, as a user, with a configuration that was written for it."""

    pace_s = 3.0
    settle_s = 120.0

    def __init__(self, place: Place) -> None:
        base = place.base
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "FFDL_CONFIG", "SLURM_CONF") if name in os.environ}
        self.environment = environment_in(base, kept, place.database_url)
        (base / STORED).mkdir()
        manifests = _write_manifests(base, {fate: _slurm_manifest(base, fate) for fate in _FATES_WITH_SLURM})
        self.habits = Habits(
            2, 3, 0.2, manifests, _FATES_WITH_SLURM, self.environment, str(base), _PATIENCE_S, VERBS_WITH_SLURM
        )  # fmt: skip

    def arm(self, plan: Plan, pid: int) -> Sequence[str]:
        """See :class:`Stage`: a real cluster strikes nobody."""
        del plan, pid
        return ()

    def close(self) -> None:
        """See :class:`Stage`."""


def environment_in(base: Path, kept: Mapping[str, str], database_url: str) -> dict[str, str]:
    """As bare as cron's, but for `kept` and what leads to the world in `base`."""
    return {
        "FFDL_CONFIG": str(base / "config.toml"),
        "FFDL_STATE_DIR": str(base / "state"),
        "FFDL_SOCKET": str(base / "s"),
        **({"FFDL_DATABASE_URL": database_url} if database_url else {}),
        **kept,
    }


def _write_manifests(base: Path, texts: Mapping[str, str]) -> dict[str, str]:
    """The path of each fate's manifest, and of the sweep, which works. `texts` are without name and variables."""
    written = {}
    for fate, text in texts.items():
        written[fate] = f"name: {fate}\n{text}batch:\n  env: {{{FATE}: {fate}}}\n"
    written[SWEEP] = f"{written[Fate.WORKS]}  sweep: {{NUMBER: {[*range(SWEPT)]}}}\n"
    for name, text in written.items():
        (base / f"{name}.yml").write_text(text, encoding="utf-8")
    return {str(name): str(base / f"{name}.yml") for name in written}


def _slurm_manifest(base: Path, fate: str) -> str:
    ticks = _LONG_TICKS if fate == Fate.LASTING else _TICKS
    status = EXIT_OF_FAILURE if fate == Fate.FAILS else 0
    command = _LEARNER.format(record=RECORD, result=RESULT, ticks=ticks, later=_TICKS, status=status)
    return _MANIFEST.format(version="python-numpy", command=command) + _STORE.format(base=base, stored=STORED)


_FATES: Mapping[str, int] = {
    Fate.WORKS: 8, Fate.FAILS: 2, Fate.LIMITED: 3, Fate.PREEMPTED: 2, Fate.NODE_FAILS: 1, Fate.REQUEUED: 1,
    Fate.FORGOTTEN: 1, Fate.UNSTORED: 1, Fate.LASTING: 0,
}  # fmt: skip
"""How often each is, beside the others."""
_FAKE_CONFIG = """\
watch_interval_s = 0.08
doorbell_interval_s = 0.02
lease_s = 1.5
idle_exit_s = 600
[backend]
default = "fake"
"""
_MANIFEST = """\
cpus: 1
memory: 256MiB
framework:
  name: custom
  version: {version}
  command: |
    {command}
"""
_STORE = """\
data_stores:
  - id: here
    type: directory
    training_results: {{container: {stored}}}
    connection: {{path: {base}}}
"""
_FATES_WITH_SLURM: Mapping[str, int] = {Fate.WORKS: 5, Fate.FAILS: 1, Fate.LASTING: 0}
_PATIENCE_S = 10.0
_TICKS, _LONG_TICKS = 4, 60
"""Tenths of a second that a learner works, and that the first one of a lasting job does."""
# A learner that records itself, leaves a result, works for a moment, and halts when it is asked to.
_LEARNER = (
    'echo "$FFDL_RESTART" >> "$JOB_STATE_DIR/{record}"; echo numbers > "$RESULT_DIR/{result}attempt-$FFDL_ATTEMPT"; '
    """trap 'date > "$CHECKPOINT_DIR/saved"; exit 0' USR2; n={ticks}; [ "$FFDL_ATTEMPT" = 1 ] || n={later}; """
    "while [ $n -gt 0 ]; do sleep 0.1; n=$((n - 1)); done; exit {status}"
)
