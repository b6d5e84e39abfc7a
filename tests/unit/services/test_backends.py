"""The circuit breaker around every adapter, and what is known of sites while it is open."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ffdl_batch.config import load_settings
from ffdl_batch.domain.backend_facts import AccountedRun, AccountedUse, AccountingOutage, BackendFacts
from ffdl_batch.domain.job.job import Job, JobId, Token
from ffdl_batch.domain.job.spec import Framework, JobSpec
from ffdl_batch.domain.job_state import JobState, RequestedAction
from ffdl_batch.domain.outcome.observation import NativeId
from ffdl_batch.domain.scheduler_errors import (
    InvalidRequest,
    NotNow,
    NotTaken,
    SchedulerMissing,
    SchedulerUnreachable,
    SubmissionUncertain,
    TooMany,
)
from ffdl_batch.plugins import AdapterContext
from ffdl_batch.services.backends.adapters import FIRST_PAUSE_S, LONGEST_PAUSE_S, LOOK_PAUSE_S, Adapters, NotAsked
from ffdl_batch.services.backends.site_facts import LIFE_S, YOUNG_S
from tests.fakes.clock import FakeClock
from tests.fakes.scheduler import FakeScheduler

NAME = "fake"


class Site(FakeScheduler):
    """Says what release it is, as soon as a test lets it."""

    version = "1"
    failure: Exception | None = None
    passing = False
    probes = 0

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()

    def probe(self) -> BackendFacts:
        self.probes += 1
        assert self.gate.wait(30)
        if self.failure is not None:
            raise self.failure
        return BackendFacts(version=self.version, is_passing=self.passing)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A site that answers is waited for, however busy the machine is."""
    for name in ("PATIENCE_S", "REFRESH_PATIENCE_S"):
        monkeypatch.setattr(f"ffdl_batch.services.backends.site_facts.{name}", 60.0)


@pytest.fixture
def scheduler() -> Site:
    return Site()


@pytest.fixture
def adapters(tmp_path: Path, clock: FakeClock, scheduler: Site) -> Adapters:
    return make(tmp_path, clock, scheduler)


def make(state: Path, clock: FakeClock, scheduler: Site, **options: str) -> Adapters:
    """The adapters of a daemon's life over the state directory."""
    environ = {"HOME": str(state), "FFDL_STATE_DIR": str(state)}
    settings = load_settings(cwd=state, environ=environ)
    adapters = Adapters(settings, AdapterContext(str(state), "alice", 1000), clock)
    adapters.use(NAME, scheduler)
    return adapters


def ask(adapters: Adapters, failure: Exception | None = None) -> None:
    with adapters.asking(NAME):
        if failure is not None:
            raise failure


def fail(adapters: Adapters) -> None:
    with pytest.raises(SchedulerUnreachable):
        ask(adapters, SchedulerUnreachable("Unable to contact slurm controller"))


def test_circuit_opens_on_first_failure_closes_on_answer_and_doubts_only_begin_of_first_outage(
    adapters: Adapters, clock: FakeClock
) -> None:
    began = clock.now()
    fail(adapters)
    (health,) = adapters.health()
    assert (health.name, health.unreachable_since, health.maybe_before) == (NAME, began, True)
    assert health.detail == "Unable to contact slurm controller"
    assert health.asked_again_at is not None and began < health.asked_again_at <= began + 1.25 * FIRST_PAUSE_S
    assert adapters.outages() == (health,)
    with pytest.raises(NotAsked, match="not called for a moment: Unable to contact"):
        ask(adapters)
    clock.tick(2)
    ask(adapters)
    assert adapters.outages() == ()
    (health,) = adapters.health()
    assert (health.unreachable_since, health.maybe_before) == (None, False)
    fail(adapters)
    assert not adapters.outages()[0].maybe_before


