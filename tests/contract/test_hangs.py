"""Learners that hang or lag behind on the local backend: real daemon, real controllers, real learners."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ffdl_batch.domain.incidents.incident import Incident
from ffdl_batch.domain.job.job import JobId
from ffdl_batch.store import open_store
from tests.contract.daemon_rig import until
from tests.contract.test_daemon_logs import Desk, desk_in

HANG = """\
import time

def stuck_in_the_barrier():
    print("ready", flush=True)
    while True:
        time.sleep(0.5)

stuck_in_the_barrier()
"""
LAG = """\
import os, time

pause = {"1": 0.1, "2": 0.1, "3": 2.0}[os.environ["LEARNER_ID"]]
for step in range(10_000):
    time.sleep(pause)
    print(f"step {step} loss 0.5", flush=True)
"""
MANIFEST = """\
name: {name}
framework:
  name: custom
  version: python-numpy
  command: python3 {name}.py
cpus: 1
memory: 100MB
learners: {learners}
evaluation_metrics:
  type: regex_extractor
  groups:
    loss:
      regex: "step (?P<step>\\\\d+) loss (?P<loss>[0-9.]+)"
      meta: {{}}
      scalars:
        loss: {{type: FLOAT, value: $loss}}
      etimes:
        iteration: {{type: INT, value: $step}}
batch:
  health: {{hang_s: {hang_s}}}
"""


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    with desk_in(tmp_path_factory.mktemp("hangs"), {"hang.py": HANG, "lag.py": LAG}, max_jobs=4) as made:
        yield made


def start(desk: Desk, name: str, learners: int, hang_s: int) -> str:
    manifest = desk.base / f"{name}.yml"
    manifest.write_text(MANIFEST.format(name=name, learners=learners, hang_s=hang_s))
    return desk.run("submit", "--parsable", str(manifest), str(desk.base / "model")).strip()


def incidents(desk: Desk, job_id: str) -> list[Incident]:
    """As another process reads them."""
    store = open_store(f"sqlite:///{desk.site.state / 'ffdl.sqlite3'}")
    try:
        return [one.incident for one in store.incidents_of([job_id]).get(JobId(job_id), [])]
    finally:
        store.close()


def test_daemon_records_hang_and_straggler_incidents_with_evidence(desk: Desk) -> None:
    hung, lagging = start(desk, "hang", 1, 20), start(desk, "lag", 3, 600)
    [hang] = until(lambda: incidents(desk, hung), "the hang to be told")
    assert (hang.kind, hang.episode, hang.learner, hang.code) == ("user.hang", "hang-1", 1, "000")
    assert "and computes nothing" in hang.message
    assert any("stuck_in_the_barrier" in line.text for line in hang.evidence)
    for words in (("show", hung), ("report", "faults")):
        assert "stuck_in_the_barrier" in desk.try_to(*words).stdout, words
    logs = Path(desk.show(hung)["logs"], "learner-1")
    [stacks] = logs.glob("stacks-*.txt")
    assert "stuck_in_the_barrier" in stacks.read_text()
    assert desk.show(hung)["state"] == "PROCESSING"
    [straggler] = until(lambda: incidents(desk, lagging), "the straggler to be told")
    assert (straggler.kind, straggler.learner) == ("user.straggler", 3)
    assert hung != lagging
