"""Two jobs on shares of one GPU of real Slurm: measured by `ffdl bench share`, and counted as parts of a GPU."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pytest

from tests.cluster.people import Person
from tests.fakes.sharing_learner import PROGRAM

MORE = """\
evaluation_metrics: {type: regex_extractor}
data_stores:
  - id: here
    type: mount_volume
    training_data: {container: in}
    training_results: {container: out}
    connection: {type: host_mount, path: ../shares}
"""


@pytest.fixture(scope="module")
def sharing(alice: Person) -> dict[str, Any]:
    """The result for two jobs that keep 70 % of their speed beside each other."""
    alice.run("mkdir", "-p", "shares/in", "shares/out")
    model = alice.model("shares", {"train.py": PROGRAM})
    command = "python3 train.py $RESULT_BUCKET_DIR 100 70"
    manifests = [alice.manifest(f"share-{name}", command, MORE, gpus=1) for name in "ab"]
    options = ("--json", "--seconds", "4", "--model", model)
    done = alice.run("ffdl", "bench", "share", *options, *manifests, check=False, timeout_s=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(json.loads(done.stdout)["sharing"])


def test_bench_share_runs_both_jobs_on_shares_of_one_gpu(alice: Person, sharing: dict[str, Any]) -> None:
    together = [one["together"] for one in sharing["subjects"]]
    assert (sharing["resource"], sharing["same_device"], sharing["pays"]) == ("GPU", True, True), sharing
    assert sharing["gain"] == pytest.approx(1.4)
    assert [run["held"]["gpus"] for run in together] == [0.5, 0.5]
    (device,) = {tuple(run["held"]["devices"]) for run in together}
    assert device[0].startswith("n3:/dev/nvidia")
    alone = [one["alone"] for one in sharing["subjects"]]
    assert [(run["held"]["gpus"], run["held"]["nodes"]) for run in alone] == [(1.0, "n3")] * 2
    states = [alice.show(run["job_id"])["state"] for run in (*together, *alone)]
    assert states == ["CANCELLED"] * 4


def test_usage_counts_shares_as_slurm_accounts_them(alice: Person, sharing: dict[str, Any]) -> None:
    ids = [run["job_id"] for one in sharing["subjects"] for run in (one["together"], one["alone"])]
    jobs = {job_id: alice.show(job_id) for job_id in ids}
    seconds = {}
    for job_id, job in jobs.items():
        elapsed, tres = alice.accounted(job["native_id"], "ElapsedRaw", "AllocTRES")
        is_share = "gres/shard=1" in tres.split(",")
        assert is_share or "gres/gpu=1" in tres.split(","), tres
        seconds[job_id] = int(elapsed) * (0.5 if is_share else 1.0)
    text = alice.run("ffdl", "report", "usage", "--since", "1h", "--format", "csv").stdout
    rows = {row["job"]: row for row in csv.DictReader(io.StringIO(text))}
    for job_id, gpu_s in seconds.items():
        assert float(rows[job_id]["gpu_hours"]) * 3600 == pytest.approx(gpu_s, abs=12)
    check = alice.run(
        "ffdl", "report", "usage", "--since", "1h", "--check", "--tolerance", "12s", "--json", check=False
    )
    found = json.loads(check.stdout)["agreement"]
    assert [row for row in found["rows"] if row["job"] in ids] == []
    assert found["gpus_counted"] >= len(ids)
