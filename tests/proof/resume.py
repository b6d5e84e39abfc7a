"""`make proof-resume`: a training is interrupted in every way on the real cluster, and ends as if nothing had been.

    python -m tests.proof.resume [--short]

Trains the digits network for a fixed number of steps, once without interruption and once under a preemption, a
powered-off node and a time limit (that one with the daemon dead). Prints each allocation, what it lost, how long the
checkpoint took and how long it was to the next PROCESSING. Exit status 1 when the weights differ in one bit, a step ran
twice without a record that it was lost, or a GPU stayed held. Times are printed and not judged.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.cluster.images import CHECKOUT, provide_image
from tests.cluster.rig import Cluster
from tests.cluster.rig.rootfs import USERS
from tests.proof.chain import Chain, ProofError, held, read_weights, until
from tests.proof.continuity import Remains, Session, Verdict, judge, last_step
from tests.proof.desk import LOGIN_NODE, Desk

EXAMPLE = CHECKOUT / "docs" / "examples" / "digits"
DATA = EXAMPLE / "data" / "digits" / "digits.csv.gz"
USER, INTRUDER = "alice", "bob"
SETTINGS = "fence_s = 10\nkill_wait_s = 5\n"
"""As the test cluster needs it: fence_s below its SlurmdTimeout, kill_wait_s as its KillWait."""
STARTS_S, ENDS_S = 600.0, 900.0
"""How long the next session, and the end, are waited for; never how long they take."""
RECORDED_S = 300.0
"""How long a living daemon may take to note what happened without a word."""


@dataclass(frozen=True, slots=True)
class Stage:
    """What a blow acts on: the training, and the session that it is to hit, the `number`th. `off` are nodes that it
    turned off."""

    cluster: Cluster
    chain: Chain
    number: int
    session: Session
    off: list[str] = field(default_factory=list)

    @property
    def native_id(self) -> str:
        """The running allocation."""
        return self.chain.placed(self.session.attempt)[0]

    @property
    def node(self) -> str:
        """Where it runs."""
        return self.chain.placed(self.session.attempt)[1]

    def cut(self) -> None:
        """Note that the session ends now, without a word."""
        self.chain.cut_at[self.number] = time.time()


@dataclass(frozen=True, slots=True)
class Blow:
    """One interruption: struck once the session has run `after_steps`; `kind` is what the record must call it."""

    strike: Callable[[Stage], None]
    kind: str
    after_steps: int
    limit_s: float = STARTS_S
    undo: Callable[[Stage], None] | None = None


@dataclass(frozen=True, slots=True)
class Script:
    """One form of the proof. After `hold` steps (0: never) sessions wait to be hit."""

    steps: int
    pause_s: float
    time_limit: str
    blows: Sequence[Blow]
    hold: int = 0


def preempt(stage: Stage) -> None:
    """Another user's job of a higher partition wants one of the node's GPUs, all of which the training has."""
    wanted = ["--partition=urgent", f"--nodelist={stage.node}", "--gres=gpu:1", "--time=1", "--output=/dev/null"]
    stage.cluster.run(LOGIN_NODE, ["sbatch", *wanted, "--wrap=sleep 2"], user=INTRUDER, cwd=f"/home/{INTRUDER}")


def power_off(stage: Stage) -> None:
    """A power cut of the node."""
    stage.off.append(stage.node)
    stage.cluster.power_off(stage.off[-1])
    stage.cut()


def power_on(stage: Stage) -> None:
    """The node is back."""
    for node in stage.off:
        stage.cluster.power_on(node)


def wait_for_limit(stage: Stage) -> None:
    """Nothing but time; nobody is there but the controllers."""
    kill_daemon(stage)


def warn(stage: Stage) -> None:
    """The warning that Slurm would send; nobody is there but the controllers."""
    kill_daemon(stage)
    stage.chain.desk.run("scancel", "--signal=URG", stage.native_id)


def kill_controllers(stage: Stage) -> None:
    """The node controllers and their learners die at once; the daemon must be there to see it.

    KILL for the whole job would be a cancellation to Slurm (26.05), so it goes to the step.
    """
    stage.chain.desk.jobs()
    stage.chain.desk.run("scancel", "--signal=KILL", f"{stage.native_id}.0")
    stage.cut()


def kill_daemon(stage: Stage) -> None:
    """The user's daemon dies; the next command of theirs starts another."""
    pid = stage.chain.desk.host_pid()
    if pid is not None:
        os.kill(pid, signal.SIGKILL)
    until(lambda: stage.chain.desk.host_pid() is None, "the end of the daemon", 300.0)


