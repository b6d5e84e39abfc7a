"""What the events of an attempt say of its nodes."""

from __future__ import annotations

from ffdl_batch.domain.events import Event, EventKind, Scalar
from ffdl_batch.domain.observation import NativeId
from ffdl_batch.services.chain import METRICS_TOLD
from ffdl_batch.services.evidence import nodes_at_fault
from ffdl_batch.services.watch import Watcher
from tests.fakes.head import FakeHead
from tests.unit.services.conftest import Site


def test_nodes_at_fault_returns_only_nodes_that_reported_node_errors() -> None:
    def at(number: int, source: str, kind: EventKind, **fields: Scalar) -> Event:
        return Event(number, float(number), source, kind, fields)

    started = [at(1, f"node-{rank}", EventKind.STARTED, host=f"n{rank + 1}.cluster") for rank in range(3)]
    faults = [
        at(2, "node-0", EventKind.FAULT, code="", message="told to end"),
        at(2, "node-1", EventKind.FAULT, code="S108", message="other devices"),
        at(2, "node-2", EventKind.FAULT, code="S302", message="no data"),
    ]
    assert nodes_at_fault([*started, *faults]) == ("n2",)
    refused = at(2, "node-0", EventKind.LEARNER_ENDED, learner_id=1, exit_code=255, code="S107", detail="no netns")
    assert nodes_at_fault([*started, *faults, refused]) == ("n1", "n2")
    assert nodes_at_fault(started) == ()


def test_watcher_warns_once_about_unconfined_devices(site: Site, watcher: Watcher) -> None:
    job = site.deployed()
    head = FakeHead(site.platform.root, site.job(job.id), site.clock.now())
    head.starts()
    site.scheduler.run(NativeId(head.job.native_id))
    head.says("node-0", EventKind.DEVICES, host="n1", message="")
    watcher.step(full=True)
    assert site.job(job.id).warnings == job.warnings
    for rank in (1, 2):
        head.says(
            f"node-{rank}", EventKind.DEVICES, host=f"n{rank}", message=f"node n{rank} lets the learners open all"
        )
        watcher.step(full=True)
    assert site.job(job.id).warnings == (*job.warnings, "devices: node n1 lets the learners open all")


def test_watcher_limits_and_deduplicates_metrics_warnings(site: Site, watcher: Watcher) -> None:
    job = site.deployed()
    head = FakeHead(site.platform.root, site.job(job.id), site.clock.now())
    head.starts()
    site.scheduler.run(NativeId(head.job.native_id))
    for number in (1, 2, 2):
        head.says("node-0", EventKind.METRICS, learner_id=number, message="a line is no JSON")
        watcher.step(full=True)
    told = tuple(f"metrics: learner {number}: a line is no JSON" for number in (1, 2))
    assert site.job(job.id).warnings == (*job.warnings, *told)
    for number in range(METRICS_TOLD):
        head.says("node-0", EventKind.METRICS, learner_id=1, message=f"note {number}")
        watcher.step(full=True)
    assert len(site.job(job.id).warnings) == len(job.warnings) + METRICS_TOLD
