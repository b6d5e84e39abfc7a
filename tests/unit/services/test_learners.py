"""Learners that fail and are started again, and where each of them is, by what their controllers wrote."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ffdl_batch.domain.job.job import Job
from ffdl_batch.domain.job_state import JobState
from ffdl_batch.domain.launch.launch_file import RESTART_LEARNER, Pod, decode, encode
from ffdl_batch.domain.metrics.learner_reports import parse_report
from ffdl_batch.domain.metrics.records import MetricRecord, encode_record
from ffdl_batch.domain.outcome.controller_events import Event, EventKind, FinalRecord, Outcome, Scalar, encode_event
from ffdl_batch.domain.outcome.controller_events import EventKind as K
from ffdl_batch.domain.outcome.observation import EndCause, NativeId
from ffdl_batch.services.outcome.attempt_records import nodes_at_fault
from ffdl_batch.services.outcome.job_change import MAX_METRICS_WARNINGS
from ffdl_batch.services.outcome.record_completion import as_all_report
from ffdl_batch.services.queries.jobs import get_events
from ffdl_batch.services.queries.learners import TAIL_BYTES, learners_of, with_progress
from tests.unit.controller.test_outcome import at_work, launch, own_end
from tests.unit.services.conftest import MANIFEST, Site, write_final

TWO = MANIFEST + "learners: 2\nbatch: {restart: learner, retry: {failures: 3}}\n"
SAID = "learner 2 ended with exit code 7 and was started again (1 of 3)"


@pytest.fixture
def job(site: Site) -> Job:
    accepted = site.accept(manifest=TWO)
    site.deploy()
    deployed = site.job(accepted.id)
    path = Path(site.attempt(deployed).launch)  # of which the fake scheduler plans the least
    launch = decode(path.read_text())
    path.write_text(encode(replace(launch, learners=2, learners_per_node=2, restart=RESTART_LEARNER, restarts_max=3)))
    return deployed


class Node:
    """What the one node controller writes of the job, a second later each time."""

    def __init__(self, site: Site, job: Job) -> None:
        self.site, self.job, self.events = site, job, list[Event]()
        self.says(K.STARTED, host="n1")

    def says(self, kind: K, **fields: Scalar) -> Node:
        self.site.clock.tick(1)
        self.events.append(Event(len(self.events) + 1, self.site.clock.now(), "node-0", kind, fields))
        path = Path(self.site.attempt(self.job).events, "node-0.jsonl")
        path.write_text("".join(map(encode_event, self.events)))
        Path(self.site.platform.storage.root.doorbell, self.job.id).touch()
        return self

    def begins(self, number: int) -> Node:
        return self.says(K.LEARNER_STARTED, learner_id=number)

    def ends(self, number: int, code: int, **more: Scalar) -> Node:
        return self.says(K.LEARNER_ENDED, learner_id=number, exit_code=code, **more)


def told(site: Site, job: Job) -> list[tuple[str, str]]:
    """State and message of each event of a learner's restart."""
    events, _ = get_events(site.platform.storage.store, site.caller, job.id, 0)
    return [(event.state, event.message) for event in events if event.cause == "restarted"]


def test_watcher_records_learner_restart_event_once_after_learner_starts_again(site: Site, job: Job) -> None:
    node = Node(site, job).begins(1).begins(2).ends(2, 7, restarted=True)
    site.watch(full=False)
    assert told(site, job) == []  # it waits to be started
    node.begins(2)
    began_at = site.clock.now()
    for _ in range(3):
        site.watch(full=False)
        Path(site.platform.storage.root.doorbell, job.id).touch()
    site.platform.watcher().step(full=False)  # one that remembers nothing
    assert told(site, job) == [("PROCESSING", SAID)]
    (attempt,) = site.view(job).attempts
    assert [(one.at, one.message) for one in attempt.learner_restarts] == [(began_at, SAID)]
    assert attempt.restarts == ()


