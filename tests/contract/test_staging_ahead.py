"""Data that come in an attempt of their own: a real daemon, the local backend, a real S3 server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.contract.daemon_rig import until
from tests.contract.test_data_jobs import Data, data
from tests.fakes.fault_proxy import Rule

__all__ = ["data"]
AHEAD = "batch: {staging: ahead}\n"


def attempts(job: dict[str, Any]) -> list[tuple[str, str]]:
    return [(one["interruption"], one["error_code"]) for one in job["attempts"]]


def launch_of(data: Data, job_id: str, attempt: int) -> dict[str, Any]:
    (path,) = data.site.directory.rglob(f"{job_id}/attempt-{attempt}/launch.json")
    return dict(json.loads(path.read_text()))


def test_staging_attempt_downloads_data_once_before_learner_attempt(data: Data) -> None:
    result = data.submit(AHEAD)
    assert result["problem"] is None, result
    job_id = result["id"]
    job = data.ended(job_id)
    assert job["state"] == "COMPLETED", job
    assert attempts(job) == [("staged", "000"), ("", "000")]
    begun = [path.parent.parent.name for path in data.site.directory.rglob(f"{job_id}/attempt-*/state/.began-*")]
    assert begun == ["attempt-2"]
    stored = data.stored()
    assert stored[f"out/{job_id}/learner-1/training-log.txt"].endswith(b"from main\nfrom second\n")
    assert b"ffdl: loading data: 2 files" in stored[f"out/{job_id}/learner-1/attempt-1/training-log.txt"]
    names = ("/set/a", "/more/b")
    asked = [path for method, path, _ in data.proxy.requests if method == "GET" and path.endswith(names)]
    assert len(asked) == 2, asked
    launches = [launch_of(data, job_id, number) for number in (1, 2)]
    assert [(one["only_stages"], one["trains_from"]) for one in launches] == [(True, 1), (False, 2)]


def test_staging_attempt_fails_job_when_store_denies_access(data: Data) -> None:
    data.proxy.rules.append(Rule("GET", "/set/a", status=403, code="AccessDenied"))
    job = data.ended(data.submit(AHEAD)["id"])
    assert (job["state"], job["error_code"], attempts(job)) == ("FAILED", "C103", [("", "C103")])
    assert "AccessDenied" in str(job)


@pytest.mark.parametrize(("wish", "state"), [("cancel", "CANCELLED"), ("halt", "HALTED")])
def test_cancel_and_halt_stop_staging_attempt_without_learner_attempt(data: Data, wish: str, state: str) -> None:
    rule = Rule("GET", "/set/a", hang_s=600.0)
    data.proxy.rules.append(rule)
    job_id = data.submit(AHEAD)["id"]
    until(lambda: rule.done, "the transfer")
    assert data.site.ask("POST", f"/api/v1/jobs/{job_id}/{wish}")[0] == 200
    job = data.ended(job_id)
    assert (job["state"], len(job["attempts"])) == (state, 1), job
    if wish == "cancel":
        return
    rule.times = 0
    assert data.site.ask("POST", f"/api/v1/jobs/{job_id}/resume", {})[0] == 200
    job = until(lambda: (found := data.job(job_id))["state"] in ("COMPLETED", "FAILED") and found, "the job's end")
    assert (job["state"], attempts(job)[1:]) == ("COMPLETED", [("staged", "000"), ("", "000")]), job
    assert launch_of(data, job_id, 3)["trains_from"] == 3


def test_staging_ahead_adds_no_attempt_if_data_are_a_mounted_directory(data: Data, tmp_path: Path) -> None:
    (tmp_path / "nfs" / "sets").mkdir(parents=True)
    connection = f"{{path: {tmp_path}/nfs}}"
    manifest = (
        "name: here\ngpus: 0\nframework: {name: custom, version: python-numpy, command: ls $DATA_DIR}\n"
        f"data_stores:\n- {{type: directory, training_data: {{container: sets}}, connection: {connection}}}\n"
    )
    job = data.ended(data.submit(manifest=manifest + AHEAD)["id"])
    assert (job["state"], attempts(job)) == ("COMPLETED", [("", "000")]), job
