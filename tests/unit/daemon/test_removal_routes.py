"""Routes that remove jobs and measure their disk space."""

from __future__ import annotations

from pathlib import Path

from ffdl_batch.domain.job.job import Change
from ffdl_batch.domain.job_state import JobState
from tests.unit.daemon.conftest import Desk
from tests.unit.daemon.test_routes import submit


def test_remove_route_removes_ended_job_of_caller_only(desk: Desk) -> None:
    job_id, other = submit(desk)["id"], submit(desk, "b")["id"]
    store, root = desk.platform.storage.store, desk.platform.storage.root
    directory = Path(root.job(job_id).path)
    (directory / "checkpoints").mkdir(parents=True)
    (directory / "checkpoints" / "one").write_bytes(b"x" * 50_000)
    assert desk.ask("DELETE", f"/api/v1/jobs/{job_id}").status == 409
    job = store.get(job_id)
    assert job is not None
    now = desk.platform.storage.clock.now()
    store.apply(job, Change(steps=((JobState.COMPLETED, now),)))
    assert desk.ask("DELETE", f"/api/v1/jobs/{job_id}", uid=4711).status == 403
    trial = desk.ask("DELETE", f"/api/v1/jobs/{job_id}?dry_run=true")
    assert (trial.status, trial.json["job"]["disk_bytes"] > 50_000, directory.exists()) == (200, True, True)
    listed = desk.ask("GET", f"/api/v1/jobs?disk=true&ended_before={now + 1}").json["jobs"]
    assert [(one["id"], one["disk_bytes"] > 50_000) for one in listed] == [(job_id, True)]
    assert desk.ask("GET", f"/api/v1/jobs?ended_before={now}").json["jobs"] == []
    assert desk.ask("DELETE", f"/api/v1/jobs/{job_id}").status == 200
    assert not directory.exists()
    assert [one["id"] for one in desk.ask("GET", "/api/v1/jobs").json["jobs"]] == [other]
    assert desk.ask("GET", f"/api/v1/jobs/{job_id}").status == 404
    assert desk.ask("DELETE", f"/api/v1/jobs/{job_id}").status == 200, "idempotent"
