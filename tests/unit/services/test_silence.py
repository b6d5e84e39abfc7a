"""Attempts that hang while their scheduler says that they run: warned about, abandoned, continued once."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ffdl_batch.domain.job.job import Job
from ffdl_batch.domain.job_state import JobState, RequestedAction
from ffdl_batch.domain.outcome.continuation import Spent
from ffdl_batch.domain.outcome.controller_events import AbandonMark, EventKind
from ffdl_batch.domain.outcome.heartbeat_loss import SILENCE, look_every_s
from ffdl_batch.domain.outcome.observation import EndCause, NativeId, Observation, Phase
from ffdl_batch.services.job_control.stop import cancel_job, halt_job
from ffdl_batch.services.job_files.control_cell import read_abandon_mark, read_control
from ffdl_batch.services.monitoring.heartbeat_loss import SilenceKeeper
from ffdl_batch.services.monitoring.watcher import SETTLE_S
from ffdl_batch.services.outcome.attempt_records import STILL_ALIVE_S
from ffdl_batch.services.outcome.upload_pending_reason import UPLOAD_PENDING
from tests.fakes.scheduler import FakeScheduler
from tests.unit.services.chains import end
from tests.unit.services.conftest import MANIFEST, Site, with_file_time

SILENT_S = 900.0
EVERY_S = look_every_s(SILENT_S)


class Killed(Exception):
    """The daemon dies at a step."""


@pytest.fixture
def keeper(site: Site) -> Iterator[SilenceKeeper]:
    with contextlib.closing(site.platform.silence_keeper()) as made:
        yield made


def training(site: Site, key: str = "k1", node: str = "n3", manifest: str = MANIFEST) -> Job:
    """A job that trains on `node`, has saved, and was heard of just now."""
    job = site.accept(key, manifest)
    site.deploy()
    site.head(job).starts(host=node)
    site.head(job).saves()
    site.scheduler.run(NativeId(site.job(job.id).native_id), node)
    site.watch()
    assert site.job(job.id).state is JobState.PROCESSING
    return site.job(job.id)


def gang(site: Site) -> Job:
    """A job whose two node controllers live on two nodes."""
    job = training(site, node="n2")
    head = site.head(job)
    head.says("node-1", EventKind.STARTED, host="n3.cluster")
    head.beats(1)
    site.scheduler.run(NativeId(job.native_id), "n[2-3]")
    site.watch()
    return site.job(job.id)


def looks(site: Site, keeper: SilenceKeeper, times: int, *alive: Job) -> None:
    """So many looks, each after the time between two; the first nodes of the jobs in `alive` give signs of life."""
    for _ in range(times):
        site.clock.tick(EVERY_S)
        for job in alive:
            site.head(job).beats(0)
        keeper.look()


def is_left_alone(site: Site, job: Job) -> bool:
    return not site.scheduler.cancelled and read_abandon_mark(site.attempt(job)) is None


def cancelled(site: Site) -> list[str]:
    return [str(native) for native in site.scheduler.cancelled]


def test_silence_keeper_sets_pending_reason_before_it_cancels_silent_attempt(site: Site, keeper: SilenceKeeper) -> None:
    job = training(site)
    looks(site, keeper, 1)
    assert (site.job(job.id).pending_reason, cancelled(site)) == ("", [])
    looks(site, keeper, 1)
    told = site.job(job.id).pending_reason
    assert told.startswith(f"{SILENCE} on n3 since ") and "will be abandoned at" in told
    assert is_left_alone(site, job)
    before = site.job(job.id).revision
    keeper.look()
    assert site.job(job.id).revision == before, "nothing new is nothing to write"
    looks(site, keeper, 1)
    assert cancelled(site) == [job.native_id]
    assert "is asked to cancel it" in site.job(job.id).pending_reason
    began = site.clock.now() - 3 * EVERY_S
    assert read_abandon_mark(site.attempt(job)) == AbandonMark(0, ("n3",), began, site.clock.now())
    assert site.job(job.id).state is JobState.PROCESSING, "the scheduler has not ended it yet"


def test_silence_keeper_continues_job_on_other_node_without_charging_silent_time(
    site: Site, keeper: SilenceKeeper
) -> None:
    job = training(site)
    looks(site, keeper, 3)
    after = end(site, job, EndCause.CANCELLED)
    assert (after.state, after.pending_reason, after.overrides.exclude) == (JobState.PENDING, "", ("n3",))
    (attempt,) = site.platform.storage.store.attempts(job.id)
    assert (attempt.interruption, attempt.simulated) == ("node_failure", False)
    gpu_seconds = site.clock.now() - 3 * EVERY_S - SETTLE_S - 1 - 1.0
    assert after.spent == Spent(node_failures=1, gpu_seconds=gpu_seconds), "nothing of the silence counts as GPU time"
    entry = site.platform.storage.store.history(job.id)[-1]
    assert (entry.cause, entry.error_code) == ("requeued", "S110") and entry.message.startswith(f"{SILENCE} on n3")
    site.deploy()
    assert (site.job(job.id).state, site.job(job.id).attempt) == (JobState.QUEUED, 2)
    assert site.scheduler.planned[-1].spec.batch.exclude == "n3"
    looks(site, keeper, 3)
    assert len(site.scheduler.submitted) == 2
    assert cancelled(site) == [job.native_id]


def test_silence_keeper_continues_job_of_backend_that_cannot_exclude_nodes(site: Site, keeper: SilenceKeeper) -> None:
    class Alone(FakeScheduler):
        avoid = None  # type: ignore[assignment]

    site.scheduler = Alone()
    site.platform.adapters.use("fake", site.scheduler)
    job = training(site)
    looks(site, keeper, 3)
    assert cancelled(site) == [job.native_id]
    after = end(site, job, EndCause.CANCELLED)
    assert (after.state, after.overrides.exclude) == (JobState.PENDING, ())


def test_silence_keeper_leaves_jobs_on_its_own_machine_alone(site: Site, keeper: SilenceKeeper) -> None:
    site.scheduler.is_this_machine = True
    job = training(site)
    looks(site, keeper, 4)
    assert is_left_alone(site, job)


def test_silence_keeper_excludes_only_silent_node_of_multi_node_job(site: Site, keeper: SilenceKeeper) -> None:
    job = gang(site)
    looks(site, keeper, 3, job)
    assert cancelled(site) == [job.native_id]
    after = end(site, job, EndCause.CANCELLED)
    assert (after.state, after.overrides.exclude) == (JobState.PENDING, ("n3",))


def test_silence_keeper_ignores_node_controller_that_reported_its_end(site: Site, keeper: SilenceKeeper) -> None:
    job = gang(site)
    site.head(job).says("node-1", EventKind.ENDED)
    looks(site, keeper, 5, job)
    assert (cancelled(site), site.job(job.id).pending_reason) == ([], "")


def test_silence_keeper_clears_pending_reason_when_heartbeat_returns(site: Site, keeper: SilenceKeeper) -> None:
    job = training(site)
    looks(site, keeper, 2)
    assert site.job(job.id).pending_reason.startswith(SILENCE)
    site.head(job).beats()
    looks(site, keeper, 1)
    assert (site.job(job.id).pending_reason, cancelled(site)) == ("", [])


def test_silence_keeper_restarts_count_after_new_heartbeat(site: Site, keeper: SilenceKeeper) -> None:
    """A job that was suspended, say: as soon as it runs again its heartbeat is older than everything."""
    job = training(site)
    site.clock.tick(10 * SILENT_S)
    keeper.look()
    head = site.head(job)
    head.at -= 2 * SILENT_S
    head.beats()
    looks(site, keeper, 1)
    assert cancelled(site) == []
    looks(site, keeper, 1)
    assert cancelled(site) == [job.native_id]


@pytest.mark.parametrize("phase", [Phase.SUSPENDED, None])
def test_silence_keeper_cancels_nothing_unless_scheduler_lists_job_as_running(
    site: Site, keeper: SilenceKeeper, phase: Phase | None
) -> None:
    """None: the scheduler does not answer."""
    job = training(site)
    if phase is None:
        site.scheduler.down = True
    else:
        site.scheduler.seen[NativeId(job.native_id)] = Observation(phase, phase.upper(), nodes="n3")
    looks(site, keeper, 6)
    if phase is None:
        site.scheduler.down = False
        site.clock.tick(60.0)
    else:
        site.scheduler.run(NativeId(job.native_id), "n3")
    keeper.look()
    assert is_left_alone(site, job)


@pytest.mark.parametrize("abandoned_before", [False, True])
def test_silence_keeper_does_not_cancel_foreign_job_under_reused_id(
    site: Site, keeper: SilenceKeeper, abandoned_before: bool
) -> None:
    job = training(site)
    native = NativeId(job.native_id)
    looks(site, keeper, 3 if abandoned_before else 1)
    before = cancelled(site)
    site.scheduler.seen[native] = replace(site.scheduler.seen[native], name="wrap", submitted_at=site.clock.now())
    looks(site, keeper, 4)
    assert (cancelled(site), bool(before)) == (before, abandoned_before)
    assert (read_abandon_mark(site.attempt(job)) is not None) == abandoned_before


def test_silence_keeper_cancels_nothing_when_state_directory_is_read_only(site: Site) -> None:
    def fail(_directory: str) -> float:
        raise OSError(errno.EROFS, "Read-only file system")

    job = training(site)
    keeper = with_file_time(site.platform, fail).silence_keeper()
    site.clock.tick(10 * SILENT_S)
    for _ in range(2):
        with pytest.raises(OSError, match="Read-only"):
            keeper.look()
        site.clock.tick(EVERY_S)
    assert (cancelled(site), site.job(job.id).pending_reason) == ([], "")


def test_silence_keeper_draws_no_conclusion_from_unreadable_files(site: Site, keeper: SilenceKeeper) -> None:
    bad, good = training(site, "k1"), training(site, "k2")
    looks(site, keeper, 2)
    told = site.job(bad.id).pending_reason
    Path(site.attempt(bad).control).write_text('{"format": 99}')
    looks(site, keeper, 2)
    assert site.job(bad.id).pending_reason == told
    assert set(cancelled(site)) == {good.native_id}


def test_silence_keeper_suspects_file_system_when_most_nodes_are_silent(site: Site, keeper: SilenceKeeper) -> None:
    jobs = [training(site, f"k{n}", f"n{n}") for n in range(3)]
    looks(site, keeper, 6, jobs[0])
    assert cancelled(site) == []
    assert [("file system" in site.job(job.id).pending_reason) for job in jobs] == [False, True, True]
    looks(site, keeper, 2, *jobs[:2])
    assert cancelled(site) == [jobs[2].native_id]


def keeper_with(site: Site, silent_s: float) -> SilenceKeeper:
    site.set_settings(silent_s=silent_s)
    return site.platform.silence_keeper()


def test_silence_keeper_enforces_minimum_silence_for_short_setting(site: Site) -> None:
    job = training(site)
    keeper = keeper_with(site, 3.0)
    for _ in range(60):
        assert cancelled(site) == []
        site.clock.tick(1.0)
        keeper.look()
    assert cancelled(site) == [job.native_id]


def test_silence_keeper_asks_scheduler_nothing_for_healthy_jobs_or_when_disabled(
    site: Site, keeper: SilenceKeeper
) -> None:
    job = training(site)
    asked = site.scheduler.asked
    for _ in range(9):
        site.clock.tick(EVERY_S)
        site.head(job).beats()
        assert keeper.look() == 0
    looks(site, keeper_with(site, 0.0), 9)
    assert (cancelled(site), site.scheduler.asked) == ([], asked)


@pytest.mark.parametrize(
    ("step", "asked", "goes_on"), [("deciding", 0, False), ("marked", 0, True), ("ended", 1, True)]
)
def test_silence_keeper_completes_only_marked_cancel_after_daemon_crash(
    site: Site, step: str, asked: int, goes_on: bool
) -> None:
    def die(reached: str) -> None:
        if reached == step:
            raise Killed

    job = training(site)
    with (
        contextlib.closing(site.platform.silence_keeper(die)) as first,
        pytest.raises(Killed),
    ):
        looks(site, first, 3)
    assert len(cancelled(site)) == asked
    assert (read_abandon_mark(site.attempt(job)) is not None) is goes_on
    if not goes_on:
        site.head(job).beats()
    looks(site, site.platform.silence_keeper(), 1)
    assert len(cancelled(site)) == (asked + 1 if goes_on else 0)


def test_silence_keeper_repeats_failed_cancel_after_heartbeat_returns(site: Site, keeper: SilenceKeeper) -> None:
    job = training(site)
    looks(site, keeper, 2)
    site.scheduler.refuse_cancel = "not now"
    looks(site, keeper, 1)
    assert cancelled(site) == []
    site.scheduler.refuse_cancel = ""
    site.head(job).beats()
    looks(site, keeper, 1)
    assert cancelled(site) == [job.native_id]


def test_silence_keeper_drops_stale_decision_after_lost_lease_or_new_heartbeat(site: Site) -> None:
    """Whoever wakes up does not give up what was heard of meanwhile, nor what another daemon looks after."""
    job = training(site)
    other = replace(site.platform, owner="other").silence_keeper()

    def stop(reached: str) -> None:
        if reached == "deciding":
            site.clock.tick(site.platform.settings.lease_s + 1)
            other.look()

    looks(site, site.platform.silence_keeper(stop), 3)
    assert is_left_alone(site, job)

    def beat(reached: str) -> None:
        if reached == "deciding":
            site.head(job).beats()

    other.close()
    site.clock.tick(SILENT_S)
    looks(site, site.platform.silence_keeper(beat), 2)
    assert is_left_alone(site, job)


def test_silence_keeper_acts_in_only_one_of_two_daemons(site: Site, keeper: SilenceKeeper) -> None:
    job = training(site)
    with contextlib.closing(replace(site.platform, owner="other").silence_keeper()) as other:
        for _ in range(3):
            looks(site, keeper, 1)
            other.look()
    assert cancelled(site) == [job.native_id]


def test_silence_keeper_does_not_apply_abandonment_to_later_run(site: Site, keeper: SilenceKeeper) -> None:
    """Slurm sets the node down itself and restarts the attempt before the daemon cancels it."""
    job = training(site)
    native = NativeId(job.native_id)
    Path(site.attempt(job).run_claim(1)).mkdir(exist_ok=True)
    looks(site, keeper, 3)
    asked = cancelled(site)
    site.scheduler.wait(native, restarts=1)
    keeper.look()
    site.watch()
    assert (site.job(job.id).state, cancelled(site)) == (JobState.QUEUED, asked)
    assert site.scheduler.avoided == [(native, ("n3",))]
    Path(site.attempt(job).run_claim(2)).mkdir()
    assert read_control(site.attempt(job)).abandon_mark is not None
    assert read_abandon_mark(site.attempt(job)) is None
    site.head(job).starts(restart=1, host="n4")
    site.scheduler.run(native, "n4", restarts=1)
    site.watch()
    keeper.look()
    assert (site.job(job.id).state, cancelled(site)) == (JobState.PROCESSING, asked)
    assert end(site, job, EndCause.CANCELLED).state is JobState.CANCELLED, "somebody else cancelled this run"


def test_silence_keeper_continues_job_when_allocation_stays_completing(site: Site, keeper: SilenceKeeper) -> None:
    """A process that not even KILL ends: Slurm keeps the job completing, maybe for days."""
    job = training(site)
    looks(site, keeper, 3)
    site.scheduler.seen[NativeId(job.native_id)] = Observation(Phase.COMPLETING, "COMPLETING", nodes="n3")
    site.watch()
    assert site.job(job.id).state is JobState.PROCESSING
    site.clock.tick(STILL_ALIVE_S - 1)
    keeper.look()
    site.watch(full=False)
    assert site.job(job.id).state is JobState.PROCESSING
    looks(site, keeper, 1)
    site.watch(full=False)
    assert (site.job(job.id).state, site.job(job.id).overrides.exclude) == (JobState.PENDING, ("n3",))
    site.deploy()
    site.watch()
    assert (site.job(job.id).state, len(site.scheduler.submitted)) == (JobState.QUEUED, 2)


def test_silence_keeper_leaves_upload_pending_instead_of_rerunning_finished_job(
    site: Site, keeper: SilenceKeeper
) -> None:
    job = training(site)
    site.head(job).is_killed_storing()
    site.watch(full=False)
    assert site.job(job.id).state is JobState.STORING
    looks(site, keeper, 3)
    after = end(site, job, EndCause.CANCELLED)
    assert (after.state, after.pending_reason) == (JobState.STORING, UPLOAD_PENDING)
    looks(site, keeper, 4)
    assert (site.job(job.id).pending_reason, len(site.scheduler.cancelled)) == (UPLOAD_PENDING, 1)


def test_silence_keeper_completes_halt_of_silent_attempt(site: Site, keeper: SilenceKeeper) -> None:
    job = training(site)
    halt_job(site.platform.storage, site.platform.adapters, site.caller, job.id)
    looks(site, keeper, 3)
    assert cancelled(site) == [job.native_id]
    assert end(site, job, EndCause.CANCELLED).state is JobState.HALTED


def test_silence_keeper_leaves_cancel_requested_by_owner_alone(site: Site, keeper: SilenceKeeper) -> None:
    job = training(site)
    cancel_job(site.platform.storage, site.platform.adapters, site.caller, job.id)
    looks(site, keeper, 6)
    assert (site.job(job.id).requested_action, read_abandon_mark(site.attempt(job))) == (RequestedAction.CANCEL, None)
    assert end(site, job, EndCause.CANCELLED).state is JobState.CANCELLED
