"""What learners may open of a node's GPUs and other accelerators, held against what they are told.

The device files have no driver: one that the device cgroup lets through says ENXIO, one that it denies EPERM.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.people import Person
from tests.cluster.rig import Cluster
from tests.cluster.rig.boot import FAKE_MAJOR

REPORT = """
import errno, glob, json, os, socket, time

def opened(path):
    try:
        os.close(os.open(path, os.O_RDONLY))
        return "opened"
    except OSError as error:
        return errno.errorcode[error.errno]

me = os.environ["LEARNER_ID"]
meeting = os.environ.get("MEETING")
if meeting:
    job = os.environ["TRAINING_ID"]
    open(os.path.join(os.environ["RESULT_BUCKET_DIR"], meeting + "-" + job), "w").close()
    end = time.monotonic() + 600
    while len(glob.glob(os.path.join(os.environ["RESULT_BUCKET_DIR"], meeting + "-*"))) < 2:
        assert time.monotonic() < end, "the other job did not come"
        time.sleep(0.1)
names = ("CUDA_VISIBLE_DEVICES", "FFDL_DEVICES_NPU", "GPU_COUNT", "LOCAL_RANK", "ROCR_VISIBLE_DEVICES")
print(json.dumps({
    "env": {name: os.environ.get(name) for name in names},
    "gpus": {path: opened(path) for path in sorted(glob.glob("/dev/nvidia[0-9]*"))},
    "npus": {path: opened(path) for path in sorted(glob.glob("/dev/npu*"))},
}))
"""
RESULTS = """\
data_stores:
  - id: here
    type: mount_volume
    training_data: {container: in}
    training_results: {container: out}
    connection: {type: host_mount, path: ../devices}
"""
COMMAND = "python3 report.py"
Jobs = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def model(alice: Person) -> str:
    """The program that tells what it can open."""
    alice.run("mkdir", "-p", "devices/in", "devices/out")
    return alice.model("devices", {"report.py": REPORT})


@pytest.fixture(scope="module")
def jobs(alice: Person, model: str) -> Jobs:
    """Two jobs at the same time on one node, with a GPU and another accelerator each; then one with shares."""
    extra = f"{RESULTS}batch: {{gres: {{npu: 1}}}}"
    both = alice.manifest("with-npu", COMMAND, extra, gpus=1, gpu_type="a100")
    ids = {name: alice.submit(both, model, "--export=MEETING=here") for name in ("one", "two")}
    shares = alice.manifest("shares", COMMAND, "batch: {placement: pack}", gpus=0.5, learners=2)
    ids["shares"] = alice.submit(shares, model)
    none = alice.manifest("no-gpu", COMMAND, gpus=0)
    ids["none"] = alice.submit(none, model, "--nodelist=n3")
    ended = dict(zip(ids, alice.finish_all(list(ids.values())), strict=True))
    for name, job in ended.items():
        assert job["state"] == "COMPLETED", (name, job, alice.logs(job["id"]))
    return ended


def seen(alice: Person, job: dict[str, Any], learner: int = 1) -> dict[str, Any]:
    """What a learner reported."""
    return dict(json.loads(alice.logs(job["id"], f"--learner={learner}").splitlines()[-1]))


def event(alice: Person, job: dict[str, Any], kind: str) -> dict[str, Any]:
    """The one event of that kind which the node's controller of the first attempt wrote."""
    lines = alice.read(f"{job['job_dir']}/attempt-1/events/node-0.jsonl").splitlines()
    (found,) = (body for body in map(json.loads, lines) if body["kind"] == kind)
    return {name.removeprefix("x_"): value for name, value in found.items()}


def test_jobs_sharing_a_node_access_disjoint_gpus_and_accelerators(alice: Person, jobs: Jobs) -> None:
    let_through: list[set[str]] = []
    for name in ("one", "two"):
        report, told = seen(alice, jobs[name]), event(alice, jobs[name], "devices")
        (gpu,) = (path for path, said in report["gpus"].items() if said == "ENXIO")
        assert sorted(report["gpus"].values()) == ["ENXIO", "EPERM", "EPERM", "EPERM"]
        ((npu, said),) = report["npus"].items()
        assert (said, report["env"]["FFDL_DEVICES_NPU"]) == ("ENXIO", npu)
        assert len(report["env"]["CUDA_VISIBLE_DEVICES"].split(",")) == 1
        assert (told["host"], told["vendor"], told["message"]) == ("n3", "nvidia", "")
        assert set(told["files"].split(",")) == {gpu, npu}
        assert told["gpus"] == report["env"]["CUDA_VISIBLE_DEVICES"]
        let_through.append({gpu, npu})
    assert not let_through[0] & let_through[1]


