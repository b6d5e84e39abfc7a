"""Elastic jobs that the scaler shrinks in place on real Slurm."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.conftest import CONFIG
from tests.cluster.executions import wait_until
from tests.cluster.people import Person
from tests.cluster.test_usage import CLOSE, agreement, told_of
from tests.cluster.trainings import attempt_log, history

POOL = """
[elastic.pools.default]
gpus = 3
interval_s = 2
min_between_s = 0
objective = "fair"
"""
TRAIN = '''\
"""Trains on numbered samples with the present learners. A learner continues without the others."""
import os, pathlib, signal, sys, time

place = pathlib.Path(os.environ["CHECKPOINT_DIR"])
first, each = os.environ["LEARNER_ID"] == "1", int(os.environ["BATCH_SIZE"])
own, saved, asked = place / f"here-{os.environ['LEARNER_ID']}", place / "seen", []
signal.signal(signal.SIGUSR2, lambda *_: asked.append(1))
seen = int(saved.read_text()) if saved.exists() else 0
print("begin", os.environ["FFDL_ATTEMPT"], "after", seen, flush=True)
while not asked and not (place / "enough").exists():
    own.touch()
    time.sleep(0.5)
    if first:
        here = [path for path in place.glob("here-*") if time.time() - path.stat().st_mtime < 5]
        count = each * len(here)
        print(f"samples {seen}-{seen + count} learners {len(here)}", flush=True)
        print(f"ffdl-throughput: samples={count} seconds=0.5 remaining=1000000", flush=True)
        seen += count
if first:
    saved.write_text(str(seen))
    print("end after", seen, flush=True)
'''
ELASTIC = "{in_place: true, max_learners: 3, batch: {min: 4, max: 12, per_gpu_max: 4, start: 12}}"
"""Each learner has a node: more than half of its CPUs."""


@pytest.fixture(scope="module")
def owner(alice: Person) -> Iterator[Person]:
    """alice, with a pool of three learners without GPUs, which count as GPUs."""
    alice.run("ffdl", "daemon", "stop", check=False)
    alice.write("~/.config/ffdl/config.toml", CONFIG + POOL)
    yield alice
    alice.run("ffdl", "daemon", "stop", check=False)
    alice.write("~/.config/ffdl/config.toml", CONFIG)


def submit(owner: Person, name: str, elastic: str) -> str:
    model = owner.model("elastic", {"train.py": TRAIN})
    extra = f"batch: {{checkpoint: {{saved_by: first}}, elastic: {elastic}}}"
    return owner.submit(owner.manifest(name, "python3 train.py", extra, learners=3, gpus=0, cpus=5), model)


def finish(owner: Person, job_id: str) -> dict[str, Any]:
    owner.run("touch", f"{owner.state}/jobs/{job_id}/checkpoints/enough")
    return owner.finish(job_id)


def trained(log: str) -> list[tuple[int, int, int]]:
    """First sample, the one after the last, and learners of each step."""
    words = [line.split() for line in log.splitlines() if line.startswith("samples ")]
    return [(*map(int, word[1].split("-")), int(word[3])) for word in words]  # type: ignore[misc]


def test_job_shrinks_in_place_while_its_daemon_is_killed_and_its_nodes_run_another(owner: Person) -> None:
    first = submit(owner, "shrinks", ELASTIC)
    owner.until(first, {"PROCESSING"})
    wait_until(lambda: "learners 3" in owner.logs(first), "a step of three learners")
    second = submit(owner, "comes", ELASTIC)
    control = f"{owner.state}/jobs/{first}/attempt-1/control.json"
    wait_until(lambda: '"learners": ' in owner.run("cat", control).stdout, "the request to the controllers")
    wait_until(lambda: json.loads(owner.read(control))["learners"] is not None, "the request to the controllers")
    owner.kill_daemon()
    wait_until(lambda: owner.show(first)["learners"] < 3, "the change in place")
    other = owner.until(second, {"PROCESSING"})
    job = owner.show(first)
    (attempt,) = job["attempts"]
    assert (job["state"], attempt["learners"]) == ("PROCESSING", 3), job
    (resize,) = attempt["resizes"]
    left = 3 - resize["learners"]
    fields = owner.batch_fields(job["native_id"])
    assert (fields["JobState"], fields["NumNodes"]) == ("RUNNING", str(resize["learners"]))
    assert int(owner.batch_fields(other["native_id"])["NumNodes"]) == left
    wait_until(lambda: f"learners {resize['learners']}" in owner.logs(first), "a step of those that are left")
    assert "_resize" not in owner.run("ls", "-a", ".", job["job_dir"], f"{job['job_dir']}/attempt-1").stdout
    ended, rest = finish(owner, first), finish(owner, second)
    assert [one["state"] for one in (ended, rest)] == ["COMPLETED"] * 2, (ended, rest)
    steps = trained(attempt_log(owner, ended, 1))
    assert [begin for begin, _, _ in steps] == [0, *(end for _, end, _ in steps[:-1])]
    assert {learners for _, _, learners in steps} >= {3, resize["learners"]}
    shrunk = [
        one["message"] for one in history(owner, first) if one["cause"] == "resized" and "shrank" in one["message"]
    ]
    assert f"to {resize['learners']} learner" in shrunk[0]
    assert len(set(shrunk)) == len(shrunk), "the daemon that was killed and the next one recorded the same change"
    for native_id in (ended["native_id"], rest["native_id"]):
        owner.accounted(native_id)
    found = agreement(owner, "--tolerance", CLOSE)[1]
    assert told_of({"first": first, "second": second}, found) == [], found
