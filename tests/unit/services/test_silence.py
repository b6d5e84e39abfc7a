"""Attempts that hang while their scheduler says that they run: told, given up, gone on with once."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ffdl_batch.domain.continuation import Spent
from ffdl_batch.domain.events import EventKind, Outcome
from ffdl_batch.domain.job import Job
from ffdl_batch.domain.job_state import JobState, Wish
from ffdl_batch.domain.observation import EndCause, NativeId, Observation, Phase
from ffdl_batch.domain.silence import TOLD, GivenUp, look_every_s
from ffdl_batch.services.cancel import cancel_job
from ffdl_batch.services.control import read_control, read_given_up
from ffdl_batch.services.deploy import Deployer
from ffdl_batch.services.evidence import STILL_ALIVE_S
from ffdl_batch.services.halt import halt_job
from ffdl_batch.services.owed import OWED
from ffdl_batch.services.silence import SilenceKeeper
from ffdl_batch.services.watch import SETTLE_S, Watcher
from tests.fakes.head import FakeHead
from tests.unit.services.conftest import Site

SILENT_S = 900.0
EVERY_S = look_every_s(SILENT_S)


class Killed(Exception):
    """The daemon dies at a step."""


@pytest.fixture
def keeper(site: Site) -> Iterator[SilenceKeeper]:
    made = SilenceKeeper(site.platform)
    yield made
    made.close()


def head_of(site: Site, job: Job) -> FakeHead:
    return FakeHead(site.platform.root, site.job(job.id), site.clock.now())


def training(site: Site, watcher: Watcher, key: str = "k1", node: str = "n3") -> Job:
    """A job that trains on `node`, has saved, and was heard of just now."""
    job = site.deployed(key)
    head_of(site, job).starts(host=node)
    head_of(site, job).saves()
    site.scheduler.run(NativeId(job.native_id), node)
    watcher.step(full=True)
    assert site.job(job.id).state is JobState.PROCESSING
    return site.job(job.id)


def gang(site: Site, watcher: Watcher) -> Job:
    """A job whose two node controllers live on two nodes."""
    job = training(site, watcher, node="n2")
    head = head_of(site, job)
    head.says("node-1", EventKind.STARTED, host="n3.cluster")
    head.beats(1)
    site.scheduler.run(NativeId(job.native_id), "n[2-3]")
    watcher.step(full=True)
    return site.job(job.id)


def looks(site: Site, keeper: SilenceKeeper, times: int) -> None:
    """So many looks, each after the time between two."""
    for _ in range(times):
        site.clock.tick(EVERY_S)
        keeper.look()


def ends(site: Site, watcher: Watcher, job: Job, cause: EndCause = EndCause.CANCELLED) -> Job:
    """The scheduler has ended the attempt, and nobody has a last word."""
    site.scheduler.end(NativeId(job.native_id), cause, site.clock.now())
    watcher.step(full=True)
    site.clock.tick(SETTLE_S + 1)
    watcher.step(full=True)
    return site.job(job.id)


def test_silence_keeper_sets_pending_reason_before_it_cancels_silent_attempt(
    site: Site, watcher: Watcher, keeper: SilenceKeeper
) -> None:
    job = training(site, watcher)
    looks(site, keeper, 1)
    assert site.job(job.id).pending_reason == ""
    assert site.scheduler.cancelled == []
    looks(site, keeper, 1)
    told = site.job(job.id).pending_reason
    assert told.startswith(f"{TOLD} on n3 since ") and "is given up at" in told
    assert (site.scheduler.cancelled, read_given_up(site.attempt(job))) == ([], None)
    before = site.job(job.id).revision
    keeper.look()
    assert site.job(job.id).revision == before, "nothing new is nothing to write"
    looks(site, keeper, 1)
    assert site.scheduler.cancelled == [NativeId(job.native_id)]
    assert "asked to end it" in site.job(job.id).pending_reason
    began = site.clock.now() - 3 * EVERY_S
    assert read_given_up(site.attempt(job)) == GivenUp(0, ("n3",), began, site.clock.now())
    assert site.job(job.id).state is JobState.PROCESSING, "the scheduler has not ended it yet"


def test_silence_keeper_continues_job_on_other_node_without_charging_silent_time(
    site: Site, watcher: Watcher, keeper: SilenceKeeper
) -> None:
    job = training(site, watcher)
    looks(site, keeper, 3)
    after = ends(site, watcher, job)
    assert (after.state, after.pending_reason, after.overrides.exclude) == (JobState.PENDING, "", ("n3",))
    (attempt,) = site.platform.store.attempts(job.id)
    assert (attempt.interruption, attempt.played) == ("node_failure", False)
    gpu_seconds = site.clock.now() - 3 * EVERY_S - SETTLE_S - 1 - 1.0
    assert after.spent == Spent(node_failures=1, gpu_seconds=gpu_seconds), "nothing of the silence counts as GPU time"
    entry = site.platform.store.history(job.id)[-1]
    assert (entry.cause, entry.error_code) == ("requeued", "S110") and entry.message.startswith(f"{TOLD} on n3")
    Deployer(site.platform).step()
    assert (site.job(job.id).state, site.job(job.id).attempt) == (JobState.QUEUED, 2)
    assert site.scheduler.planned[-1].spec.batch.exclude == "n3"
    looks(site, keeper, 3)
    assert len(site.scheduler.submitted) == 2
    assert site.scheduler.cancelled == [NativeId(job.native_id)]


def test_silence_keeper_excludes_only_silent_node_of_multi_node_job(
    site: Site, watcher: Watcher, keeper: SilenceKeeper
) -> None:
    job = gang(site, watcher)
    for _ in range(3):
        site.clock.tick(EVERY_S)
        head_of(site, job).beats(0)
        keeper.look()
    assert site.scheduler.cancelled == [NativeId(job.native_id)]
    after = ends(site, watcher, job)
    assert (after.state, after.overrides.exclude) == (JobState.PENDING, ("n3",))


def test_silence_keeper_ignores_node_controller_that_reported_its_end(
    site: Site, watcher: Watcher, keeper: SilenceKeeper
) -> None:
    job = gang(site, watcher)
    head_of(site, job).says("node-1", EventKind.ENDED)
    for _ in range(5):
        site.clock.tick(EVERY_S)
        head_of(site, job).beats(0)
        keeper.look()
    assert (site.scheduler.cancelled, site.job(job.id).pending_reason) == ([], "")


def test_silence_keeper_clears_pending_reason_when_heartbeat_returns(
    site: Site, watcher: Watcher, keeper: SilenceKeeper
) -> None:
    job = training(site, watcher)
    looks(site, keeper, 2)
    assert site.job(job.id).pending_reason.startswith(TOLD)
    head_of(site, job).beats()
    looks(site, keeper, 1)
    assert (site.job(job.id).pending_reason, site.scheduler.cancelled) == ("", [])


def test_silence_keeper_restarts_count_after_new_heartbeat(site: Site, watcher: Watcher, keeper: SilenceKeeper) -> None:
    """A job that was suspended, say: as soon as it runs again its heartbeat is older than everything."""
    job = training(site, watcher)
    site.clock.tick(10 * SILENT_S)
    keeper.look()
    head = head_of(site, job)
    head.at -= 2 * SILENT_S
    head.beats()
    looks(site, keeper, 1)
    assert site.scheduler.cancelled == []
    looks(site, keeper, 1)
    assert site.scheduler.cancelled == [NativeId(job.native_id)]


@pytest.mark.parametrize("phase", [Phase.SUSPENDED, Phase.PENDING, Phase.COMPLETING, Phase.UNKNOWN])
def test_silence_keeper_cancels_only_jobs_that_scheduler_lists_as_running(
    site: Site, watcher: Watcher, keeper: SilenceKeeper, phase: Phase
) -> None:
    job = training(site, watcher)
    site.scheduler.seen[NativeId(job.native_id)] = Observation(phase, phase.upper(), nodes="n3")
    looks(site, keeper, 6)
    site.scheduler.run(NativeId(job.native_id), "n3")
    keeper.look()
    assert (site.scheduler.cancelled, read_given_up(site.attempt(job))) == ([], None)


@pytest.mark.parametrize("given_up_before", [False, True])
def test_silence_keeper_does_not_cancel_foreign_job_under_reused_id(
    site: Site, watcher: Watcher, keeper: SilenceKeeper, given_up_before: bool
) -> None:
    job = training(site, watcher)
    native = NativeId(job.native_id)
    looks(site, keeper, 3 if given_up_before else 1)
    before = list(site.scheduler.cancelled)
    site.scheduler.seen[native] = replace(site.scheduler.seen[native], name="wrap", submitted_at=site.clock.now())
    looks(site, keeper, 4)
    assert (site.scheduler.cancelled, bool(before)) == (before, given_up_before)
    assert (read_given_up(site.attempt(job)) is not None) == given_up_before


def test_silence_keeper_cancels_nothing_while_scheduler_does_not_answer(
    site: Site, watcher: Watcher, keeper: SilenceKeeper
) -> None:
    job = training(site, watcher)
    site.scheduler.down = True
    looks(site, keeper, 6)
    site.scheduler.down = False
    site.clock.tick(60.0)
    keeper.look()
    assert (site.scheduler.cancelled, read_given_up(site.attempt(job))) == ([], None)


def test_silence_keeper_cancels_nothing_when_state_directory_is_read_only(site: Site, watcher: Watcher) -> None:
    def fail(_directory: str) -> float:
        raise OSError(errno.EROFS, "Read-only file system")

    job = training(site, watcher)
    keeper = SilenceKeeper(replace(site.platform, file_time=fail))
    site.clock.tick(10 * SILENT_S)
    for _ in range(2):
        with pytest.raises(OSError, match="Read-only"):
            keeper.look()
        site.clock.tick(EVERY_S)
    assert (site.scheduler.cancelled, site.job(job.id).pending_reason) == ([], "")


def test_silence_keeper_draws_no_conclusion_from_unreadable_files(
    site: Site, watcher: Watcher, keeper: SilenceKeeper
) -> None:
    bad, good = training(site, watcher, "k1"), training(site, watcher, "k2")
    looks(site, keeper, 2)
    told = site.job(bad.id).pending_reason
    Path(site.attempt(bad).control).write_text('{"format": 99}')
    looks(site, keeper, 2)
    assert site.job(bad.id).pending_reason == told
    assert set(site.scheduler.cancelled) == {NativeId(good.native_id)}


def test_silence_keeper_suspects_file_system_when_most_nodes_are_silent(
    site: Site, watcher: Watcher, keeper: SilenceKeeper
) -> None:
    jobs = [training(site, watcher, f"k{n}", f"n{n}") for n in range(3)]
    for _ in range(6):
        site.clock.tick(EVERY_S)
        head_of(site, jobs[0]).beats()
        keeper.look()
    assert site.scheduler.cancelled == []
    assert [("file system" in site.job(job.id).pending_reason) for job in jobs] == [False, True, True]
    for _ in range(2):
        site.clock.tick(EVERY_S)
        for job in jobs[:2]:
            head_of(site, job).beats()
        keeper.look()
    assert site.scheduler.cancelled == [NativeId(jobs[2].native_id)]


def test_silence_keeper_cancels_all_jobs_of_silent_node(site: Site, watcher: Watcher, keeper: SilenceKeeper) -> None:
    jobs = [training(site, watcher, f"k{n}", "n3") for n in range(2)]
    looks(site, keeper, 4)
    assert set(site.scheduler.cancelled) == {NativeId(job.native_id) for job in jobs}


def test_silence_keeper_does_nothing_when_disabled(site: Site, watcher: Watcher) -> None:
    training(site, watcher)
    keeper = SilenceKeeper(replace(site.platform, settings=replace(site.platform.settings, silent_s=0.0)))
    asked = site.scheduler.asked
    looks(site, keeper, 9)
    assert (site.scheduler.cancelled, site.scheduler.asked) == ([], asked)


def test_silence_keeper_enforces_minimum_silence_for_short_setting(site: Site, watcher: Watcher) -> None:
    job = training(site, watcher)
    keeper = SilenceKeeper(replace(site.platform, settings=replace(site.platform.settings, silent_s=3.0)))
    for _ in range(59):
        site.clock.tick(1.0)
        keeper.look()
    assert site.scheduler.cancelled == []
    site.clock.tick(1.0)
    keeper.look()
    assert site.scheduler.cancelled == [NativeId(job.native_id)]


def test_silence_keeper_asks_scheduler_nothing_for_healthy_jobs(
    site: Site, watcher: Watcher, keeper: SilenceKeeper
) -> None:
    job = training(site, watcher)
    asked = site.scheduler.asked
    for _ in range(9):
        site.clock.tick(EVERY_S)
        head_of(site, job).beats()
        assert keeper.look() == 0
    assert site.scheduler.asked == asked


# ----------------------------------------------------------------------------------------- crashes and races


@pytest.mark.parametrize(
    ("step", "asked", "goes_on"), [("deciding", 0, False), ("marked", 0, True), ("ended", 1, True)]
)
def test_silence_keeper_completes_only_marked_cancel_after_daemon_crash(
    site: Site, watcher: Watcher, step: str, asked: int, goes_on: bool
) -> None:
    def die(reached: str) -> None:
        if reached == step:
            raise Killed

    job = training(site, watcher)
    first = SilenceKeeper(site.platform, die)
    with pytest.raises(Killed):
        looks(site, first, 3)
    first.close()
    assert len(site.scheduler.cancelled) == asked
    assert (read_given_up(site.attempt(job)) is not None) is goes_on
    if not goes_on:
        head_of(site, job).beats()
    looks(site, SilenceKeeper(site.platform), 1)
    assert len(site.scheduler.cancelled) == (asked + 1 if goes_on else 0)


def test_silence_keeper_repeats_failed_cancel_after_heartbeat_returns(
    site: Site, watcher: Watcher, keeper: SilenceKeeper
) -> None:
    job = training(site, watcher)
    looks(site, keeper, 2)
    site.scheduler.refuse_cancel = "not now"
    looks(site, keeper, 1)
    assert site.scheduler.cancelled == []
    site.scheduler.refuse_cancel = ""
    head_of(site, job).beats()
    looks(site, keeper, 1)
    assert site.scheduler.cancelled == [NativeId(job.native_id)]


def test_silence_keeper_drops_stale_decision_after_lost_lease_or_new_heartbeat(site: Site, watcher: Watcher) -> None:
    """Whoever wakes up does not give up what was heard of meanwhile, nor what another daemon looks after."""
    job = training(site, watcher)
    other = SilenceKeeper(replace(site.platform, owner="other"))

    def stop(reached: str) -> None:
        if reached == "deciding":
            site.clock.tick(site.platform.settings.lease_s + 1)
            other.look()

    keeper = SilenceKeeper(site.platform, stop)
    looks(site, keeper, 3)
    assert (site.scheduler.cancelled, read_given_up(site.attempt(job))) == ([], None)

    def beat(reached: str) -> None:
        if reached == "deciding":
            head_of(site, job).beats()

    other.close()
    site.clock.tick(SILENT_S)
    keeper = SilenceKeeper(site.platform, beat)
    looks(site, keeper, 2)
    assert (site.scheduler.cancelled, read_given_up(site.attempt(job))) == ([], None)


def test_silence_keeper_acts_in_only_one_of_two_daemons(site: Site, watcher: Watcher, keeper: SilenceKeeper) -> None:
    job = training(site, watcher)
    other = SilenceKeeper(replace(site.platform, owner="other"))
    for _ in range(3):
        site.clock.tick(EVERY_S)
        keeper.look()
        other.look()
    assert site.scheduler.cancelled == [NativeId(job.native_id)]
    other.close()


def test_silence_keeper_does_not_apply_abandonment_to_later_run(
    site: Site, watcher: Watcher, keeper: SilenceKeeper
) -> None:
    """Slurm gives the node up itself, and starts the attempt anew before it hears that we gave it up."""
    job = training(site, watcher)
    Path(site.attempt(job).run_claim(1)).mkdir(exist_ok=True)
    looks(site, keeper, 3)
    asked = len(site.scheduler.cancelled)
    site.scheduler.wait(NativeId(job.native_id), restarts=1)
    keeper.look()
    watcher.step(full=True)
    assert (site.job(job.id).state, len(site.scheduler.cancelled)) == (JobState.QUEUED, asked)
    assert site.scheduler.avoided == [(NativeId(job.native_id), ("n3",))]
    Path(site.attempt(job).run_claim(2)).mkdir()
    assert read_control(site.attempt(job)).given_up is not None
    assert read_given_up(site.attempt(job)) is None
    head_of(site, job).starts(restart=1, host="n4")
    site.scheduler.run(NativeId(job.native_id), "n4", restarts=1)
    watcher.step(full=True)
    keeper.look()
    assert (site.job(job.id).state, len(site.scheduler.cancelled)) == (JobState.PROCESSING, asked)
    ended = ends(site, watcher, job)
    assert ended.state is JobState.CANCELLED, "somebody else cancelled this run"


# ------------------------------------------------------------------------------------------------ ends


def test_silence_keeper_continues_job_when_allocation_stays_completing(
    site: Site, watcher: Watcher, keeper: SilenceKeeper
) -> None:
    """A process that not even KILL ends: Slurm keeps the job completing, maybe for days."""
    job = training(site, watcher)
    looks(site, keeper, 3)
    site.scheduler.seen[NativeId(job.native_id)] = Observation(Phase.COMPLETING, "COMPLETING", nodes="n3")
    watcher.step(full=True)
    assert site.job(job.id).state is JobState.PROCESSING
    site.clock.tick(STILL_ALIVE_S - 1)
    keeper.look()
    watcher.step(full=False)
    assert site.job(job.id).state is JobState.PROCESSING
    looks(site, keeper, 1)
    watcher.step(full=False)
    assert (site.job(job.id).state, site.job(job.id).overrides.exclude) == (JobState.PENDING, ("n3",))
    Deployer(site.platform).step()
    watcher.step(full=True)
    assert (site.job(job.id).state, len(site.scheduler.submitted)) == (JobState.QUEUED, 2)


def test_silence_keeper_continues_job_when_controllers_end_after_cancel(
    site: Site, watcher: Watcher, keeper: SilenceKeeper
) -> None:
    job = training(site, watcher)
    looks(site, keeper, 3)
    head_of(site, job).ends(Outcome.CANCELLED, stored=False, message="ended from outside")
    after = ends(site, watcher, job)
    assert (after.state, after.overrides.exclude, after.spent.node_failures) == (JobState.PENDING, ("n3",), 1)


def test_silence_keeper_leaves_upload_pending_instead_of_rerunning_finished_job(
    site: Site, watcher: Watcher, keeper: SilenceKeeper
) -> None:
    job = training(site, watcher)
    head_of(site, job).is_killed_storing()
    watcher.step(full=False)
    assert site.job(job.id).state is JobState.STORING
    looks(site, keeper, 3)
    after = ends(site, watcher, job)
    assert (after.state, after.pending_reason) == (JobState.STORING, OWED)
    looks(site, keeper, 4)
    assert (site.job(job.id).pending_reason, len(site.scheduler.cancelled)) == (OWED, 1)


def test_silence_keeper_fails_job_when_node_failure_budget_is_used_up(
    site: Site, watcher: Watcher, keeper: SilenceKeeper
) -> None:
    manifest = "batch: {retry: {node_failures: 0}}\n"
    from tests.unit.services.conftest import MANIFEST

    job = site.accept("k1", MANIFEST + manifest)
    Deployer(site.platform).step()
    head_of(site, job).starts(host="n3")
    site.scheduler.run(NativeId(site.job(job.id).native_id), "n3")
    watcher.step(full=True)
    looks(site, keeper, 3)
    after = ends(site, watcher, site.job(job.id))
    assert (after.state, after.error_code) == (JobState.FAILED, "S110")
    assert "nothing was heard" in after.message and "node_failures allows 0" in after.message


def test_silence_keeper_completes_halt_of_silent_attempt(site: Site, watcher: Watcher, keeper: SilenceKeeper) -> None:
    job = training(site, watcher)
    halt_job(site.platform, site.caller, job.id)
    looks(site, keeper, 3)
    assert site.scheduler.cancelled == [NativeId(job.native_id)]
    assert ends(site, watcher, job).state is JobState.HALTED


def test_silence_keeper_leaves_cancel_requested_by_owner_alone(
    site: Site, watcher: Watcher, keeper: SilenceKeeper
) -> None:
    job = training(site, watcher)
    cancel_job(site.platform, site.caller, job.id)
    looks(site, keeper, 6)
    assert (site.job(job.id).wish, read_given_up(site.attempt(job))) == (Wish.CANCEL, None)
    assert ends(site, watcher, job).state is JobState.CANCELLED