def test_watcher_records_missed_learner_restarts_before_job_end(site: Site, job: Job) -> None:
    node = Node(site, job).begins(1).begins(2).ends(2, 7, restarted=True).begins(2).ends(2, 7, restarted=True).begins(2)
    node.ends(1, 0).ends(2, 0).says(K.PHASE, phase="store-results", status="started")
    write_final(site, job)
    site.end(job, EndCause.SUCCESS)
    events, _ = get_events(site.platform.storage.store, site.caller, job.id, 0)
    assert [(event.state, event.cause) for event in events][-5:] == [
        ("PROCESSING", "progress"), ("PROCESSING", "restarted"), ("PROCESSING", "restarted"), ("STORING", "progress"),
        ("COMPLETED", "progress"),
    ]  # fmt: skip
    assert [message for _, message in told(site, job)] == [SAID, SAID.replace("1 of 3", "2 of 3")]
    assert [event.at for event in events] == sorted(event.at for event in events)
    assert site.job(job.id).state == "COMPLETED"


def test_learners_of_returns_state_node_and_restarts(site: Site, job: Job) -> None:
    Node(site, job).begins(1).begins(2).ends(2, 7, restarted=True).begins(2)
    site.watch()
    one, two = learners_of(site.platform.storage.root, site.view(job))
    assert (one.state, one.node, one.restarts) == ("running", "n1", 0)
    assert (two.state, two.node, two.restarts) == ("running", "n1", 1)


def test_learners_of_is_empty_before_first_attempt_and_without_launch_file(site: Site, job: Job) -> None:
    assert learners_of(site.platform.storage.root, site.view(site.accept("waiting", TWO))) == ()
    Path(site.attempt(job).launch).unlink()
    assert learners_of(site.platform.storage.root, site.view(job)) == ()


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


def test_watcher_warns_once_about_unconfined_devices(site: Site) -> None:
    job = site.deployed()
    head = site.head(job)
    head.starts()
    site.scheduler.run(NativeId(head.job.native_id))
    head.says("node-0", EventKind.DEVICES, host="n1", message="")
    site.watch()
    assert site.job(job.id).warnings == job.warnings
    for rank in (1, 2):
        head.says(
            f"node-{rank}", EventKind.DEVICES, host=f"n{rank}", message=f"node n{rank} lets the learners open all"
        )
        site.watch()
    assert site.job(job.id).warnings == (*job.warnings, "devices: node n1 lets the learners open all")


def test_watcher_limits_and_deduplicates_metrics_warnings(site: Site) -> None:
    job = site.deployed()
    head = site.head(job)
    head.starts()
    site.scheduler.run(NativeId(head.job.native_id))
    for number in (1, 2, 2):
        head.says("node-0", EventKind.METRICS, learner_id=number, message="a line is not JSON")
        site.watch()
    told = tuple(f"metrics: learner {number}: a line is not JSON" for number in (1, 2))
    assert site.job(job.id).warnings == (*job.warnings, *told)
    for number in range(MAX_METRICS_WARNINGS):
        head.says("node-0", EventKind.METRICS, learner_id=1, message=f"note {number}")
        site.watch()
    assert len(site.job(job.id).warnings) == len(job.warnings) + MAX_METRICS_WARNINGS


def test_running_job_warns_of_idle_gpus_until_they_are_used_again(site: Site) -> None:
    job = site.deployed()
    head = site.head(job)
    head.starts()
    site.scheduler.run(NativeId(head.job.native_id))
    site.watch()
    expected = []
    for rank, since, ends_at in ((0, 100.0, 1900.0), (1, 50.0, 1850.0)):
        head.says(f"node-{rank}", EventKind.IDLE, host=f"n{rank}", message="idle", since=since, ends_at=ends_at)
        site.watch()
        [warning] = set(site.job(job.id).warnings) - set(job.warnings)
        expected.append(warning)
        assert warning.startswith(f"idle GPUs: on n{rank} since ")
        assert "; the job ends at " in warning
        assert warning in site.platform.explainer.explain_job(site.caller, job.id).sentence
    head.says("node-1", EventKind.IDLE, host="n1", message="")
    site.watch()
    assert site.job(job.id).warnings == (*job.warnings, expected[0])
    head.says("node-0", EventKind.IDLE, host="n0", message="")
    site.watch()
    assert site.job(job.id).warnings == job.warnings
    assert "idle" not in site.platform.explainer.explain_job(site.caller, job.id).sentence


def test_watcher_warns_once_of_what_is_not_kept_of_results(site: Site) -> None:
    job = site.deployed()
    head = site.head(job)
    head.starts()
    site.scheduler.run(NativeId(head.job.native_id))
    for name in ("a", "b", "b"):
        head.says("node-0", EventKind.NOT_KEPT, message=f"{name} is a link")
        site.watch()
    assert site.job(job.id).warnings == (*job.warnings, "results: a is a link", "results: b is a link")


