"""How an attempt is ended: never by taking from its pods what isolates them."""

from __future__ import annotations

from typing import Any

import pytest

from ffdl_batch.domain.scheduler_errors import NotTaken
from ffdl_kubernetes.client import ClusterClient
from ffdl_kubernetes.lifecycle.termination import DEADLINE_S, end_job
from ffdl_kubernetes.settings import KubernetesSettings

WAITS: dict[str, Any] = {"spec": {}}
PLACED: dict[str, Any] = {"spec": {"nodeName": "n1"}}


class Recording(ClusterClient):
    """A server that has one Job, and does what is asked. `conflicts`: so many deletions meet a changed Job."""

    def __init__(self, job: dict[str, Any] | None, conflicts: int = 0) -> None:
        super().__init__(KubernetesSettings())
        self.job, self.conflicts, self.asked = job, conflicts, list[tuple[str, object]]()

    def get(self, kind: str, name: str) -> dict[str, Any] | None:
        return self.job

    def patch(self, kind: str, name: str, change: Any, content: str = "") -> dict[str, Any] | None:
        self.asked.append(("patch", change))
        return self.job

    def delete(self, kind: str, name: str, version: str = "") -> bool:
        self.asked.append(("delete", version))
        self.conflicts -= 1
        return self.conflicts < 0


def job(*conditions: str, suspend: bool = False, **spec: object) -> dict[str, Any]:
    listed = [{"type": one, "status": "True"} for one in conditions]
    return {
        "metadata": {"name": "t", "resourceVersion": "7"},
        "spec": {"suspend": suspend, **spec},
        "status": {"conditions": listed},
    }


@pytest.mark.parametrize("pods", [[PLACED], [WAITS, PLACED]])
def test_end_job_sets_deadline_if_a_pod_may_run(pods: list[dict[str, Any]]) -> None:
    client = Recording(job())
    assert end_job(client, "t", pods) is client.job
    assert client.asked == [("patch", {"spec": {"activeDeadlineSeconds": DEADLINE_S}})]


@pytest.mark.parametrize(("found", "pods"), [(job(), [WAITS]), (job(), []), (job(suspend=True), [])])
def test_end_job_deletes_seen_version_of_job_if_no_pod_is_placed(
    found: dict[str, Any], pods: list[dict[str, Any]]
) -> None:
    client = Recording(found, conflicts=1)
    assert end_job(client, "t", pods) is None
    assert client.asked == [("delete", "7")] * 2, "it is looked at again where it has changed"


@pytest.mark.parametrize(("found", "pods"), [
    (job("Failed"), [PLACED]),
    (job("Complete"), []),
    (job(activeDeadlineSeconds=1), [PLACED]),
    (job(suspend=True), [PLACED]),
    (None, [PLACED]),
])  # fmt: skip
def test_end_job_leaves_ended_ending_or_missing_job_unchanged(
    found: dict[str, Any] | None, pods: list[dict[str, Any]]
) -> None:
    client = Recording(found)
    end_job(client, "t", pods)
    assert client.asked == []


def test_end_job_raises_not_taken_if_job_keeps_changing() -> None:
    with pytest.raises(NotTaken, match="changes all the time"):
        end_job(Recording(job(), conflicts=99), "t", [])
