"""Buckets that nodes mount, on real Slurm: containers of the setuid Apptainer see them at levels without a way to the
store, and nothing is left on a node, whatever ends a job."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from ffdl_batch.domain.data.mounts import SIGN, read_source
from tests.cluster.executions import wait_until
from tests.cluster.people import Person
from tests.cluster.rig import Cluster
from tests.cluster.test_data import FILL, KEY, PYTHON, SECRET
from tests.cluster.trainings import native_id

ADDRESS, PORT = "10.77.0.1", 5129
URL = f"http://{ADDRESS}:{PORT}"
NODES = ("n1", "n2", "n3")
STORE = f"""\
data_stores:
  - id: cos
    type: mount_cos
    training_data: {{container: sets/digits}}
    connection: {{auth_url: "{URL}", user_name: {KEY}, password: {SECRET}}}
"""
READ = "cat /mnt/data/sets/digits/deep/a; grep -c ' /mnt/data/sets/digits ro.* fuse.rclone ' /proc/self/mountinfo"


@pytest.fixture(scope="module")
def bucket(cluster: Cluster, alice: Person) -> Iterator[str]:
    """The manifest's lines of a store that has data."""
    fill = alice.write("~/s3/fill-mounts.py", FILL)
    server = alice.popen(PYTHON, "-W", "ignore", "-m", "moto.server", "-H", ADDRESS, "-p", str(PORT))
    try:
        alice.run(PYTHON, fill, URL, json.dumps({"digits/deep/a": "from the bucket\n"}))
        yield STORE
    finally:
        cluster.kill(server)


def left(cluster: Cluster) -> list[tuple[str, str]]:
    """Mounts of ours in the tables of all nodes: the node, and the line."""
    tables = [(node, cluster.run(node, ["cat", "/proc/self/mountinfo"]).stdout.splitlines()) for node in NODES]
    return [(node, line) for node, table in tables for line in table if f" {SIGN}:" in line]


@pytest.mark.parametrize("level", ["none", pytest.param("job", marks=pytest.mark.full)])
def test_learners_on_two_nodes_read_mounted_bucket_and_leave_no_mount(
    cluster: Cluster, alice: Person, bucket: str, level: str
) -> None:
    extra = f"{bucket}batch: {{network: {level}, mount: always}}\n"
    job = alice.finish(alice.start(f"mounted-{level}", READ, extra=extra, learners=2, gpus=0))
    logs = [alice.logs(job["id"], "--learner", str(learner)) for learner in (1, 2)]
    assert (job["state"], job["network"].partition(" ")[0]) == ("COMPLETED", level), (job, logs)
    for log in logs:
        assert "ffdl: loading data: sets/digits is mounted\nfrom the bucket\n1\n" in log
    assert alice.run("find", f"{alice.state}/jobs/{job['id']}/data", "-type", "f").stdout == "", "nothing is copied"
    assert left(cluster) == []


def test_epilog_removes_bucket_mount_after_job_is_killed(cluster: Cluster, alice: Person, bucket: str) -> None:
    extra = f"{bucket}batch: {{mount: always, retry: {{node_failures: 0}}}}\n"
    job_id = alice.start("killed", f"{READ}; echo begun; sleep 300", extra=extra, gpus=0)
    wait_until(lambda: "begun" in alice.logs(job_id), "the learner")
    ((node, line),) = left(cluster)
    native = native_id(alice, job_id)
    owner = read_source(line.split(" - ")[1].split()[1])
    assert owner is not None
    assert owner.job == native
    # Who is stopped sees nothing of the others' end, and unmounts nothing.
    cluster.run(node, ["sh", "-c", f"kill -STOP {owner.pid} $(pgrep -P {owner.pid})"])
    alice.run("scancel", "--signal=KILL", "--full", native)
    job = alice.finish(job_id)
    assert job["state"] != "COMPLETED", job
    wait_until(lambda: not left(cluster), "the end of the mount")
