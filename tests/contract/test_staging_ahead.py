"""Data that come in an attempt of their own: a real daemon, the local backend, a real S3 server."""

from __future__ import annotations

import json
from typing import Any

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


def test_staging_attempt_downloads_data_once_before_learner_attempt_when_halted_and_resumed(data: Data) -> None:
    rule = Rule("GET", "/set/a", hang_s=600.0)
    data.proxy.rules.append(rule)
    result = data.submit(AHEAD)
    assert result["problem"] is None, result
    job_id = result["id"]
    until(lambda: rule.done, "the transfer")
    assert data.site.ask("POST", f"/api/v1/jobs/{job_id}/halt")[0] == 200
    job = data.ended(job_id)
    assert (job["state"], len(job["attempts"])) == ("HALTED", 1), job
    rule.times = 0
    data.proxy.requests.clear()
    assert data.site.ask("POST", f"/api/v1/jobs/{job_id}/resume", {})[0] == 200
    job = until(lambda: (found := data.job(job_id))["state"] in ("COMPLETED", "FAILED") and found, "the job's end")
    assert (job["state"], attempts(job)[1:]) == ("COMPLETED", [("staged", "000"), ("", "000")]), job
    begun = [path.parent.parent.name for path in data.site.directory.rglob(f"{job_id}/attempt-*/state/.began-*")]
    assert begun == ["attempt-3"]
    stored = data.stored()
    assert stored[f"out/{job_id}/learner-1/training-log.txt"].endswith(b"from main\nfrom second\n")
    assert b"ffdl: loading data: 2 files" in stored[f"out/{job_id}/learner-1/attempt-2/training-log.txt"]
    names = ("/set/a", "/more/b")
    asked = [path for method, path, _ in data.proxy.requests if method == "GET" and path.endswith(names)]
    assert len(asked) == len({*asked}) and any(path.endswith("/set/a") for path in asked), asked
    launches = [launch_of(data, job_id, number) for number in (1, 2, 3)]
    assert [one["only_stages"] for one in launches] == [True, True, False]
    assert (launches[0]["trains_from"], launches[2]["trains_from"]) == (1, 3)
