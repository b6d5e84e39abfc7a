"""The scene: a user's jobs on the real cluster, what is done to them and to their nodes, and what the report says."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cluster.rig import Cluster
from tests.cluster.rig.boot import LIBEXEC
from tests.cluster.rig.rootfs import USERS
from tests.cluster.rig.topology import COMPUTE_NODES
from tests.proof.data.store import Store
from tests.proof.desk import LOGIN_NODE, VENV_PYTHON, Desk
from tests.proof.faults.plants import (
    AT_ONCE,
    DISK,
    DISK_MIB,
    FULL_DISK,
    HANGING,
    HEALTHY,
    LAGGING,
    LIMITED,
    LINES,
    LOST,
    PROGRAM,
    SICK,
    SPOT,
    Plant,
    without_bucket,
    without_image,
)
from tests.proof.faults.verdict import Found, Planted, Told

USER, RIVAL = "alice", "bob"
LOG = "/run/planted.log"
"""Where the site of the test cluster has its nodes look for lines of their kernels (tests/cluster/rig/values.env)."""
CONF = "/etc/slurm/slurm.conf"
HEALTH = f"HealthCheckProgram={LIBEXEC}/health\\nHealthCheckInterval=5\\nHealthCheckNodeState=ANY\\n"
SICK_NODES = {"gpu": "n1", "disk": "n3"}
SPOT_NODE, LOST_NODE = "n1", "n2"
APART_S = 65.0
"""So long after other ends nodes get sick: what a node says within a minute of an end speaks for it."""
STARTS_S, ENDS_S, HANGS_S = 600.0, 900.0, 600.0
ENDED = frozenset({"COMPLETED", "FAILED", "CANCELLED", "HALTED"})
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Scale:
    """How many jobs of each kind, how many healthy ones, and whether kinds that take minutes are among them."""

    each: int = 3
    healthy: int = 20
    slow: bool = True


FULL, SHORT = Scale(), Scale(1, 4, slow=False)


class Scene:
    """A context. `broken` is spoilt: `deaf`, nobody reads the nodes' logs; `quiet`, nothing is written into them."""

    def __init__(self, cluster: Cluster, scale: Scale, broken: str = "", say: Say = lambda _: None) -> None:
        self.cluster, self.scale, self._broken, self._say = cluster, scale, broken, say
        self.planted: dict[str, Planted] = {}
        self._hanging: list[str] = []
        self._stack = ExitStack()

    def __enter__(self) -> Scene:
        with self._stack:
            place = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="ffdl-proof-"))
            settings = f'staging_python = "{VENV_PYTHON}"\n'
            images = f"[frameworks.custom]\nversions = {{ {', '.join(self._images())} }}\n\n"
            self.desk = self._stack.enter_context(
                Desk(self.cluster, USER, "proof-faults", "cli", settings=settings, site=images)
            )
            scratch = f'scratch_base = "{DISK}"\n'
            self.small = self._stack.enter_context(
                Desk(self.cluster, USER, "proof-faults-small", "cli", settings=scratch)
            )
            self.store = self._stack.enter_context(Store(self.cluster, Path(place)))
            self._stack.callback(self._mend)
            self._prepare_nodes()
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *failure: object) -> None:
        self._stack.close()

    def _images(self) -> Iterable[str]:
        for number in range(self.scale.each):
            yield f'gone-{number} = "{self._image(number)}"'

    def _image(self, number: int) -> str:
        return f"/home/{USER}/proof-faults/images/gone-{number}.sif"

    def _prepare_nodes(self) -> None:
        """Small disks, logs for lines of the kernel, and root's program that reads them."""
        for node in COMPUTE_NODES:
            disk = f"mkdir -p {DISK} && mount -t tmpfs -o size={DISK_MIB}m,mode=1777 none {DISK}"
            self.cluster.run(node.name, ["sh", "-c", f"{disk} && : >{LOG}"])
        self._conf = self.cluster.run(LOGIN_NODE, ["cat", CONF]).stdout
        if self._broken != "deaf":
            self.cluster.run(LOGIN_NODE, ["sh", "-c", f"printf '{HEALTH}' >>{CONF} && scontrol reconfigure"])
        for desk in (self.desk, self.small):
            desk.write({f"{desk.base}/model/train.py": PROGRAM})

    def _mend(self) -> None:
        write = ["sh", "-c", f'printf "%s" "$0" >{CONF} && scontrol reconfigure', self._conf]
        self.cluster.run(LOGIN_NODE, write)
        for node in (one for one in COMPUTE_NODES if self.cluster.factory.init_of(one.name)):
            clear = f"umount -l {DISK}; rmdir {DISK}; rm -rf {LOG} /run/ffdl/health"
            self.cluster.run(node.name, ["sh", "-c", clear], check=False)

    # --- what happens ------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Everything, to its end."""
        self._say("preempts")  # while nothing else waits, for every other partition may take the place of these
        self._preempt()
        self._say("submits healthy jobs, and those that fail of themselves")
        self._send("healthy", HEALTHY, self.scale.healthy)
        for name, plant in AT_ONCE.items():
            self._send(name, plant)
        for number in range(self.scale.each):
            self._submit(f"full-{number}", FULL_DISK, desk=self.small)
        self._send("lag", LAGGING)
        self._hanging = self._send("hang", HANGING)
        self._lose_images_and_buckets()
        if self.scale.slow:
            self._send("limit", LIMITED)
        self._say("waits until learners that hang were told, and ends them")
        self._await_hangs()
        self.desk.run("ffdl", "cancel", *self._hanging)
        self._await_end()
        self._say("waits a minute, so that nodes that get sick now are not blamed for what was before")
        time.sleep(APART_S)
        self._sicken()
        if self.scale.slow:
            self._say("takes the power from a node")
            self._lose_node()

    def _send(self, name: str, plant: Plant, count: int = 0, node: str = "") -> list[str]:
        """Jobs of a kind; `node` is where they must run, and who must be named."""
        names = [f"{name}-{number}" for number in range(count or self.scale.each)]
        return [self._submit(one, plant, node) for one in names]

    def _submit(self, name: str, plant: Plant, node: str = "", desk: Desk | None = None) -> str:
        desk = desk or self.desk
        desk.write({f"{desk.base}/{name}.yml": plant.manifest(name)})
        options = ["-w", node] if node else []
        said = desk.run("ffdl-submit", "--parsable", *options, f"{name}.yml", "model").stdout.split()
        (job_id,) = said
        at_fault = node if plant.kind.startswith("node.") else ""
        self.planted[job_id] = Planted(name, plant.kind, at_fault)
        return job_id

    def _lose_images_and_buckets(self) -> None:
        """They are there when the jobs are submitted, and gone when they are let go."""
        uid = USERS[USER]
        whole = self.desk.host_path("/shared/images/custom.sif")
        for number in range(self.scale.each):
            image = self.desk.host_path(self._image(number))
            image.parent.mkdir(exist_ok=True)
            os.chown(image.parent, uid, uid)
            shutil.copyfile(whole, image)
            os.chown(image, uid, uid)
            self.store.make(f"gone-{number}", {"data": b"planted"})
        held = []
        for number in range(self.scale.each):
            held.append(self._submit(f"image-{number}", without_image(f"gone-{number}")))
            held.append(self._submit(f"bucket-{number}", without_bucket(self.store.endpoint, f"gone-{number}")))
            self.desk.host_path(self._image(number)).unlink()
            self.store.drop(f"gone-{number}")

        def natives() -> list[str]:
            return [job["native_id"] for job in self.desk.jobs() if job["id"] in held and job["native_id"]]

        self._until(lambda: len(natives()) == len(held), "all of them to be in the queue", STARTS_S)
        self.cluster.run(LOGIN_NODE, ["scontrol", "release", ",".join(natives())], user=USER)

    def _preempt(self) -> None:
        ids = self._send("spot", SPOT, node=SPOT_NODE)
        self._await_log(ids, "waits")
        where = ["-p", "urgent", "-w", SPOT_NODE, "--gres=gpu:4", "-o", "/dev/null"]
        argv = ["sbatch", "--wait", *where, "--wrap", "sleep 1"]
        self.cluster.run(LOGIN_NODE, argv, user=RIVAL, timeout_s=STARTS_S)

    def _sicken(self) -> None:
        """A line in the kernel's log of a node, then the end of what ran there."""
        ids = {what: self._send(what, plant, node=SICK_NODES[what]) for what, plant in SICK.items()}
        for what, jobs in ids.items():
            self._await_log(jobs, "waits")
            if self._broken != "quiet":
                self.cluster.run(SICK_NODES[what], ["sh", "-c", f'echo "$0" >>{LOG}', LINES[what]])
            if not self._broken:
                found = 'until grep -qsF "$0" /run/ffdl/health/incidents; do sleep 0.2; done'
                self.cluster.run(SICK_NODES[what], ["sh", "-c", found, LINES[what]], timeout_s=STARTS_S)
        for job_id in (one for jobs in ids.values() for one in jobs):
            self.desk.write({f"{self._attempt(job_id)}/model/go": ""})
        self._await_end()

    def _lose_node(self) -> None:
        self._await_log(self._send("lost", LOST, node=LOST_NODE), "waits")
        self.cluster.power_off(LOST_NODE)
        try:
            self._await_end()
        finally:
            self.cluster.power_on(LOST_NODE)

    # --- what is waited for ------------------------------------------------------------------------------------

    def _attempt(self, job_id: str) -> str:
        return f"{self.desk.base}/jobs/jobs/{job_id}/attempt-1"

    def _await_log(self, ids: Sequence[str], word: str) -> None:
        logs = [self.desk.host_path(f"{self._attempt(one)}/logs/learner-1/training-log.txt") for one in ids]

        def said() -> bool:
            return all(log.exists() and word in log.read_text() for log in logs)

        self._until(said, f"{ids} to say {word!r}", STARTS_S)

    def _await_hangs(self) -> None:
        def told() -> bool:
            return set(self._hanging) <= {one.job for one in self.told() if one.kind == "user.hang"}

        deadline = time.monotonic() + HANGS_S
        while not told() and time.monotonic() < deadline:
            time.sleep(1.0)  # what was not told is the judge's

    def _await_end(self) -> None:
        def ended() -> bool:
            return set(self.states().values()) <= ENDED

        self._until(ended, "all jobs to end", ENDS_S)

    def _until(self, ready: Callable[[], bool], what: str, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not ready():
            if time.monotonic() > deadline:
                raise RuntimeError(f"waited {timeout_s:.0f} s for {what}: {self.states()}")
            time.sleep(0.5)

    # --- what is seen of it ------------------------------------------------------------------------------------

    def states(self) -> dict[str, str]:
        """Of all jobs."""
        return {job["id"]: job["state"] for desk in (self.desk, self.small) for job in desk.jobs()}

    def told(self) -> list[Told]:
        """The reports' incidents."""
        rows: list[dict[str, Any]] = []
        for desk in (self.desk, self.small):
            # Its exit code says for monitoring what is new.
            said = desk.run("ffdl", "report", "faults", "--since", "1d", "--json", check=False)
            rows += json.loads(said.stdout)["faults"]["rows"]
        return [Told(row["job"], row["kind"], tuple(row["nodes"]), len(row["evidence"])) for row in rows]

    def found(self) -> Found:
        """All of it, as it is now."""
        return Found(self.planted, self.told(), self.states())