FULL = Script(
    steps=2000,
    pause_s=0.1,
    time_limit="3m",
    blows=(
        Blow(preempt, "preemption", after_steps=30),
        Blow(power_off, "node_failure", after_steps=130, limit_s=240.0, undo=power_on),
        Blow(wait_for_limit, "timeout", after_steps=1, limit_s=360.0),
    ),
)
SHORT = Script(
    steps=450,
    pause_s=0.04,
    time_limit="2m",
    blows=(Blow(warn, "timeout", after_steps=30), Blow(kill_controllers, "node_failure", after_steps=120)),
    hold=150,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the proof on the cluster that is up, or on a new one."""
    parser = argparse.ArgumentParser(prog="python -m tests.proof.resume", description=__doc__.partition("\n")[0])
    parser.add_argument("--short", action="store_true", help="without waiting for time limits and power cuts")
    options = parser.parse_args(arguments)
    with Cluster.session() as cluster:
        provide_image(cluster, "custom")
        try:
            remains = run(cluster, SHORT if options.short else FULL)
        except ProofError as error:
            print(f"proof-resume: {error}", file=sys.stderr)
            return 1
    verdict = judge(remains)
    for trouble in verdict.troubles:
        print(trouble, file=sys.stderr)
    print(report(remains, verdict), flush=True)
    return 0 if verdict.holds else 1


def run(cluster: Cluster, script: Script) -> Remains:
    """Train twice, strike in between, and collect what is left."""
    with Desk(cluster, USER, "proof-resume", "cli", settings=SETTINGS) as desk:
        _furnish(desk)
        whole = _submit(desk, "whole", 0, f"python3 training.py {script.steps} 0", script.time_limit)
        command = f"python3 training.py {script.steps} {script.pause_s} {script.hold}"
        chain = Chain(desk, _submit(desk, "cut", 4, command, script.time_limit))
        for number, blow in enumerate(script.blows, 1):
            session = chain.await_session(number, blow.after_steps, STARTS_S)
            _strike(Stage(cluster, chain, number, session), blow)
        desk.write({f"{desk.base}/jobs/jobs/{chain.job_id}/checkpoints/go": ""})
        desk.run("ffdl", "wait", f"--timeout={ENDS_S}", chain.job_id, whole, check=False, timeout_s=ENDS_S + 60)
        job, other = _show(desk, chain.job_id), _show(desk, whole)
        natives = [str(view["native_id"]) for view in job["attempts"]]
        return Remains(
            total=script.steps,
            sessions=chain.sessions(),
            records=chain.records(job, _history(desk, chain.job_id)),
            expected=[blow.kind for blow in script.blows],
            natives=natives,
            allocations=chain.allocations(frozenset(natives)),
            weights=read_weights(desk.host_path(job["results"]) / "weights.npz"),
            whole_weights=read_weights(desk.host_path(other["results"]) / "weights.npz"),
            state=job["state"],
            whole_state=other["state"],
            held=held(cluster, chain),
        )


def _strike(stage: Stage, blow: Blow) -> None:
    """One interruption, until the next session has begun; what came without a word is in the history by then."""
    try:
        blow.strike(stage)
        stage.chain.await_session(stage.number + 1, 1, blow.limit_s)
        cut_at = stage.chain.cut_at.get(stage.number)
        if cut_at is not None:
            until(lambda: _went_back(stage.chain, cut_at), f"{blow.kind} in the history", RECORDED_S, every_s=1.0)
    finally:
        if blow.undo is not None:
            blow.undo(stage)


def _went_back(chain: Chain, since: float) -> bool:
    """Whether the history says that the job went back to an earlier state after that time."""
    return any(e["cause"] == "requeued" and e["at"] >= since for e in _history(chain.desk, chain.job_id))


def _furnish(desk: Desk) -> None:
    """The model, and the real data."""
    if not DATA.is_file():
        subprocess.run([sys.executable, str(EXAMPLE / "fetch_data.py")], check=True)
    files = {"train.py": EXAMPLE / "model" / "train.py", "training.py": Path(__file__).with_name("training.py")}
    desk.write({f"{desk.base}/model/{name}": path.read_text(encoding="utf-8") for name, path in files.items()})
    desk.write({f"{desk.base}/store/digits/README": "", f"{desk.base}/store/results/.keep": ""})
    placed = desk.host_path(f"{desk.base}/store/digits/digits.csv.gz")
    placed.write_bytes(DATA.read_bytes())
    os.chown(placed, USERS[desk.user], USERS[desk.user])


def _submit(desk: Desk, name: str, gpus: int, command: str, time_limit: str) -> str:
    """The id of the job. All GPUs of a node: so nobody else's job is in the way of what is done to it."""
    manifest = f"""\
name: {name}
version: "1.0"
cpus: 1
gpus: {gpus}
memory: 512MiB
learners: 1
data_stores:
  - id: store
    type: mount_volume
    training_data: {{container: digits}}
    training_results: {{container: results}}
    connection: {{type: host_mount, path: {desk.base}/store}}
framework: {{name: custom, version: python-numpy, command: {command}}}
batch:
  time: {time_limit}
  checkpoint: {{grace_s: 10}}
  env: {{OPENBLAS_NUM_THREADS: "1"}}
"""
    desk.write({f"{desk.base}/{name}.yml": manifest})
    return desk.run("ffdl-submit", "--parsable", f"{name}.yml", "model").stdout.strip()


def _show(desk: Desk, job_id: str) -> dict[str, Any]:
    """What ``ffdl show --json`` prints."""
    return dict(json.loads(desk.run("ffdl", "show", "--json", job_id).stdout)["job"])


def _history(desk: Desk, job_id: str) -> list[dict[str, Any]]:
    """What ``ffdl events --json`` prints."""
    return [
        dict(json.loads(line)["event"]) for line in desk.run("ffdl", "events", "--json", job_id).stdout.splitlines()
    ]


def report(remains: Remains, verdict: Verdict) -> str:
    """One line for each allocation, and one over all."""
    lines = []
    for index, (session, record) in enumerate(zip(remains.sessions, remains.records, strict=True)):
        line = f"allocation {record.native_id} steps {session.after + 1}-{last_step(session)}"
        if index < len(verdict.interruptions):
            cut = verdict.interruptions[index]
            line += f"; {cut.kind}: lost {cut.lost} steps, signal -> confirmed checkpoint {_seconds(cut.took_s)}"
            line += f", end -> next PROCESSING {_seconds(cut.gap_s)}"
        lines.append(line)
    lost = sum(cut.lost for cut in verdict.interruptions)
    same = "equal" if remains.weights == remains.whole_weights != {} else "DIFFERENT"
    lines.append(f"allocations {len(remains.sessions)} steps {remains.total} lost {lost} weights {same}")
    return "\n".join(lines)


def _seconds(value: float | None) -> str:
    return "none" if value is None else f"{value:.1f} s"


if __name__ == "__main__":
    sys.exit(main())