def test_learners_with_gpu_shares_access_the_same_gpu(alice: Person, jobs: Jobs) -> None:
    job = jobs["shares"]
    assert alice.batch_fields(job["native_id"])["TresPerNode"] in ("gres/shard:2", "gres:shard:2")
    first, second = seen(alice, job), seen(alice, job, 2)
    assert sorted(first["gpus"].values()) == ["ENXIO", "EPERM", "EPERM", "EPERM"]
    assert first["gpus"] == second["gpus"]
    for report in (first, second):
        assert (report["env"]["CUDA_VISIBLE_DEVICES"], report["env"]["LOCAL_RANK"]) == ("0", "0")
        assert report["env"]["GPU_COUNT"] == "0.500000"
    assert event(alice, job, "devices")["gpus"] == "0"


def test_job_without_gpus_sees_no_device_files(alice: Person, jobs: Jobs) -> None:
    report = seen(alice, jobs["none"])
    assert (report["gpus"], report["npus"], report["env"]["CUDA_VISIBLE_DEVICES"]) == ({}, {}, "")


@pytest.mark.parametrize(
    ("fields", "gres", "words"),
    [
        ({"gpus": 0}, {"tpu": 1}, "no node here has 'tpu'; known: gpu:a100, gpu:v100, npu:310, shard"),
        ({"gpus": 0}, {"npu": 3}, "3 npu per learner, but no node here has more than 2"),
        ({"gpus": 0}, {"shard": 3}, "no GPU here has more than 2"),
        ({"gpus": 1}, {"shard": 1}, "Slurm gives a job one of them"),
        ({"gpus": 1.5}, {}, "1.5 GPUs: write a whole number"),
        ({"gpus": 0.5, "gpu_type": "v100"}, {}, "no node here offers shares of a GPU"),
        ({"gpus": 0, "learners": 2}, {"npu": 1}, "n3"),
    ],
)
@pytest.mark.full
def test_submit_rejects_gpu_or_gres_request_that_no_node_offers(
    alice: Person, model: str, fields: dict[str, object], gres: dict[str, int], words: str
) -> None:
    extra = f"batch: {{gres: {json.dumps(gres)}}}" if gres else ""
    refused = alice.run("ffdl-submit", alice.manifest("refused", COMMAND, extra, **fields), model, check=False)
    assert refused.returncode == 78, refused
    assert words in refused.stderr or ("learners" in fields and "1 node that holds one" in refused.stderr)


@pytest.fixture
def broken_node(cluster: Cluster) -> Iterator[str]:
    """A node that Slurm takes for whole, on which a driver has taken a device file away."""
    cluster.run("n1", ["rm", "/dev/nvidia3"])
    yield "n1"
    cluster.run("n1", ["mknod", "-m", "666", "/dev/nvidia3", "c", str(FAKE_MAJOR), "3"])


@pytest.mark.full
def test_job_moves_to_another_node_before_learner_start_when_gpu_device_is_missing(
    alice: Person, model: str, broken_node: str
) -> None:
    manifest = alice.manifest("all-of-a-node", f"echo begun; {COMMAND}", gpus=4, gpu_type="v100")
    job = alice.finish(alice.submit(manifest, model))
    assert job["state"] == "COMPLETED", textwrap.shorten(str(job), 2000)
    first, second = job["attempts"]
    assert (first["error_code"], first["interruption"]) == ("S108", "node_failure")
    assert "/dev/nvidia3 (ENOENT)" in event(alice, job, "fault")["message"]
    assert alice.logs(job["id"]).splitlines()[0] == "begun"
    assert "begun" not in alice.read(f"{job['job_dir']}/attempt-1/logs/learner-1/training-log.txt")
    assert (first["nodes"], second["nodes"]) == (broken_node, "n2")
    assert list(seen(alice, job)["gpus"].values()) == ["ENXIO"] * 4


@pytest.mark.parametrize(
    "gres", ["gpu:1,shard:1", *(pytest.param(gres, marks=pytest.mark.full) for gres in ("shard:3", "tpu:1"))]
)
def test_sbatch_rejects_gres_combination_that_submit_rejects(alice: Person, gres: str) -> None:
    """Whole GPUs beside shares, and more shares than a GPU has: what is refused here would never run."""
    argv = ("sbatch", "--test-only", "--nodelist=n3", "--nodes=1", "--wrap=true")
    assert alice.run(*argv, "--gres=gpu:1").returncode == 0
    refused = alice.run(*argv, f"--gres={gres}", check=False)
    assert refused.returncode != 0
