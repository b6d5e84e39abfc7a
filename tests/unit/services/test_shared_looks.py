"""When a daemon asks the scheduler itself although the hub of the site shares its listing."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import field, replace

import pytest

from ffdl_batch.domain.job_state import JobState
from ffdl_batch.domain.outcome.controller_events import Outcome
from ffdl_batch.domain.outcome.observation import EndCause, NativeId, Observation, Phase
from ffdl_batch.domain.outcome.shared_listing import SharedView
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.services.job_control.stop import cancel_job
from ffdl_batch.services.monitoring.shared_looks import LONGEST_S, SLOW_S, TOO_OLD_S, SharedLooks
from tests.fakes.scheduler import FakeScheduler
from tests.unit.services.conftest import Site, write_events, write_final

ONE, TWO = NativeId("1"), NativeId("2")
WAITS = Observation(Phase.PENDING, "PENDING", reason="Priority", submitted_at=5.0, name="training-1")
RUNS = Observation(Phase.RUNNING, "RUNNING", nodes="n1", submitted_at=5.0, started_at=6.0, name="training-2")


def unnamed(seen: Observation) -> Observation:
    return replace(seen, name="")


def looks_at(now: float = 0.0) -> SharedLooks:
    """A daemon that has asked about two jobs itself."""
    looks = SharedLooks(lambda: 0.5)
    looks.note_own(now, {ONE: WAITS, TWO: RUNS})
    return looks


def view(one: Observation | None = WAITS, two: Observation | None = RUNS, age_s: float = 1.0) -> SharedView:
    shown = {ONE: one, TWO: two}
    return SharedView({native: unnamed(seen) for native, seen in shown.items() if seen is not None}, age_s)


def test_unchanged_listing_needs_no_own_question_and_shows_what_the_last_one_did() -> None:
    looks = looks_at()
    look = looks.judge([ONE, TWO], view(), 10.0)
    assert look is not None and not look.is_own
    assert look.listed[ONE] is WAITS and look.listed[TWO] is RUNS


def test_only_the_reason_for_waiting_is_taken_from_the_hub() -> None:
    looks = looks_at()
    look = looks.judge([ONE, TWO], view(replace(WAITS, reason="Resources")), 10.0)
    assert look is not None and look.listed[ONE] == replace(WAITS, reason="Resources")
    assert looks.judge([ONE, TWO], view(two=replace(RUNS, reason="Prolog")), 20.0) is None


@pytest.mark.parametrize(
    "shown",
    [
        None,
        replace(WAITS, phase=Phase.RUNNING, native_state="RUNNING"),
        replace(WAITS, phase=Phase.ENDED, native_state="CANCELLED", end=EndCause.CANCELLED, ended_at=9.0),
        replace(WAITS, restarts=1),
        replace(WAITS, submitted_at=7.0),
        replace(WAITS, held_for_good=True, reason="launch failed requeued held"),
        replace(WAITS, nowhere=True, reason="BadConstraints"),
    ],
)
def test_everything_else_that_the_hub_shows_leads_to_an_own_question_at_once(shown: Observation | None) -> None:
    looks = looks_at()
    assert looks.judge([ONE, TWO], view(shown), 10.0) is None
    assert looks.may_ask(10.0)


def test_job_that_ended_by_own_question_is_never_listed_by_the_hub() -> None:
    ended = replace(RUNS, phase=Phase.ENDED, native_state="COMPLETED", end=EndCause.SUCCESS)
    looks = SharedLooks(lambda: 0.5)
    looks.note_own(0.0, {ONE: WAITS, TWO: ended})
    assert looks.judge([ONE, TWO], view(two=ended), 10.0) is None


def test_listing_older_than_the_last_own_question_shows_nothing_and_asks_nothing() -> None:
    looks = looks_at(9.5)
    assert looks.judge([ONE, TWO], view(None, age_s=1.0), 10.0) is None
    assert not looks.may_ask(10.0)


def test_daemons_ask_slowly_and_spread_when_the_hub_goes_away() -> None:
    first = []
    for number in range(10):
        looks = SharedLooks(lambda number=number: number / 10)  # type: ignore[misc]
        looks.note_own(0.0, {ONE: WAITS})
        assert looks.judge([ONE], view(two=None), 1000.0) is not None
        assert looks.judge([ONE], None, 1010.0) is None
        asked = [
            now for now in range(1010, 1400, 2) if looks.judge([ONE], None, float(now)) is None and looks.may_ask(now)
        ]
        first.append(asked[0])
        looks.note_own(asked[0], {ONE: WAITS})
        assert not looks.may_ask(asked[0] + SLOW_S / 2 - 1) and looks.may_ask(asked[0] + 1.5 * SLOW_S)
    assert first == sorted(set(first)) and first[-1] - first[0] >= 0.8 * SLOW_S


def test_hub_that_was_away_for_a_moment_causes_no_own_question() -> None:
    looks = looks_at()
    assert looks.judge([ONE, TWO], None, 10.0) is None
    assert looks.judge([ONE, TWO], view(), 15.0) is not None
    assert looks.judge([ONE, TWO], view(), 15.0 + 2 * SLOW_S) is not None
    assert not looks.may_ask(15.0 + 2 * SLOW_S)


@pytest.mark.parametrize("age_s", [TOO_OLD_S + 1, 1e9])
def test_listing_that_is_too_old_is_none(age_s: float) -> None:
    looks = looks_at()
    assert looks.judge([ONE, TWO], view(age_s=age_s), 100.0) is None
    assert not looks.may_ask(100.0) and looks.may_ask(100.0 + SLOW_S)


def test_hub_that_shows_no_change_for_ever_delays_own_questions_for_an_hour_only() -> None:
    looks = looks_at()
    assert looks.judge([ONE, TWO], view(), LONGEST_S - 1) is not None
    assert looks.judge([ONE, TWO], view(), LONGEST_S) is None and looks.may_ask(LONGEST_S)


@dataclass
class SharingScheduler(FakeScheduler):
    """A scheduler whose site has a hub. `hub` is what that shows; None if it has no listing."""

    hub: dict[NativeId, Observation] | None = field(default_factory=dict)
    has_shared_listing: bool = True

    def list_all_users(self) -> Mapping[int, list[str]]:
        raise NotImplementedError

    def explain_blindness(self) -> str:
        raise NotImplementedError

    def observe_shared(self, ids: Collection[NativeId]) -> SharedView | None:
        if self.hub is None:
            return None
        return SharedView({native: self.hub[native] for native in ids if native in self.hub}, 0.0)

    def follow(self) -> None:
        """Let the hub show what is true."""
        self.hub = {native: seen for native, seen in self.seen.items() if seen.phase is not Phase.ENDED}


@pytest.fixture
def sharing(site: Site) -> SharingScheduler:
    scheduler = SharingScheduler()
    site.scheduler = scheduler
    site.platform.adapters.use("fake", scheduler)
    return scheduler


def watch(site: Site, times: int, pause_s: float = 2.0) -> None:
    for _ in range(times):
        site.clock.tick(pause_s)
        site.watch()


def test_watcher_asks_once_for_each_change_and_not_for_each_look(site: Site, sharing: SharingScheduler) -> None:
    job = site.deployed()
    native = NativeId(job.native_id)
    sharing.follow()
    watch(site, 20)
    assert sharing.observe_calls == 1
    sharing.wait(native, "Priority")
    sharing.follow()
    watch(site, 5)
    assert (site.job(job.id).pending_reason, sharing.observe_calls) == ("Priority", 1)
    sharing.run(native)
    sharing.follow()
    watch(site, 20)
    assert sharing.observe_calls == 2
    write_final(site, job)
    sharing.end(native, EndCause.SUCCESS, site.clock.now())
    sharing.follow()
    watch(site, 5)
    assert site.job(job.id).state is JobState.COMPLETED
    asked = sharing.asked
    watch(site, 20)
    assert sharing.asked == asked


def test_hub_that_lies_ends_resubmits_and_cancels_nothing(site: Site, sharing: SharingScheduler) -> None:
    """Whatever it shows, the state is what the daemon's own questions show."""
    job = site.deployed()
    native = NativeId(job.native_id)
    sharing.run(native)
    sharing.follow()
    write_events(site, job, [("learner", site.clock.now())])
    watch(site, 3)
    assert site.job(job.id).state is JobState.PROCESSING
    truth = sharing.seen[native]
    lies: tuple[dict[NativeId, Observation] | None, ...] = (
        {},
        {native: replace(truth, phase=Phase.ENDED, end=EndCause.NODE_FAIL, native_state="NODE_FAIL", ended_at=9.0)},
        {native: replace(truth, restarts=7)},
        {native: Observation(Phase.PENDING, "PENDING", reason="x", restarts=3, held_for_good=True)},
        {native: replace(truth, name="training-other-1")},
        None,
    )
    for lie in lies:
        sharing.hub = lie
        watch(site, 60)
    current = site.job(job.id)
    assert (current.state, current.attempt, current.native_id) == (JobState.PROCESSING, 1, job.native_id)
    assert (sharing.cancelled, sharing.withdrawn, sharing.signalled, len(sharing.submitted)) == ([], [], [], 1)


