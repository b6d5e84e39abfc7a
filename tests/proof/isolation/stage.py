"""The stage: two users' jobs on the same two nodes, listeners everywhere, a world beyond; and who fires from where."""

from __future__ import annotations

import contextlib
import json
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.cluster.rig import Cluster
from tests.cluster.rig.command import run
from tests.proof.desk import Desk
from tests.proof.isolation.values import (
    ADDRESS,
    ATTACKER,
    FIRST,
    GATEWAY,
    HOST_PORT,
    NAMED,
    OTHER,
    OUTSIDE,
    SECOND,
    SOURCE,
    SPARE_PORT,
    Hit,
    Shot,
    learner_port,
)

HERE = Path(__file__).resolve().parent
PROBER = ("python3", "-m", "prober")
STARTS_S, ANSWERS_S = 600.0, 300.0
BOUND = "reach"
"""A directory of the attacker's that is their learners' data, and the socket in it."""
PATIENT_S, ARRIVES_S = 6.0, 30.0
"""How long the answer to what must come through may take, and the datagram of one that nobody answers."""
ONE_WAY = frozenset({"vxlan", "unsealed"})
SETTLES_S = 0.5
"""How long a datagram that nobody answers may be under way to a listener."""
ENDED = frozenset({"COMPLETED", "FAILED", "HALTED", "CANCELLED"})


class StageError(Exception):
    """The stage could not be set, so nothing was proved."""


@dataclass(slots=True)
class Job:
    """A running job of one of the two. `places` are the names under which its learners fire."""

    desk: Desk
    job_id: str
    native: str
    level: str
    learners: int
    label: str
    secret: str
    target: str
    job_dir: str
    orders: dict[int, int] = field(default_factory=dict)

    @property
    def mailbox(self) -> Path:
        """Where orders and answers lie, as this process finds them."""
        return self.desk.host_path(f"{self.job_dir}/checkpoints")