LOST = FinalRecord("t-1", Outcome.FAILED, 9.0, False, error_code="S106", message="the controller of node 1 died")
SAVED = FinalRecord("t-1", Outcome.HALTED, 9.0, False, message="preempted", interruption="preemption")
GANG = replace(launch(2), pod=Pod("/ffdl-pod"))


def over(node: int) -> Event:
    return Event(99, 8.0, f"node-{node}", EventKind.ENDED)


PEER = own_end(0, 6.0, exit_code=143, ended_by="term")
EVENTS = [*at_work(0), *at_work(1), own_end(1, exit_code=4), PEER, over(0), over(1)]


@pytest.mark.parametrize("final", [LOST, SAVED])
def test_as_all_say_reports_failed_learner_that_head_controller_missed(final: FinalRecord) -> None:
    found = as_all_report(final, GANG, EVENTS)
    assert (found.outcome, found.error_code, found.exit_code) == (Outcome.FAILED, "C201", 4)
    assert found.interruption == "" and "learner 2" in found.message


def test_as_all_say_confirms_checkpoint_that_learners_of_all_pods_saved() -> None:
    saved: list[Event] = []
    for node in (0, 1):
        asked = Event(20, 5.0, f"node-{node}", EventKind.ASKED, {"reason": "warned"})
        report = Event(40, 7.0, f"node-{node}", EventKind.CHECKPOINT, {"asked": True, "confirmed": True})
        saved += [*at_work(node), asked, own_end(node, 6.0, exit_code=0, asked="warned"), report, over(node)]
    for final in (LOST, SAVED):
        found = as_all_report(final, GANG, saved)
        assert (found.interruption, found.checkpoint.confirmed) == ("preemption", True)


@pytest.mark.parametrize(
    ("gang", "events"),
    [
        (replace(GANG, pod=Pod("/ffdl-pod", apart=False)), EVENTS),  # it saw all
        (replace(GANG, pod=None), EVENTS),
        (GANG, EVENTS[:-1]),  # nobody has heard of the other one's end
        (GANG, [*at_work(0), *at_work(1), PEER, over(0), over(1)]),  # no learner failed of itself
    ],
)
def test_as_all_say_keeps_head_controller_record_without_complete_contrary_evidence(
    gang: object, events: list[Event]
) -> None:
    assert as_all_report(LOST, gang, events) == LOST  # type: ignore[arg-type]


def test_expected_end_follows_latest_reports_of_first_learner_and_limit_counts_from_start(site: Site) -> None:
    job = site.accept(manifest=MANIFEST + "batch: {time: 1h}\n")
    site.deploy()
    job = site.move(site.job(job.id), JobState.DOWNLOADING)
    started = site.clock.now()
    site.clock.tick(60)
    job = site.move(job, JobState.PROCESSING)
    storage, view = site.platform.storage, site.view(job)
    assert (view.limit_at, with_progress(storage.root, view).expected_end) == (started + 3600, None)
    path = Path(site.attempt(job).learner_metrics(1))
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [
        "ffdl-throughput: samples=1 seconds=1 remaining=9999",  # before the tail
        *["ffdl-scale: hold"] * (TAIL_BYTES // 100),
        *(f"ffdl-throughput: samples={speed} seconds=1 remaining={left}" for speed, left in ((5, 600), (10, 590))),
        "ffdl-throughput: samples=40 seconds=1 remaining=500",
        "ffdl-throughput: samples=7 seconds=1",  # without what remains
    ]
    values = [parse_report(line) or {} for line in lines]
    records = [MetricRecord(job.id, 1000 * at, at, "", "ffdl", values=one) for at, one in enumerate(values, 1)]
    path.write_text("".join(map(encode_record, records)) + '{"torn')
    found = with_progress(storage.root, view)
    assert found.expected_end == len(lines) - 1 + 500 / 10
    assert with_progress(storage.root, replace(view, state="STORING")).expected_end is None


def test_time_limit_of_job_that_does_not_run_or_has_none_is_unknown(site: Site) -> None:
    queued, unlimited = site.accept("k1", MANIFEST + "batch: {time: 1h}\n"), site.accept("k2")
    site.deploy()
    site.move(site.job(unlimited.id), JobState.PROCESSING)
    assert [site.view(one).limit_at for one in (queued, unlimited)] == [None, None]
