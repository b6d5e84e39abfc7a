"""How long it takes from the death of one part until things go on: daemon, deployer, head, node controller, learner.

Each part is killed with SIGKILL, and what follows is timed where a user sees it: in a client that follows the job, or
that asks next. Without a cluster the processes of a job are the local backend's, and Slurm is the fake one.
"""

from __future__ import annotations

import json
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks.knobs import Knobs
from tests.benchmarks.place import Place, await_true, open_place
from tests.benchmarks.recovery_table import Recovery
from tests.benchmarks.scenes import AtDesk, Here, Scene, end_daemon, victim
from tests.cluster.rig import Cluster
from tests.faults.two_daemons import LEASE_S, SUBMIT_S, Pair, SharedWorld, running_pair
from tests.postgres import running_postgres
from tests.proof.desk import Desk
from tests.proof.resume import SETTINGS

SEES_S = 300.0
"""How long what follows is waited for; never how long it takes."""
LIFE_S = 5.0
"""credential_life_s on this machine, in the place of MUNGE's 300 s. The desks of the real cluster say their own."""
DESK_LIFE_S = 15.0
_WORKS = "while :; do sleep 0.2; done"
_MANIFESTS = {"once": "{}", "again": "{retry: {failures: 1}}"}
_PARTS = {"head": ("Guardian", "head controller"), "node": ("helper", "node controller")}


@dataclass(frozen=True, slots=True)
class Sight:
    """A client saw a job in a state, at a time since the epoch."""

    at: float
    state: str
    attempt: int


