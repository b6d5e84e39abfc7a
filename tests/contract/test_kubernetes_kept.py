"""A quota of Jobs counts those that have ended: they are kept for a while, and go where another one is wanted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ffdl_batch.domain.outcome.observation import EndCause
from ffdl_batch.plugins import AdapterContext, create_adapter
from ffdl_kubernetes.adapter import KubernetesScheduler
from ffdl_kubernetes.api_errors import TooManyJobs
from ffdl_kubernetes.lifecycle import termination
from tests.contract.kubernetes_harness import KubernetesHarness


class Full(KubernetesHarness):
    """With a quota of so many Jobs, of which no canary takes one."""

    def __init__(self, base: Path) -> None:
        super().__init__(base, {"canary_interval_s": 0})

    def give(self, jobs: int) -> None:
        quota = {"metadata": {"name": "jobs"}, "spec": {"hard": {"count/jobs.batch": str(jobs)}}}
        self.k8s.ask("POST", f"api/v1/namespaces/{self.k8s.namespace}/resourcequotas", quota)

    def there(self) -> list[str]:
        items = self.k8s.ask("GET", f"apis/batch/v1/namespaces/{self.k8s.namespace}/jobs")["items"]
        return sorted(one["metadata"]["name"] for one in items)

    def await_spare_job(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A minute later: until a Job could go; its pods are let go a moment after its end is told."""
        monkeypatch.setattr(termination, "SETTLED_S", 0.0)
        assert isinstance(self.scheduler, KubernetesScheduler)
        watcher = self.scheduler._watcher
        self.wait(lambda: bool(termination.spare_jobs(watcher, self.root)), lambda: f"{watcher.jobs()}")

    def begin_anew(self) -> None:
        """Another daemon takes over."""
        self._close_scheduler()
        self.scheduler = create_adapter(self.backend, self._settings, AdapterContext(self.root.path, "root", 0))


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Full]:
    monkeypatch.setattr(termination, "SETTLED_S", 3600.0)  # tests take a minute on a busy machine
    found = Full(tmp_path)
    yield found
    found.close()


def test_kubernetes_submit_after_restart_deletes_ended_job_when_quota_is_full(
    world: Full, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was started again, and asks after none of its jobs: so nothing else looks at the cluster."""
    world.give(2)
    first, _ = world.submit("echo first")
    assert world.await_end(first).end is EndCause.SUCCESS
    second, running = world.submit("echo up; sleep 600")
    world.await_log(running, "up")
    with pytest.raises(TooManyJobs, match="one that has ended counts until then"):
        world.submit("echo third")
    assert world.there() == sorted([first.job, second.job]), "it ended just now"
    world.await_spare_job(monkeypatch)
    world.begin_anew()
    third, plan = world.submit("echo third")
    assert world.there() == sorted([second.job, third.job])
    assert world.await_end(third).end is EndCause.SUCCESS
    assert world.log(plan) == "third\n"
    world.scheduler.cancel(second)


def test_kubernetes_submit_deletes_job_of_lost_node_when_quota_is_full(
    world: Full, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its controllers left no last word."""
    world.give(1)
    first, plan = world.submit("echo up; sleep 600")
    world.await_log(plan, "up")
    world.k8s.do("lose_node", node="n1")
    world.k8s.do("delete_node", node="n1")
    assert world.await_end(first).end is EndCause.NODE_FAIL
    assert not Path(plan.attempt_dir.final).exists()
    with pytest.raises(TooManyJobs):
        world.submit("echo second")
    world.await_spare_job(monkeypatch)
    second, _ = world.submit("echo second")
    assert world.there() == [second.job]
    world.scheduler.cancel(second)
