"""Which Jobs may go where a quota wants room: what nobody has read stays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ffdl_batch.domain.job import JobId
from ffdl_batch.domain.jobdir import Root
from ffdl_batch.domain.pod import ATTEMPT_LABEL, JOB_LABEL
from ffdl_kubernetes import kept, marks
from ffdl_kubernetes.client import ClusterClient
from ffdl_kubernetes.objects.names import STORES_LABEL, STORING
from ffdl_kubernetes.settings import KubernetesSettings
from ffdl_kubernetes.watching import Watcher

JOB = JobId("training-000000001")


def ended(name: str, **labels: str) -> dict[str, Any]:
    """A Job that failed long ago."""
    failed = {"type": "Failed", "status": "True", "lastTransitionTime": "2026-01-02T03:04:05Z"}
    own = {JOB_LABEL: JOB, ATTEMPT_LABEL: "1", **labels}
    return {"metadata": {"name": name, "labels": own}, "status": {"conditions": [failed]}}


@pytest.mark.parametrize("stored", [False, True])
def test_retained_jobs_release_storing_job_only_after_results_are_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stored: bool
) -> None:
    monkeypatch.setattr(kept, "SETTLED_S", 0.0)
    root = Root(str(tmp_path))
    attempt = root.job(JOB).attempt(1)
    for mark in (marks.SENT_TO, marks.END_TOLD):
        marks.leave(attempt, mark)
    if stored:
        Path(attempt.paid).write_text("{}")
    watcher = Watcher(lambda: ClusterClient(KubernetesSettings()), lambda *_: None)
    watcher.put("Job", ended(f"{JOB}-1"))
    watcher.put("Job", ended(f"{JOB}-1{STORING}", **{STORES_LABEL: "true"}))
    found = [job["metadata"]["name"] for job in kept.spare_jobs(watcher, root)]
    assert found == [f"{JOB}-1", *([f"{JOB}-1{STORING}"] if stored else [])]