class Stage:
    """A context: all that it makes on the cluster ends with it."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._stack = ExitStack()
        self.desks: dict[str, Desk] = {}
        self.listeners: dict[str, subprocess.Popen[str]] = {}
        self._journals: list[Path] = []
        self.secret = secrets.token_hex(8)

    def __enter__(self) -> Stage:
        """Desks of both users, a gateway, and a listener of the other user's on every node."""
        with self._stack:
            for user in (ATTACKER, OTHER):
                self.desks[user] = self._stack.enter_context(Desk(self.cluster, user, "proof-isolation", "cli"))
            self._stack.enter_context(self._world())
            for node in ADDRESS:
                self._listen(node)
            self._offer()
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *failure: object) -> None:
        self._stack.close()

    # --- what is there to be reached ---------------------------------------------------------------------------

    @contextlib.contextmanager
    def _world(self) -> Iterator[None]:
        """A gateway on the nodes' network, and an address beyond it that answers."""
        beyond = self.cluster.fabric.bridge_netns
        for address in (f"{GATEWAY}/24", f"{OUTSIDE}/32"):
            run(["ip", "-n", beyond, "addr", "replace", address, "dev", "br0"])
        for node in ADDRESS:
            self.cluster.run(node, ["ip", "route", "replace", "default", "via", GATEWAY])
        config = self._config(self.desks[OTHER], "gateway", [HOST_PORT], host_paths=True)
        argv = ["ip", "netns", "exec", beyond, sys.executable, "-m", "prober", "listen", str(config)]
        listener = subprocess.Popen(
            argv, cwd=HERE, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        try:
            self._hears(listener, "gateway")
            yield
        finally:
            self.cluster.kill(listener)
            for node in ADDRESS:
                self.cluster.run(node, ["ip", "route", "del", "default", "via", GATEWAY], check=False)
            for address in (f"{GATEWAY}/24", f"{OUTSIDE}/32"):
                run(["ip", "-n", beyond, "addr", "del", address, "dev", "br0"], check=False)

    def _listen(self, node: str) -> None:
        """A process of the other user's that answers on the node's own addresses; and files that all may read."""
        desk, label = self.desks[OTHER], f"host-{node}"
        config = self._config(desk, label, [HOST_PORT, SPARE_PORT])
        self.listeners[node] = self._answer(node, OTHER, config)
        for directory in ("/tmp", "/dev/shm"):
            path = f"{directory}/{label}"
            self.cluster.run(node, ["sh", "-c", 'cat >"$1"; chmod 644 "$1"', "sh", path], user=OTHER, input=self.secret)
            self._stack.callback(self.cluster.run, node, ["rm", "-f", path], check=False)

    def _offer(self) -> None:
        """A process of the attacker's on a node, whose socket lies in a directory that is bound into their learners."""
        desk, socket = self.desks[ATTACKER], f"{self.desks[ATTACKER].base}/{BOUND}/{BOUND}"
        desk.write({f"{socket}.txt": ""})
        self._answer(FIRST, ATTACKER, self._config(desk, BOUND, [], [socket]))

    def _answer(self, node: str, user: str, config: Path) -> subprocess.Popen[str]:
        argv = [*PROBER, "listen", str(config)]
        listener = self.cluster.popen(node, argv, user=user, cwd=SOURCE, stdin=subprocess.PIPE)
        self._stack.callback(self.cluster.kill, listener)
        self._hears(listener, node)
        return listener

    def _config(
        self, desk: Desk, label: str, ports: Sequence[int], sockets: Sequence[str] = (), *, host_paths: bool = False
    ) -> Path:
        journal, config = f"{desk.base}/journal-{label}.txt", f"{desk.base}/{label}.json"
        self._journals.append(desk.host_path(journal))
        place = str(desk.host_path(journal)) if host_paths else journal
        value = {"label": label, "ports": [*ports], "sockets": [f"@{label}-abstract", *sockets], "journal": place}
        desk.write({config: json.dumps(value)})
        return desk.host_path(config) if host_paths else Path(config)

    @staticmethod
    def _hears(listener: subprocess.Popen[str], name: str) -> None:
        assert listener.stdout is not None
        said = listener.stdout.readline()
        if said != "listening\n":
            raise StageError(f"the listener at {name} said {said!r}")

    # --- jobs --------------------------------------------------------------------------------------------------

    def start(self, user: str, level: str) -> Job:
        """A job at that level on the two nodes: two learners on each for the other user, else one; and one alone at
        level none."""
        desk, learners = self.desks[user], 4 if user == OTHER else 1 if level == "none" else 2
        label, secret = f"{user}-{secrets.token_hex(3)}", secrets.token_hex(8)
        target = f"t-{label}"
        config = {
            "label": label,
            "ports": [learner_port(user, number + 1) for number in range(learners)],
            "secret": secret,
            "target": target,
        }
        model = {f"{desk.base}/{label}/prober/{path.name}": path.read_text() for path in HERE.glob("prober/*.py")}
        store = _STORE.format(base=desk.base) if user == ATTACKER else ""
        network = f"{{level: egress, allow: ['{NAMED[0]}:{NAMED[1]}']}}" if level == "egress" else level
        desk.write({**model, f"{desk.base}/{label}/config.json": json.dumps(config)})
        desk.write({f"{desk.base}/{label}.yml": _manifest(label, learners, network, secret, store)})
        nodes = FIRST if learners == 1 else f"{FIRST},{SECOND}"
        submitted = desk.run("ffdl-submit", "--parsable", f"--nodelist={nodes}", f"{label}.yml", label)
        job_id = submitted.stdout.strip()
        self._stack.callback(desk.run, "ffdl", "cancel", job_id, check=False)
        view = self._wait(desk, job_id, learners)
        if view["network"] != level:
            raise StageError(f"{user}'s job asked for level {level} and has {view['network']!r}")
        job = Job(desk, job_id, str(view["native_id"]), level, learners, label, secret, target, view["job_dir"])
        self._journals += [job.mailbox / f"journal-{number + 1}.txt" for number in range(learners)]
        return job

    @staticmethod
    def _wait(desk: Desk, job_id: str, learners: int) -> Mapping[str, Any]:
        deadline = time.monotonic() + STARTS_S
        while time.monotonic() < deadline:
            view = json.loads(desk.run("ffdl", "show", "--json", job_id).stdout)["job"]
            mailbox = desk.host_path(f"{view['job_dir']}/checkpoints") if view["job_dir"] else Path("/nonexistent")
            if all((mailbox / f"ready-{number + 1}.json").exists() for number in range(learners)):
                return dict(view)
            if view["state"] in ENDED:
                break
            time.sleep(0.3)
        raise StageError(f"{desk.user}'s job does not start: {view['state']} {view['message']}")

    @staticmethod
    def end(job: Job) -> None:
        """Cancel it, and wait until that is done."""
        job.desk.run("ffdl", "cancel", job.job_id)
        job.desk.run("ffdl", "wait", "--timeout=300", job.job_id, check=False, timeout_s=360)

    def reached(self) -> set[str]:
        """What all listeners have written down: the ids of datagrams that came to them."""
        return {
            line for path in self._journals if path.exists() for line in path.read_text(errors="replace").splitlines()
        }

    # --- firing ------------------------------------------------------------------------------------------------

    def fire(self, attacker: Job, other: Job, shots: Sequence[Shot], must: Sequence[bool] = ()) -> list[Hit]:
        """What came of each shot. Each is fired from its place, the places side by side. `must`: which of them are to
        come through, and are waited for."""
        turn, by_place = secrets.token_hex(4), dict[str, list[dict[str, Any]]]()
        for number, shot in enumerate(shots):
            more = {"patience_s": PATIENT_S} if any(must[number : number + 1]) else {}
            told = {**shot.args, **more, "id": f"{turn}-{number}", "kind": shot.kind}
            by_place.setdefault(shot.place, []).append(told)
        with ThreadPoolExecutor(len(by_place) or 1) as pool:
            batches = pool.map(lambda item: self._fire_from(attacker, other, *item), by_place.items())
            answers = {answer["id"]: answer for batch in batches for answer in batch}
        silent = {f"{turn}-{n}" for n, shot in enumerate(shots) if shot.kind in ONE_WAY and any(must[n : n + 1])}
        deadline = time.monotonic() + ARRIVES_S
        while silent - self.reached() and time.monotonic() < deadline:
            time.sleep(0.1)
        time.sleep(SETTLES_S)
        arrived, hits = self.reached(), []
        for number, shot in enumerate(shots):
            answer = answers.get(f"{turn}-{number}")
            if answer is None:
                raise StageError(f"no answer to {shot}")
            hits.append(Hit(bool(answer["through"]), f"{turn}-{number}" in arrived, str(answer["said"])))
        return hits

    def _fire_from(
        self, attacker: Job, other: Job, place: str, shots: Sequence[Mapping[str, Any]]
    ) -> Sequence[Mapping[str, Any]]:
        who, _, number = place.rpartition(" ")
        if number.isdigit():
            return self._order(attacker if who == "learner" else other, int(number), shots)
        user, _, rest = place.partition("@")
        node, _, way = rest.partition("/")
        argv, env = [*PROBER, "try"], {}
        user, _, group = user.partition(":")
        job = attacker if user == ATTACKER else other
        if way:
            step = ["--overlap", f"--jobid={job.native}"] if way == "step" else ["--mem=64"]
            argv, node = ["srun", "-Q", *step, "-N1", "-n1", "-w", node, *argv], "ctl"
        if group:
            argv = ["setpriv", "--reuid", user, "--regid", group, "--init-groups", *argv]
            env, user = {"HOME": f"/home/{user}", "USER": user, "LOGNAME": user}, "root"
        text = json.dumps(shots)
        done = self.cluster.run(
            node, argv, user=user, env=env, cwd=SOURCE, input=text, timeout_s=ANSWERS_S, check=False
        )
        if done.returncode != 0:
            raise StageError(f"the prober at {place} ended with {done.returncode}: {done.stderr[-500:]}")
        return [json.loads(line) for line in done.stdout.splitlines()]

    @staticmethod
    def _order(job: Job, number: int, shots: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        turn = job.orders[number] = job.orders.get(number, 0) + 1
        orders, answers = (job.mailbox / f"{kind}-{number}-{turn}.json" for kind in ("orders", "answers"))
        hidden = orders.with_name(f".{orders.name}")
        hidden.write_text(json.dumps(shots))
        hidden.chmod(0o644)
        hidden.replace(orders)
        deadline = time.monotonic() + ANSWERS_S
        while not answers.exists():
            if time.monotonic() > deadline:
                raise StageError(f"learner {number} of {job.desk.user}'s job does not answer")
            time.sleep(0.1)
        return list(json.loads(answers.read_text()))


_STORE = f"""\
data_stores:
  - id: store
    type: mount_volume
    training_data: {{{{container: {BOUND}}}}}
    connection: {{{{type: host_mount, path: {{base}}}}}}
"""


def _manifest(name: str, learners: int, network: str, secret: str, store: str) -> str:
    return f"""\
name: {name}
version: "1.0"
cpus: 1
gpus: 1
memory: 128MiB
learners: {learners}
{store}framework: {{name: custom, version: python-numpy, command: python3 -m prober learner config.json}}
batch:
  time: 15m
  placement: pack
  network: {network}
  env: {{PROOF_SECRET: "{secret}"}}
"""