def test_request_is_passed_on_after_an_own_question_only(site: Site, sharing: SharingScheduler) -> None:
    job = site.deployed()
    native = NativeId(job.native_id)
    sharing.follow()
    watch(site, 3)
    sharing.seen[native] = replace(sharing.seen[native], name="training-abcdefghi-1")  # slurmctld gave the id away
    cancel_job(site.platform.storage, site.platform.adapters, site.caller, job.id)
    watch(site, 1)
    assert (sharing.cancelled, sharing.observe_calls) == ([], 2)


def test_cancel_without_hub_is_passed_on_at_once(site: Site, sharing: SharingScheduler) -> None:
    job = site.deployed()
    sharing.follow()
    watch(site, 3)
    sharing.hub = None
    watch(site, 1)
    cancel_job(site.platform.storage, site.platform.adapters, site.caller, job.id)
    watch(site, 1)
    assert sharing.cancelled == [NativeId(job.native_id)]


def test_watcher_asks_slowly_while_the_hub_is_away_and_for_recorded_ends_at_once(
    site: Site, sharing: SharingScheduler
) -> None:
    job = site.deployed()
    native = NativeId(job.native_id)
    sharing.run(native)
    sharing.hub = None
    watch(site, 150)  # five minutes
    assert 300 / (1.5 * SLOW_S) <= sharing.observe_calls <= 300 / (0.5 * SLOW_S) + 2
    write_events(site, job, [("learner", site.clock.now())])
    write_final(site, job, Outcome.COMPLETED)
    sharing.end(native, EndCause.SUCCESS, site.clock.now())
    watch(site, 8)
    assert site.job(job.id).state is JobState.COMPLETED
