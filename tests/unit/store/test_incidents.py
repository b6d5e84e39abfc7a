"""Incidents are written with the change that they belong to, each once, and read by reports."""

from __future__ import annotations

from dataclasses import replace

from ffdl_batch.domain.incidents.incident import LINE_CHARS, LINES, Evidence, Incident, Origin
from ffdl_batch.domain.job.job import Change, Job
from ffdl_batch.domain.job_state import JobState
from ffdl_batch.store import Store
from tests.unit.store.jobs import FakeClock, add_job, applied, steps

ODD = "UnicodeDecodeError: b'\udcff' \x00"


def incident(job: Job, episode: str = "end-0", **changes: object) -> Incident:
    evidence = (Evidence("learner-2", ODD, 99.5), Evidence("scheduler", "NODE_FAIL"))
    known = Incident(job.id, 1, episode, "user.exit", 100.25, "C201", ODD, ("n1", "n2"), 2, evidence, 7200.5)
    return replace(known, **changes)  # type: ignore[arg-type]


def test_store_writes_end_and_incident_together(store: Store) -> None:
    job = add_job(store)
    happened = incident(job)
    ended = applied(store, job, replace(steps(JobState.CANCELLED), incidents=(happened,)))
    assert ended.state is JobState.CANCELLED
    [noticed] = store.incidents_of([job.id, "training-none"])[job.id]
    assert noticed.incident == happened


def test_store_writes_incident_of_same_episode_once(store: Store) -> None:
    job = add_job(store)
    twice = Change(incidents=(incident(job), incident(job, message="again")))
    job = applied(store, job, twice)
    applied(store, job, Change(incidents=(incident(job, message="later"), incident(job, "hang-1", at=50.0))))
    found = [(one.incident.episode, one.incident.message) for one in store.incidents_of([job.id])[job.id]]
    assert found == [("hang-1", ODD), ("end-0", ODD)]


def test_store_writes_no_incident_of_stale_change(store: Store) -> None:
    job = add_job(store)
    applied(store, job, Change(columns={"pending_reason": "first"}))
    assert store.apply(job, Change(incidents=(incident(job),))) is None
    assert store.incidents_of([job.id]) == {}


def test_store_filters_incidents_by_time_user_and_origin(store: Store, clock: FakeClock) -> None:
    first, second = add_job(store), add_job(store)
    applied(store, first, Change(incidents=(incident(first),)))
    between = store.incidents_noticed(0.0)[-1].noticed_at
    clock.time += 60.0
    applied(store, second, Change(incidents=(incident(second, at=1.0),)))
    assert [one.incident.job_id for one in store.incidents_noticed(0.0)] == [first.id, second.id]
    assert [one.incident.job_id for one in store.incidents_noticed(between)] == [second.id]
    assert [one.incident.job_id for one in store.incidents_noticed(0.0, between)] == [first.id]
    assert store.incidents_noticed(0.0, uid=first.uid + 1) == []
    assert len(store.incidents_noticed(0.0, uid=first.uid)) == 2
    applied(store, first, Change(incidents=(incident(first, "end-1", kind="node.gpu"),)))
    assert [one.incident.kind for one in store.incidents_noticed(0.0, origin=Origin.NODE)] == ["node.gpu"]


def test_store_limits_lines_and_length_of_incident_evidence(store: Store) -> None:
    job = add_job(store)
    many = tuple(Evidence("learner-1", "x" * (LINE_CHARS + 1), float(number)) for number in range(LINES + 1))
    applied(store, job, Change(incidents=(incident(job, evidence=many),)))
    [noticed] = store.incidents_of([job.id])[job.id]
    assert [len(line.text) for line in noticed.incident.evidence] == [LINE_CHARS] * LINES
