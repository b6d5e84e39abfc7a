"""Data that come before GPUs are asked for, on real Slurm: a small job brings them, and its head submits the other."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from tests.cluster.executions import wait_until
from tests.cluster.people import Person
from tests.cluster.rig import Cluster
from tests.cluster.rig.python_layers import SOURCE
from tests.cluster.test_data import FILL, KEY, PYTHON, SECRET
from tests.cluster.test_dying_nodes import controllers

ADDRESS, PORT = "10.77.0.1", 5125
URL = f"http://{ADDRESS}:{PORT}"
EXTRA = f"""\
data_stores:
  - id: cos
    type: mount_cos
    training_data: {{container: sets/digits}}
    connection: {{auth_url: "{URL}", user_name: {KEY}, password: {SECRET}}}
batch: {{staging: ahead}}
"""


@dataclass(frozen=True)
class Ended:
    """A job of two learners with a GPU each, what the accounting has of its attempts, and what the store was asked."""

    job: dict[str, Any]
    accounts: Sequence[Sequence[str]]
    logs: str
    requests: str


@pytest.fixture(scope="module")
def ended(cluster: Cluster, alice: Person) -> Iterator[Ended]:
    fill, log = alice.write("~/s3/fill-ahead.py", FILL), f"{alice.home}/s3/requests-ahead"
    serve = f"exec {PYTHON} -W ignore -m moto.server -H {ADDRESS} -p {PORT} 2>{log}"
    server = alice.popen("sh", "-c", serve)
    try:
        alice.run(PYTHON, fill, URL, json.dumps({"digits/deep/a": "from the bucket\n"}))
        command = 'cat "$DATA_DIR/deep/a"; echo "attempt $FFDL_ATTEMPT"'
        job = alice.finish(alice.start("ahead", command, extra=EXTRA, learners=2, gpus=1))
        requests = alice.read(log)
    finally:
        cluster.kill(server)
    accounts = [alice.accounted(one["native_id"], "State", "NNodes", "AllocTRES") for one in job["attempts"]]
    yield Ended(job, accounts, alice.logs(job["id"]), requests)


def test_staging_attempt_downloads_data_once_before_next_attempt(ended: Ended) -> None:
    assert ended.job["state"] == "COMPLETED", ended
    assert [one["interruption"] for one in ended.job["attempts"]] == ["staged", ""]
    assert ended.logs.count("from the bucket\n") == 2, ended.logs
    assert ended.requests.count("GET /sets/digits/deep/a ") == 1, ended.requests


def test_staging_attempt_allocates_no_gpu_and_next_attempt_two(ended: Ended) -> None:
    staging, training = ended.accounts
    assert (staging[:2], training[:2]) == (["COMPLETED", "1"], ["COMPLETED", "2"])
    assert "gres/gpu" not in staging[2], staging
    assert "gres/gpu=2" in training[2], training


SLOW = f"""\
import sys, time
sys.path.insert(0, {SOURCE!r})
from tests.fakes.fault_proxy import FaultProxy, Rule
proxy = FaultProxy({PORT}, {ADDRESS!r})
proxy.rules.append(Rule("GET", "/digits/deep/a", times=1, pause_s=20.0))
print(proxy.endpoint, flush=True)
while True:
    time.sleep(1)
"""


@pytest.mark.full
def test_staging_is_retried_and_learner_gets_all_data_after_controllers_are_killed(
    cluster: Cluster, alice: Person
) -> None:
    """Its controllers, in mid-transfer: nobody is left to say anything."""
    server = alice.popen(PYTHON, "-W", "ignore", "-m", "moto.server", "-H", "0.0.0.0", "-p", str(PORT))
    proxy = alice.popen(PYTHON, alice.write("~/s3/slow.py", SLOW))
    try:
        fill = FILL.replace("text.encode()", "text.encode() * 100_000")
        alice.run(PYTHON, alice.write("~/s3/fill-slow.py", fill), URL, json.dumps({"digits/deep/a": "0123456789"}))
        assert proxy.stdout is not None
        extra = EXTRA.replace(URL, proxy.stdout.readline().strip())
        job_id = alice.start("killed-ahead", 'wc -c <"$DATA_DIR/deep/a"', extra=extra, gpus=1)
        data = f"{alice.state}/jobs/{job_id}/data"
        wait_until(lambda: ".part" in alice.run("find", data, "-name", "*.part", check=False).stdout, "the transfer")
        wait_until(lambda: alice.show(job_id)["nodes"], "the daemon to know where that is")
        node = alice.show(job_id)["nodes"]
        alice.run("kill", "-KILL", *controllers(alice, job_id, node), node=node, check=False)
        assert alice.run("find", data, "-name", "a").stdout == ""
        job = alice.finish(job_id)
    finally:
        cluster.kill(proxy)
        cluster.kill(server)
    assert job["state"] == "COMPLETED", job
    assert [one["interruption"] for one in job["attempts"]][-2:] == ["staged", ""], job
    assert len(job["attempts"]) == 3, job
    assert alice.logs(job_id).endswith("\n1000000\n")