class Follower:
    """A client that follows a job; a context."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._sights: list[Sight] = []
        self._reader = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> Follower:
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._sights.append(Sight(**json.loads(line)))

    def wait(self, fits: Callable[[Sight], bool], what: str) -> Sight:
        """The first sight that fits."""
        found: list[Sight] = []

        def is_seen() -> bool:
            is_over = not self._reader.is_alive()
            found.extend(sight for sight in list(self._sights) if fits(sight))
            if is_over and not found:
                assert self._process.stderr is not None
                raise RuntimeError(f"never saw {what}, but {self._sights}; {self._process.stderr.read()[-1500:]}")
            return bool(found)

        await_true(is_seen, f"a client to see {what}; it saw {self._sights}", patience_s=SEES_S, pause_s=0.01)
        return found[0]


def measure_recovery(knobs: Knobs, cluster: Cluster | None) -> list[Recovery]:
    """All parts on this machine; and on the cluster, where there is one."""
    found: list[Recovery] = []
    with open_place("local") as place:
        scene = _furnished(place, "local backend")
        found += [_kill_daemon(scene, knobs.deaths), *_kill_parts(scene, knobs.deaths)]
    with open_place("slurm", life_s=LIFE_S) as place:
        (place.slurm / "still").touch()
        found += _kill_deployer(_furnished(place, "fake Slurm"), knobs.deaths, LIFE_S)
    found.append(_kill_one_of_two(knobs.deaths))
    if cluster is not None:
        with Desk(cluster, "alice", "bench-recovery", "cli", settings=SETTINGS) as desk:
            scene_there = _furnished_desk(cluster, desk)
            found += [_kill_daemon(scene_there, knobs.deaths), *_kill_parts(scene_there, knobs.deaths)]
            found += _kill_deployer(scene_there, knobs.deaths, DESK_LIFE_S)
    return found


def _furnished(place: Place, where: str) -> Here:
    place.add_model()
    for name, batch in _MANIFESTS.items():
        place.add_manifest(name, _WORKS, batch)
    return Here(place, where)


def _furnished_desk(cluster: Cluster, desk: Desk) -> AtDesk:
    framework = f"framework: {{name: custom, version: python-numpy, command: {json.dumps(_WORKS)}}}"
    head = "cpus: 1\nmemory: 64MiB\n"
    texts = {name: f"name: {name}\n{head}batch: {batch}\n{framework}\n" for name, batch in _MANIFESTS.items()}
    files = {f"{desk.base}/{name}.yml": text for name, text in texts.items()}
    desk.write({**files, f"{desk.base}/model/README": "nothing is needed here\n"})
    return AtDesk(cluster, desk)


# ------------------------------------------------------------------------------------------- daemon and deployer


def _kill_daemon(scene: Scene, deaths: int) -> Recovery:
    """Until the next call of a client is answered, which starts the next daemon."""
    taken = []
    scene.run("ffdl", "list")
    for _ in range(deaths):
        died = time.time()
        end_daemon(scene, signal.SIGKILL)
        taken.append(float(scene.run(*scene.program("answer"))) - died)
    return Recovery("API", "daemon", "a client's next call is answered", scene.where, taken)


def _kill_deployer(scene: Scene, deaths: int, life_s: float) -> list[Recovery]:
    """Between lease and sbatch, and once it is noted that sbatch is about to run: until Slurm has the job."""
    steps = {
        "written": "its job is handed to Slurm",
        "marked": f"the same, sbatch perhaps begun (credentials live {life_s:g} s)",
    }
    return [
        Recovery("LCM", "deployer", until, scene.where, [_die_deploying(scene, step) for _ in range(deaths)])
        for step, until in steps.items()
    ]


def _die_deploying(scene: Scene, step: str) -> float:
    end_daemon(scene, signal.SIGTERM)
    plan = scene.base / "plan"
    told = scene.seen_here(str(plan.with_name("plan.done")))
    told.unlink(missing_ok=True)
    stopping = scene.start_stopping(plan)
    scene.run("sh", "-c", 'echo "$0 KILL" >"$1.new" && mv "$1.new" "$1"', step, str(plan))
    job_id = _submit(scene, "once", "--hold")
    await_true(told.exists, f"the deployer's death at {step!r}")
    stopping.wait(SEES_S)
    with _following(scene, job_id) as follower:
        taken = follower.wait(lambda sight: sight.state == "QUEUED", "the job in the queue").at - told.stat().st_mtime
    scene.run("ffdl", "cancel", job_id)
    return taken


def _kill_one_of_two(deaths: int) -> Recovery:
    """On a shared database: until the other daemon has taken over, which it may when the leases are over."""
    with (
        tempfile.TemporaryDirectory(prefix="ffdl-bench-") as directory,
        running_postgres() as server,
        server.database() as name,
    ):
        world = SharedWorld(Path(directory), server.url(name))
        (world.slurm / "still").touch()
        with running_pair(world) as pair:
            taken = [_die_beside(pair) for _ in range(deaths)]
    until = f"another daemon hands its job to Slurm (leases of {LEASE_S + SUBMIT_S:g} s)"
    return Recovery("LCM", "deployer", until, "fake Slurm, PostgreSQL", taken)


def _die_beside(pair: Pair) -> float:
    world = pair.world
    pair.start()
    world.stop_at("written", "KILL")
    job_id = pair.one.submit()
    _, other = pair.by_pid(world.stopped_pid())
    died = world.plan.with_name("plan.done").stat().st_mtime

    def is_handed_over() -> bool:
        return world.job(job_id).native_id != ""

    await_true(is_handed_over, f"daemon {other.name} to hand {job_id} over", patience_s=SEES_S, pause_s=0.02)
    return time.time() - died


# ------------------------------------------------------------------------------------------- the parts of a job


def _kill_parts(scene: Scene, deaths: int) -> list[Recovery]:
    """Head, node controller and learner, one after the other."""
    found = []
    for kind, (stands_for, part) in _PARTS.items():
        pairs = [_die_running(scene, kind, "once", "PROCESSING") for _ in range(deaths)]
        for column, until in enumerate(("the loss is seen", "the next attempt is PROCESSING")):
            found.append(Recovery(stands_for, part, until, scene.where, [pair[column] for pair in pairs]))
    ends = {
        ("once", "FAILED"): "FAILED is seen (no budget)",
        ("again", "PROCESSING"): "the next attempt is PROCESSING (failures: 1)",
    }
    for (manifest, state), until in ends.items():
        pairs = [_die_running(scene, "learner", manifest, state) for _ in range(deaths)]
        found.append(Recovery("learner", "learner", until, scene.where, [pair[1] for pair in pairs]))
    return found


def _die_running(scene: Scene, kind: str, manifest: str, state: str) -> tuple[float, float]:
    """Seconds from the KILL until a client sees the first change, and until it sees `state` after it."""
    job_id = _submit(scene, manifest)
    with _following(scene, job_id) as follower:
        follower.wait(lambda sight: sight.state == "PROCESSING", "the job running")
        host, pid = victim(scene, _job_dir(scene, job_id), kind)
        died = time.time()
        scene.kill(host, pid)
        loss = follower.wait(lambda sight: sight.at > died, f"that the {kind} is dead")
        later = follower.wait(lambda sight: sight.at > died and sight.state == state, f"{state} after a dead {kind}")
    scene.run("ffdl", "cancel", job_id, check=False)
    scene.run("ffdl", "wait", job_id, check=False)
    return loss.at - died, later.at - died


def _job_dir(scene: Scene, job_id: str) -> str:
    return str(json.loads(scene.run("ffdl", "show", "--json", job_id))["job"]["job_dir"])


def _submit(scene: Scene, manifest: str, *options: str) -> str:
    base = scene.base
    return scene.run("ffdl-submit", "--parsable", *options, str(base / f"{manifest}.yml"), str(base / "model")).strip()


@contextmanager
def _following(scene: Scene, job_id: str) -> Iterator[Follower]:
    with Follower(scene.start(*scene.program("follow"), job_id)) as follower:
        yield follower
