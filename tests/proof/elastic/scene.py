"""Run the jobs of the proof on the real cluster, and kill the daemon and nodes while they run."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import field
from pathlib import Path

from ffdl_batch.host.fast_dataclass import dataclass
from tests.cluster.rig import Cluster, CommandError
from tests.cluster.rig.topology import COMPUTE_NODES
from tests.proof.chain import ProofError, until
from tests.proof.desk import LOGIN_NODE, SOURCE, VENV_PYTHON, Desk
from tests.proof.elastic.evidence import Course, Outage, Places, collect, decisions, expand
from tests.proof.elastic.jobs import GPUS, JOBS, manifest, model_files, read, samples_of

USER = "alice"
INTERVAL_S = 5
POOL = f"""
[elastic.pools.default]
gpus = {GPUS}
backend = "slurm"
interval_s = {INTERVAL_S}
min_between_s = 15
"""
SETTINGS = "fence_s = 10\nkill_wait_s = 5\n"
LONGEST_S = 600.0
"""Maximum duration of all jobs together before the proof fails."""
LOOK_S = 1.0
OFF_S = 30.0
"""How long a node has no power; no node boots faster. If a node returns within seconds, Slurm 26.05 delivers its late
message about the lost run to the new run of the same job, terminates that, and keeps the GPUs allocated until it
repeats the message after a minute."""
FIRST_KILL_S, BETWEEN_KILLS_S = 35.0, (25.0, 35.0)
DAEMON, NODE = "daemon", "node"
_USED = ("idle", "mixed", "allocated", "planned")
"""States of a node on which Slurm starts jobs."""
_ENDED = ("COMPLETED", "FAILED", "CANCELLED", "HALTED")
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """How to run the jobs. Every third kill is that of a node."""

    elastic: bool
    kills: int = 0
    seed: int = 1
    broken: str = ""
    """Name of a fault of :mod:`tests.proof.elastic.broken_daemon`."""

    def moments(self) -> list[tuple[float, str]]:
        """Return the times of the kills, in seconds after the first submission, and their targets."""
        chance, at = random.Random(self.seed), FIRST_KILL_S
        found = []
        for number in range(self.kills):
            found.append((at, NODE if number % 3 == 2 else DAEMON))
            at += chance.uniform(*BETWEEN_KILLS_S)
        return found


def run_jobs(cluster: Cluster, plan: Plan, say: Say) -> Course:
    """Submit the jobs at their times, wait until all have ended, and return the evidence."""
    kind = "elastic" if plan.elastic else "fixed"
    times = read()
    with Desk(cluster, USER, f"proof-{kind}", "cli", settings=SETTINGS, site=POOL if plan.elastic else "") as desk:
        learner = Path(__file__).with_name("learner.py").read_text(encoding="utf-8")
        model = {**model_files(times), "learner.py": learner}
        desk.write({f"{desk.base}/model/{name}": text for name, text in model.items()})
        desk.write({f"{desk.base}/{job.name}.yml": manifest(times, job, elastic=plan.elastic) for job in JOBS})
        if plan.broken:
            _start_broken(desk, plan.broken)
        run = _Run(desk, plan, say)
        try:
            run.play()
        finally:
            run.mend()
        trained = collect(desk, run.ids, {job: samples_of(times, job) for job in JOBS}, run.places)
        state = desk.host_path(f"{desk.base}/state")
        return Course(trained, tuple(run.outages), run.killed, decisions(state) if plan.elastic else ())


def _start_broken(desk: Desk, broken: str) -> None:
    """Start a daemon whose policy is broken. The commands of the user find it running."""
    argv = [VENV_PYTHON, "-m", "tests.proof.elastic.broken_daemon", broken]
    environment = {**desk.environment, "PYTHONPATH": SOURCE}
    desk.cluster.popen(LOGIN_NODE, argv, user=desk.user, env=environment, cwd=desk.base)
    until(lambda: desk.host_pid() is not None, "the start of the broken daemon", 60.0)


@dataclass(slots=True)
class _Run:
    desk: Desk
    plan: Plan
    say: Say
    ids: dict[str, str] = field(default_factory=dict)
    """Ids of the jobs, by name."""
    outages: list[Outage] = field(default_factory=list)
    killed: int = 0
    places: Places = field(init=False)
    _off: tuple[str, float] | None = None
    """The node that is powered off or not used by Slurm yet, and since when."""

    def __post_init__(self) -> None:
        self.places = Places(self.desk)

    def play(self) -> None:
        """Submit and kill as planned, until all jobs have ended. Raises ProofError if that takes too long."""
        began, coming, kills = time.monotonic(), list(JOBS), self.plan.moments()
        states: dict[str, str] = {}
        while coming or self._off or not states or any(state not in _ENDED for state in states.values()):
            passed_s = time.monotonic() - began
            if passed_s > LONGEST_S:
                raise ProofError(f"after {LONGEST_S:.0f} s the jobs are {states}")
            while coming and passed_s >= coming[0].arrives_s:
                self._submit(coming.pop(0).name)
            if kills and passed_s >= kills[0][0]:
                self._kill(kills.pop(0)[1])
            self._power()
            self.places.look()
            states = {one["id"]: one["state"] for one in self.desk.jobs()}
            time.sleep(LOOK_S)

    def mend(self) -> None:
        """Power on a node that is still off."""
        if self._off is not None and self.desk.cluster.factory.init_of(self._off[0]) is None:
            self.desk.cluster.power_on(self._off[0])
            self._declare(self._off[0], "RESUME")

    def _submit(self, name: str) -> None:
        self.ids[name] = self.desk.run("ffdl-submit", "--parsable", f"{name}.yml", "model").stdout.strip()

    def _kill(self, what: str) -> None:
        if what == DAEMON:
            if (pid := self.desk.host_pid()) is not None:
                os.kill(pid, signal.SIGKILL)
                until(lambda: self.desk.host_pid() is None, "the end of the daemon", 60.0)
                self.killed += 1
                self.say("killed the daemon")
        elif self._off is None:
            node = self._busiest()
            self._off = (node, time.time())
            self.desk.cluster.power_off(node)
            self._declare(node, "DOWN")
            self.say(f"powered off node {node}")

    def _busiest(self) -> str:
        """Return the node with the most running jobs."""
        listed = self.desk.run("squeue", "--me", "--noheader", "--states=R", "--format=%N").stdout
        names = [node.name for node in COMPUTE_NODES]
        used = [node for line in listed.split() for node in expand(line)]
        return max(names, key=used.count)

    def _declare(self, node: str, state: str) -> None:
        """Set the state of a node in Slurm, as a site's monitoring does. Slurm itself would notice a lost node only
        after minutes, and would not notice one that returns this soon."""
        self.desk.cluster.scontrol("update", f"NodeName={node}", f"State={state}", "Reason=power")

    def _power(self) -> None:
        """Power on a node that was off long enough, and record when Slurm uses it again."""
        if self._off is None:
            return
        node, since = self._off
        if time.time() - since < OFF_S:
            return
        if self.desk.cluster.factory.init_of(node) is None:
            self.desk.cluster.power_on(node)
            return
        shown = self.desk.run("sinfo", "--noheader", "--Node", f"--nodes={node}", "--format=%T").stdout.split()
        if shown and shown[0].startswith("down"):
            with suppress(CommandError):  # Slurm resumes it by itself if slurmd registers just now
                self._declare(node, "RESUME")
        elif shown and shown[0] in _USED:
            self.outages.append(Outage(node, since, time.time()))
            self._off = None
            self.say(f"Slurm uses node {node} again")