def test_circuit_keeps_outage_start_and_lengthens_pauses(adapters: Adapters, clock: FakeClock) -> None:
    began, waits = clock.now(), []
    for _ in range(9):
        fail(adapters)
        waits.append(adapters.wait_s(NAME))
        clock.tick(waits[-1])
    assert adapters.outages()[0].unreachable_since == began
    assert waits[0] <= 1.25 * FIRST_PAUSE_S
    assert 0.75 * LONGEST_PAUSE_S <= waits[-1] <= 1.25 * LONGEST_PAUSE_S


def test_circuit_retries_missing_scheduler_at_short_intervals(adapters: Adapters, clock: FakeClock) -> None:
    for _ in range(9):
        with pytest.raises(SchedulerMissing):
            ask(adapters, SchedulerMissing("there is not a kubeconfig"))
        assert adapters.wait_s(NAME) <= 1.25 * LOOK_PAUSE_S
        clock.tick(adapters.wait_s(NAME))


class Accounted(Site):
    """Has an accounting, which may be away."""

    away: AccountingOutage | None = None

    def accounting_outage(self) -> AccountingOutage | None:
        return self.away

    def accounted_runs(self, attempts: Mapping[NativeId, Token]) -> Mapping[NativeId, Sequence[AccountedRun]] | None:
        raise AssertionError("nobody asks for runs")

    def accounted_uses(self, since: float, until: float) -> Sequence[AccountedUse] | None:
        raise AssertionError("the uses of all users are not asked for")


def test_adapters_list_accounting_outage_separately_from_scheduler(tmp_path: Path, clock: FakeClock) -> None:
    scheduler = Accounted()
    adapters = make(tmp_path, clock, scheduler)
    ask(adapters)
    assert adapters.outages() == ()
    scheduler.away = AccountingOutage(100.0, "connection refused", 7.0)
    (outage,) = adapters.outages()
    assert (outage.name, outage.accounts_for, outage.detail) == ("fake's accounting", NAME, "connection refused")
    assert (outage.unreachable_since, outage.asked_again_at) == (clock.now() - 100, clock.now() + 7)
    assert (adapters.is_out(NAME), [one.name for one in adapters.health()]) == (False, [NAME, "fake's accounting"])


