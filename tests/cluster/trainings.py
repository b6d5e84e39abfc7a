"""Learners that count steps, and answer a request for a checkpoint in the ways that real programs do."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

from tests.cluster.people import Person

SAVER = '''\
"""Counts steps; saves when asked by signal or halt file (or every SAVE_EVERY steps), and goes on from there.

From step HOLD on it makes one step, and no more until $CHECKPOINT_DIR/go is there."""
import json, os, pathlib, signal, sys, time

name = os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ.get("RANK", "0")
saved = pathlib.Path(os.environ["CHECKPOINT_DIR"]) / f"state-{name}.json"
halt = pathlib.Path(os.environ["JOB_STATE_DIR"]) / "halt"
last, every = int(os.environ.get("STEPS", "300")), int(os.environ.get("SAVE_EVERY", "0"))
hold, go = int(os.environ.get("HOLD", "0")), saved.with_name("go")
listens = "--deaf" not in sys.argv
asked = []
if listens:
    signal.signal(signal.SIGUSR2, lambda *_: asked.append(1))

def say(*words):
    """Writes a line at once. With -u, as torchrun starts workers, print() writes words of two workers into one line."""
    sys.stdout.write(" ".join(map(str, words)) + "\\n")
    sys.stdout.flush()

def save(step):
    new = saved.with_suffix(".new")
    new.write_text(json.dumps({"step": step}))
    os.replace(new, saved)

step = json.loads(saved.read_text())["step"] if os.environ["RESUME"] == "1" and saved.exists() else 0
run = {key: os.environ[key] for key in ("FFDL_ATTEMPT", "FFDL_RESTART", "RESUME")}
say("begin", json.dumps({**run, "from": step, "gpus": os.environ["CUDA_VISIBLE_DEVICES"]}))
pace = float(os.environ.get("PACE", "0.2" if os.environ["RESUME"] == "0" else "0.01"))
while step < last:
    step += 1
    say("step", step)
    time.sleep(pace)
    while step >= hold > 0 and not (go.exists() or asked or (listens and halt.exists())):
        time.sleep(0.05)
    if asked or (listens and halt.exists()):
        save(step)
        say("saved", step)
        sys.exit(0)
    if every and step % every == 0:
        save(step)
say("done")
'''
LAST = 300
"""The last step of a training that is not told otherwise. The first attempt takes a minute, a resumed one seconds."""
DEAF = "echo 'begin {}'; while :; do sleep 0.2; done"
STUBBORN = "trap '' TERM USR2 INT; echo 'begin {}'; while :; do sleep 0.2; done"
QUICK = "batch: {checkpoint: {grace_s: 4}}"
"""Of those that do not answer, for which somebody waits."""
ANSWERED = "batch: {checkpoint: {grace_s: 60}}"
"""Of those that answer: nobody waits for the end of it."""


def training(alice: Person, name: str, command: str = "python3 train.py", extra: str = "", **fields: object) -> str:
    """A manifest for SAVER."""
    return alice.manifest(name, command, extra, **fields)


def saver_model(alice: Person) -> str:
    """The model directory of SAVER."""
    return alice.model("saver", {"train.py": SAVER})


def let_go(alice: Person, job_id: str) -> None:
    """A training that was told to HOLD makes the rest of its steps."""
    alice.run("touch", f"{alice.state}/jobs/{job_id}/checkpoints/go")


def begins(log: str) -> list[dict[str, Any]]:
    """What each run of a learner said when it began."""
    return [json.loads(found) for found in re.findall(r"^begin (\{.*\})$", log, re.MULTILINE)]


def steps(log: str) -> list[int]:
    """The steps that a log tells of, in its order."""
    return [int(found) for found in re.findall(r"^step (\d+)$", log, re.MULTILINE)]


def attempt_log(alice: Person, job: Mapping[str, Any], attempt: int, learner: int = 1) -> str:
    """One attempt's log as the learner wrote it."""
    return alice.read(f"{job['job_dir']}/attempt-{attempt}/logs/learner-{learner}/training-log.txt")


def history(alice: Person, job_id: str) -> list[dict[str, Any]]:
    """The job's changes of state."""
    printed = alice.run("ffdl", "events", "--json", job_id).stdout.splitlines()
    return [json.loads(line)["event"] for line in printed]


def is_gapless(events: Sequence[Mapping[str, Any]]) -> bool:
    """Whether they are numbered from 1 on and tell of the job from its first state to its last."""
    return bool(events) and [event["seq"] for event in events] == list(range(1, len(events) + 1))


def until_logged(alice: Person, job_id: str, text: str, attempt: int = 1, timeout_s: float = 600.0) -> None:
    """Wait until a learner of that attempt wrote a line that begins with `text`."""
    path = f"{alice.state}/jobs/{job_id}/attempt-{attempt}/logs/learner-*/training-log.txt"
    script = f"for i in $(seq {int(timeout_s * 10)}); do grep -qs '^{text}' {path} && exit 0; sleep 0.1; done; exit 1"
    done = alice.run("sh", "-c", script, check=False, timeout_s=timeout_s + 30)
    assert done.returncode == 0, (job_id, text, alice.run("squeue", "--all").stdout, alice.show(job_id))


def started(alice: Person, job_id: str) -> dict[str, Any]:
    """The job once Slurm's word on its nodes was heard."""
    deadline = time.monotonic() + 300
    while not (job := alice.show(job_id))["nodes"] and time.monotonic() < deadline:
        time.sleep(0.2)
    assert job["nodes"], job
    return job


def native_id(alice: Person, job_id: str) -> str:
    """Its id in Slurm once the daemon has written that down; it may run before."""
    deadline = time.monotonic() + 300
    while not (found := str(alice.show(job_id)["native_id"])) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert found, f"{job_id} has no id in Slurm"
    return found


def free_gpus(alice: Person, node: str) -> bool:
    """Whether Slurm holds no GPU of that node for anybody."""
    return (
        "gres/gpu" not in alice.run("scontrol", "-o", "show", "node", node).stdout.partition("AllocTRES=")[2].split()[0]
    )
