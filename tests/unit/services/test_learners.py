"""Learners that fail and are started again, and where each of them is, by what their controllers wrote."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ffdl_batch.domain.events import Event, Scalar, encode_event
from ffdl_batch.domain.events import EventKind as K
from ffdl_batch.domain.job import Job
from ffdl_batch.domain.launch import RESTART_LEARNER, decode, encode
from ffdl_batch.domain.observation import EndCause, NativeId
from ffdl_batch.services.deploy import Deployer
from ffdl_batch.services.learners import learners_of
from ffdl_batch.services.query import get_events, get_job
from ffdl_batch.services.watch import Watcher
from tests.unit.services.conftest import MANIFEST, Site, write_final

TWO = MANIFEST + "learners: 2\nbatch: {restart: learner, retry: {failures: 3}}\n"
SAID = "learner 2 ended with exit code 7 and was started again (1 of 3)"


@pytest.fixture
def job(site: Site) -> Job:
    accepted = site.accept(manifest=TWO)
    Deployer(site.platform).step()
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
        Path(self.site.platform.root.doorbell, self.job.id).touch()
        return self

    def begins(self, number: int) -> Node:
        return self.says(K.LEARNER_STARTED, learner_id=number)

    def ends(self, number: int, code: int, **more: Scalar) -> Node:
        return self.says(K.LEARNER_ENDED, learner_id=number, exit_code=code, **more)


def told(site: Site, job: Job) -> list[tuple[str, str]]:
    """State and message of each event of a learner's restart."""
    events, _ = get_events(site.platform, site.caller, job.id, 0)
    return [(event.state, event.message) for event in events if event.cause == "restarted"]


def test_watcher_records_learner_restart_event_once_after_learner_starts_again(
    site: Site, watcher: Watcher, job: Job
) -> None:
    node = Node(site, job).begins(1).begins(2).ends(2, 7, restarted=True)
    watcher.step(full=False)
    assert told(site, job) == []  # it waits to be started
    node.begins(2)
    began_at = site.clock.now()
    for _ in range(3):
        watcher.step(full=False)
        Path(site.platform.root.doorbell, job.id).touch()
    Watcher(site.platform).step(full=False)  # one that remembers nothing
    assert told(site, job) == [("PROCESSING", SAID)]
    (attempt,) = get_job(site.platform, site.caller, job.id).attempts
    assert [(one.at, one.message) for one in attempt.learner_restarts] == [(began_at, SAID)]
    assert attempt.restarts == ()


def test_watcher_records_missed_learner_restarts_before_job_end(site: Site, watcher: Watcher, job: Job) -> None:
    node = Node(site, job).begins(1).begins(2).ends(2, 7, restarted=True).begins(2).ends(2, 7, restarted=True).begins(2)
    node.ends(1, 0).ends(2, 0).says(K.PHASE, phase="store-results", status="started")
    write_final(site, job)
    site.scheduler.end(NativeId(job.native_id), EndCause.SUCCESS, site.clock.now())
    watcher.step(full=True)
    events, _ = get_events(site.platform, site.caller, job.id, 0)
    assert [(event.state, event.cause) for event in events][-5:] == [
        ("PROCESSING", "progress"), ("PROCESSING", "restarted"), ("PROCESSING", "restarted"), ("STORING", "progress"),
        ("COMPLETED", "progress"),
    ]  # fmt: skip
    assert [message for _, message in told(site, job)] == [SAID, SAID.replace("1 of 3", "2 of 3")]
    assert [event.at for event in events] == sorted(event.at for event in events)
    assert site.job(job.id).state == "COMPLETED"


def test_learners_of_returns_state_node_and_restarts(site: Site, watcher: Watcher, job: Job) -> None:
    Node(site, job).begins(1).begins(2).ends(2, 7, restarted=True).begins(2)
    watcher.step(full=True)
    one, two = learners_of(site.platform, get_job(site.platform, site.caller, job.id))
    assert (one.state, one.node, one.restarts) == ("running", "n1", 0)
    assert (two.state, two.node, two.restarts) == ("running", "n1", 1)


def test_learners_of_is_empty_without_launch_file(site: Site, job: Job) -> None:
    Path(site.attempt(job).launch).unlink()
    assert learners_of(site.platform, get_job(site.platform, site.caller, job.id)) == ()


def test_learners_of_is_empty_before_first_attempt(site: Site) -> None:
    waiting = site.accept(manifest=TWO)
    assert learners_of(site.platform, get_job(site.platform, site.caller, waiting.id)) == ()
