"""Which Jobs may go where a quota wants room: what nobody has read stays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ffdl_batch.attempt.layout import Root
from ffdl_batch.domain.job.job import JobId
from ffdl_batch.domain.launch.pod_protocol import ATTEMPT_LABEL, JOB_LABEL
from ffdl_kubernetes.client import ClusterClient
from ffdl_kubernetes.lifecycle import marker_files, termination
from ffdl_kubernetes.objects.names import STORES_LABEL, STORING
from ffdl_kubernetes.observing.cluster_watch import Watcher
from ffdl_kubernetes.settings import KubernetesSettings

JOB = JobId("training-000000001")


def ended(name: str, **labels: str) -> dict[str, Any]:
    """A Job that failed long ago."""
    failed = {"type": "Failed", "status": "True", "lastTransitionTime": "2026-01-02T03:04:05Z"}
    own = {JOB_LABEL: JOB, ATTEMPT_LABEL: "1", **labels}
    return {"metadata": {"name": name, "labels": own}, "status": {"conditions": [failed]}}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Root:
    monkeypatch.setattr(termination, "SETTLED_S", 0.0)
    return Root(str(tmp_path))


def spare(root: Root, *jobs: dict[str, Any]) -> list[str]:
    watcher = Watcher(lambda: ClusterClient(KubernetesSettings()), lambda *_: None)
    for job in jobs:
        watcher.put("Job", job)
    return [job["metadata"]["name"] for job in termination.spare_jobs(watcher, root)]


@pytest.mark.parametrize("stored", [False, True])
def test_retained_jobs_release_storing_job_only_after_results_are_stored(root: Root, stored: bool) -> None:
    attempt = root.job(JOB).attempt(1)
    for mark in (marker_files.SENT_TO, marker_files.END_REPORTED):
        marker_files.leave(attempt, mark)
    if stored:
        Path(attempt.uploaded).write_text("{}")
    jobs = ended(f"{JOB}-1"), ended(f"{JOB}-1{STORING}", **{STORES_LABEL: "true"})
    assert spare(root, *jobs) == [f"{JOB}-1", *([f"{JOB}-1{STORING}"] if stored else [])]


@pytest.mark.parametrize("missing", ["", "final record", "cluster mark"])
def test_retained_jobs_release_ended_job_only_with_final_record_and_cluster_mark(root: Root, missing: str) -> None:
    attempt = root.job(JOB).attempt(1)
    Path(attempt.path).mkdir(parents=True)
    if missing != "cluster mark":
        marker_files.leave(attempt, marker_files.SENT_TO)
    if missing != "final record":
        Path(attempt.final).write_text("{}")
    assert spare(root, ended(f"{JOB}-1")) == ([] if missing else [f"{JOB}-1"])
