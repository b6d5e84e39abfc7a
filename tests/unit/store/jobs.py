"""Jobs, a clock and shortcuts that the store's tests share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Thread

from sqlalchemy import event

from ffdl_batch.domain.job.job import Change, Job, JobId, new_job_id
from ffdl_batch.domain.job.spec import Framework, JobSpec
from ffdl_batch.domain.job_state import JobState
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.store import NewJob, Store

SUBMITTED_AT = 1000.0


@dataclass
class FakeClock:
    """A clock that stands still until a test moves it."""

    time: float = SUBMITTED_AT

    def now(self) -> float:
        """Seconds since the epoch."""
        return self.time

    def monotonic(self) -> float:
        """The same here."""
        return self.time


def new_job(
    key: str = "", *, uid: int = 1000, name: str = "digits", at: float = SUBMITTED_AT, job_id: JobId | None = None
) -> NewJob:
    """A small job to add."""
    spec = JobSpec(name, Framework("custom", "image.sif", "python train.py"))
    return NewJob(job_id or new_job_id(), uid, "ada", spec, "local", key, "sha256", at)


def add_job(store: Store, key: str = "", *, uid: int = 1000, name: str = "digits", at: float = SUBMITTED_AT) -> Job:
    """A small job, added."""
    return store.add_jobs([new_job(key, uid=uid, name=name, at=at)])[0]


def steps(*states: JobState, at: float = SUBMITTED_AT + 1, **columns: object) -> Change:
    """A change that passes through `states` at the same time."""
    return Change(steps=tuple((state, at) for state in states), columns=columns)


def applied(store: Store, job: Job, change: Change, *, lease_token: str | None = None) -> Job:
    """The job after a change that must succeed."""
    updated = store.apply(job, change, lease_token=lease_token)
    assert updated is not None
    return updated


def deploying(store: Store, key: str = "") -> tuple[Job, str]:
    """A job in its first attempt, and the token of its lease."""
    job = add_job(store, key)
    (leased,) = store.claim_deployable("deployer", limit=1, lease_s=60)
    assert leased.job == job
    begun = store.begin_attempt(job, leased.lease_token, SUBMITTED_AT + 1)
    assert begun is not None
    return begun, leased.lease_token


def begin(store: Store, at: float) -> Job:
    """The only job that can be deployed, in its next attempt."""
    (leased,) = store.claim_deployable("deployer", limit=1, lease_s=60)
    begun = store.begin_attempt(leased.job, leased.lease_token, at)
    assert begun is not None
    return begun


def finish_all(store: Store, say: Callable[[Job], None]) -> None:
    """Bring every job to its end, from the state in its row, as a restarted daemon does."""
    for leased in store.claim_deployable("somebody", limit=2, lease_s=0):
        job: Job | None = leased.job
        if leased.job.state is JobState.PENDING:
            job = store.begin_attempt(leased.job, leased.lease_token, 1001.0)
            assert job is not None
            say(job)
        assert job is not None
        say(applied(store, job, steps(JobState.QUEUED, native_id="7"), lease_token=leased.lease_token))
    for job in store.live_deployed("local"):
        say(applied(store, job, steps(JobState.PROCESSING, JobState.STORING, JobState.COMPLETED)))


def assert_consistent(store: Store, job_id: str) -> None:
    """What must be true of every job after whatever happened."""
    job = store.get(job_id)
    assert job is not None
    history = store.history(job_id)
    assert [entry.seq for entry in history] == list(range(1, len(history) + 1))
    assert history[-1].state is job.state
    assert [entry.at for entry in history] == sorted(entry.at for entry in history)
    attempts = store.attempts(job_id)
    assert [attempt.number for attempt in attempts] == list(range(1, job.attempt + 1))
    if attempts:
        assert attempts[-1].token == job.token
        alive = [entry.state for entry in history if not entry.state.is_terminal]
        assert job.native_id == ("" if alive[-1] is JobState.PENDING else attempts[-1].native_id)
    assert all(attempt.ended_at is not None for attempt in attempts[:-1])
    assert (job.ended_at is not None) is job.state.is_terminal


@contextmanager
def statements(store: Store) -> Iterator[list[str]]:
    """The statements that are sent meanwhile, without SQLite's BEGIN."""
    sent: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if not statement.startswith("BEGIN"):
            sent.append(statement)

    event.listen(store.engine, "before_cursor_execute", note)
    try:
        yield sent
    finally:
        event.remove(store.engine, "before_cursor_execute", note)


def in_threads(run: Callable[[int], None], count: int = 4) -> None:
    """Call `run` with 0, 1, ... in a thread each, and wait for them."""
    threads = [Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