@pytest.mark.parametrize(
    ("failure", "is_out"),
    [
        (SchedulerUnreachable("no answer"), True),
        (SchedulerMissing("sbatch cannot be run"), True),
        (SubmissionUncertain("timed out"), True),
        (NotNow("a submission of this attempt is under way"), False),
        (TooMany("no room"), False),
        (NotTaken("fork: Cannot allocate memory"), False),
        (InvalidRequest("Invalid qos specification"), False),
        (OSError(28, "No space left on device"), False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_circuit_opens_only_for_errors_that_mean_no_answer(
    adapters: Adapters, failure: Exception, is_out: bool
) -> None:
    with pytest.raises(type(failure)):
        ask(adapters, failure)
    assert adapters.is_out(NAME) is is_out


@pytest.mark.parametrize(
    ("failure", "is_out", "may_ask"),
    [
        (TooMany("no room"), False, True),
        (InvalidRequest("no"), False, True),
        (NotNow("busy"), True, True),
        (NotTaken("fork: Cannot allocate memory"), True, False),
    ],
)
def test_circuit_closes_on_rejection_and_counts_failed_submission_but_not_busy_error_as_failure(
    adapters: Adapters, clock: FakeClock, failure: Exception, is_out: bool, may_ask: bool
) -> None:
    fail(adapters)
    clock.tick(60)
    with pytest.raises(type(failure)):
        ask(adapters, failure)
    assert (adapters.is_out(NAME), adapters.may_ask(NAME)) == (is_out, may_ask)


def test_circuit_logs_outage_with_growing_gaps_and_its_end_once(
    adapters: Adapters, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    began = clock.now()
    for number in range(40):
        with pytest.raises(SchedulerUnreachable):
            ask(adapters, SchedulerUnreachable(("squeue", "sinfo")[number % 2] + f" gave no answer ({number})"))
        clock.tick(40)
    told = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert [level for level, _ in told] == ["WARNING"] * 4  # the 1st, the other command's, the 4th and the 16th
    assert told[0][1] == "backend fake does not answer, and is asked less and less often: squeue gave no answer (0)"
    assert told[3][1].startswith(f"backend fake has not answered for {15 * 40} s, ")
    caplog.clear()
    ask(adapters)
    ask(adapters)
    answered = ("INFO", f"backend fake answers again, after {clock.now() - began:.0f} s")
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [answered]


def test_adapters_clear_submission_pause_when_scheduler_answers_again(adapters: Adapters, clock: FakeClock) -> None:
    spec = JobSpec("digits", Framework("custom", "x", "true"))
    job = Job(
        JobId("training-000000001"), 1000, "ada", spec, JobState.PENDING, RequestedAction.NONE, NAME, 0, "", 1, 0.0, 0.0
    )
    adapters.submit_limits.turned_away(job, NotTaken("sbatch exited with status 127"))
    fail(adapters)
    clock.tick(2)
    assert adapters.submit_limits.wait_s(job) > 0
    ask(adapters)
    assert adapters.submit_limits.wait_s(job) == 0


def test_circuit_admits_one_caller_after_pause(adapters: Adapters, clock: FakeClock) -> None:
    fail(adapters)
    clock.tick(60)
    answer, asked = threading.Event(), []

    def come(number: int) -> str:
        try:
            with adapters.asking(NAME):
                asked.append(number)
                assert answer.wait(30)
        except NotAsked:
            return "left alone"
        return "asked"

    with ThreadPoolExecutor(8) as pool:
        results = [pool.submit(come, number) for number in range(8)]
        while sum(result.done() for result in results) < 7:
            time.sleep(0.001)
        answer.set()
        assert sorted(result.result() for result in results) == ["asked"] + ["left alone"] * 7
    assert len(asked) == 1
    assert adapters.may_ask(NAME) and not adapters.is_out(NAME)


def test_circuit_is_separate_for_each_backend(adapters: Adapters) -> None:
    adapters.use("other", Site())
    fail(adapters)
    with adapters.asking("other"):
        pass
    assert [one.name for one in adapters.outages()] == [NAME]


def test_site_facts_are_probed_again_only_after_their_lifetime(
    adapters: Adapters, clock: FakeClock, scheduler: Site
) -> None:
    for _ in range(5):
        assert adapters.facts(NAME).version == "1"
    assert scheduler.probes == 1
    scheduler.version = "2"
    clock.tick(LIFE_S)
    assert adapters.facts(NAME).version == "2"
    assert adapters.health()[0].version == "2"


def test_site_facts_are_probed_again_early_when_marked_as_passing(
    adapters: Adapters, clock: FakeClock, scheduler: Site
) -> None:
    scheduler.passing = True
    assert adapters.facts(NAME).version == adapters.facts(NAME).version == "1"
    scheduler.version, scheduler.passing = "2", False
    clock.tick(YOUNG_S)
    assert adapters.facts(NAME).version == "2"
    clock.tick(YOUNG_S)
    assert adapters.facts(NAME).version == "2" and scheduler.probes == 2


def test_site_facts_are_probed_once_for_concurrent_first_callers(adapters: Adapters, scheduler: Site) -> None:
    scheduler.gate.clear()
    with ThreadPoolExecutor(8) as pool:
        found = [pool.submit(adapters.facts, NAME) for _ in range(8)]
        while not scheduler.probes:
            time.sleep(0.001)
        scheduler.gate.set()
        assert {one.result().version for one in found} == {"1"}
    assert scheduler.probes == 1


def test_site_facts_return_cached_value_while_slow_site_is_probed(
    adapters: Adapters, clock: FakeClock, scheduler: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ffdl_batch.services.backends.site_facts.PATIENCE_S", 0.05)
    adapters.facts(NAME)
    clock.tick(LIFE_S)
    scheduler.version = "2"
    scheduler.gate.clear()
    for _ in range(20):
        assert adapters.facts(NAME).version == "1"
    while scheduler.probes < 2:  # its thread may only just have been started
        time.sleep(0.001)
    assert scheduler.probes == 2
    scheduler.gate.set()
    while adapters.facts(NAME).version == "1":
        time.sleep(0.001)
    assert scheduler.probes == 2


def test_refresh_waits_for_answer_of_slow_site(
    adapters: Adapters, clock: FakeClock, scheduler: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ffdl_batch.services.backends.site_facts.PATIENCE_S", 0.0)
    adapters.facts(NAME)
    clock.tick(YOUNG_S)
    scheduler.version = "2"
    scheduler.gate.clear()
    with ThreadPoolExecutor(1) as pool:
        refreshed = pool.submit(adapters.refresh, NAME)
        while scheduler.probes < 2:
            time.sleep(0.001)
        scheduler.gate.set()
        assert refreshed.result().version == "2"


def test_site_facts_raise_error_when_first_probe_times_out(
    adapters: Adapters, scheduler: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ffdl_batch.services.backends.site_facts.FIRST_PATIENCE_S", 0.05)
    scheduler.gate.clear()
    with pytest.raises(SchedulerUnreachable, match="fake has not described its site within"):
        adapters.facts(NAME)
    scheduler.gate.set()


@pytest.mark.parametrize("failure", [SchedulerUnreachable("down"), InvalidRequest("no such slurm")])
def test_site_facts_survive_outage_after_first_answer(
    adapters: Adapters, clock: FakeClock, scheduler: Site, failure: Exception
) -> None:
    scheduler.failure = failure
    with pytest.raises(type(failure)):
        adapters.facts(NAME)
    clock.tick(60)
    scheduler.failure = None
    assert adapters.facts(NAME).version == "1"
    scheduler.failure = failure
    clock.tick(3600)
    assert adapters.facts(NAME).version == "1"


def test_site_facts_of_previous_daemon_are_used_when_site_is_down(
    tmp_path: Path, clock: FakeClock, scheduler: Site
) -> None:
    make(tmp_path, clock, scheduler).facts(NAME)
    scheduler.failure = SchedulerUnreachable("down")
    later = make(tmp_path, clock, scheduler)
    assert later.facts(NAME).version == "1"
    assert later.is_out(NAME)  # it was asked nevertheless
    assert later.facts(NAME).version == "1"
    scheduler.failure, scheduler.version = None, "2"
    clock.tick(60)
    assert later.facts(NAME).version == "2"


@pytest.mark.parametrize("spoil", ["", "{", '{"format": 2}', "[]", '{"format": 1, "made_by": "another release"}'])
def test_site_facts_file_is_ignored_if_damaged_or_of_another_release(
    tmp_path: Path, clock: FakeClock, scheduler: Site, spoil: str
) -> None:
    scheduler.failure = SchedulerUnreachable("down")
    (tmp_path / "site-fake.json").write_text(spoil)
    with pytest.raises(SchedulerUnreachable, match="down"):
        make(tmp_path, clock, scheduler).facts(NAME)


def test_site_facts_are_returned_when_cache_file_cannot_be_written(adapters: Adapters, tmp_path: Path) -> None:
    (tmp_path / "site-fake.json").mkdir()
    assert adapters.facts(NAME).version == "1"


def test_site_facts_file_records_format_and_producer(adapters: Adapters, tmp_path: Path) -> None:
    adapters.facts(NAME)
    cell = json.loads((tmp_path / "site-fake.json").read_text())
    assert (cell["format"], cell["facts"]["version"]) == (1, "1")
    assert len(cell["made_by"]) == 16


def test_refresh_probes_site_at_most_once_every_few_seconds(
    adapters: Adapters, clock: FakeClock, scheduler: Site
) -> None:
    adapters.facts(NAME)
    scheduler.version = "2"
    for _ in range(10):
        assert adapters.refresh(NAME).version == "1"
    clock.tick(YOUNG_S)
    assert adapters.refresh(NAME).version == "2"
    assert scheduler.probes == 2
