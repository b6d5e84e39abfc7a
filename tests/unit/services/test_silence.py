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


def test_the_owner_is_told_before_it_is_given_up(site: Site, watcher: Watcher, keeper: SilenceKeeper) -> None:
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


def test_it_goes_on_elsewhere_and_nothing_is_charged(site: Site, watcher: Watcher, keeper: SilenceKeeper) -> None:
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


def test_of_a_gang_only_the_silent_node_is_excluded(site: Site, watcher: Watcher, keeper: SilenceKeeper) -> None:
    job = gang(site, watcher)
    for _ in range(3):
        site.clock.tick(EVERY_S)
        head_of(site, job).beats(0)
        keeper.look()
    assert site.scheduler.cancelled == [NativeId(job.native_id)]
    after = ends(site, watcher, job)
    assert (after.state, after.overrides.exclude) == (JobState.PENDING, ("n3",))


def test_a_node_controller_that_said_that_it_ended_is_not_silent(
    site: Site, watcher: Watcher, keeper: SilenceKeeper
) -> None:
    job = gang(site, watcher)
    head_of(site, job).says("node-1", EventKind.ENDED)
    for _ in range(5):
        site.clock.tick(EVERY_S)
        head_of(site, job).beats(0)
        keeper.look()
    assert (site.scheduler.cancelled, site.job(job.id).pending_reason) == ([], "")


def test_who_is_heard_again_is_left_alone(site: Site, watcher: Watcher, keeper: SilenceKeeper) -> None:
    job = training(site, watcher)
    looks(site, keeper, 2)
    assert site.job(job.id).pending_reason.startswith(TOLD)
    head_of(site, job).beats()
    looks(site, keeper, 1)
    assert (site.job(job.id).pending_reason, site.scheduler.cancelled) == ("", [])


def test_who_was_heard_in_between_begins_anew(site: Site, watcher: Watcher, keeper: SilenceKeeper) -> None:
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
def test_only_what_the_scheduler_calls_running_is_given_up(
    site: Site, watcher: Watcher, keeper: SilenceKeeper, phase: Phase
) -> None:
    job = training(site, watcher)
    site.scheduler.seen[NativeId(job.native_id)] = Observation(phase, phase.upper(), nodes="n3")
    looks(site, keeper, 6)
    site.scheduler.run(NativeId(job.native_id), "n3")
    keeper.look()
    assert (site.scheduler.cancelled, read_given_up(site.attempt(job))) == ([], None)


@pytest.mark.parametrize("given_up_before", [False, True])
def test_another_job_that_has_the_id_now_is_not_ended(
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


def test_a_scheduler_that_does_not_answer_gives_nobody_up(site: Site, watcher: Watcher, keeper: SilenceKeeper) -> None:
    job = training(site, watcher)
    site.scheduler.down = True
    looks(site, keeper, 6)
    site.scheduler.down = False
    site.clock.tick(60.0)
    keeper.look()
    assert (site.scheduler.cancelled, read_given_up(site.attempt(job))) == ([], None)


def test_a_tree_that_cannot_be_written_gives_nobody_up(site: Site, watcher: Watcher) -> None:
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


def test_files_that_cannot_be_read_say_nothing(site: Site, watcher: Watcher, keeper: SilenceKeeper) -> None:
    bad, good = training(site, watcher, "k1"), training(site, watcher, "k2")
    looks(site, keeper, 2)
    told = site.job(bad.id).pending_reason
    Path(site.attempt(bad).control).write_text('{"format": 99}')
    looks(site, keeper, 2)
    assert site.job(bad.id).pending_reason == told
    assert set(site.scheduler.cancelled) == {NativeId(good.native_id)}


def test_when_most_are_silent_on_several_nodes_nobody_is_given_up(
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


def test_jobs_of_one_node_are_given_up_together(site: Site, watcher: Watcher, keeper: SilenceKeeper) -> None:
    jobs = [training(site, watcher, f"k{n}", "n3") for n in range(2)]
    looks(site, keeper, 4)
    assert set(site.scheduler.cancelled) == {NativeId(job.native_id) for job in jobs}


def test_switched_off_nothing_is_looked_at(site: Site, watcher: Watcher) -> None:
    training(site, watcher)
    keeper = SilenceKeeper(replace(site.platform, settings=replace(site.platform.settings, silent_s=0.0)))
    asked = site.scheduler.asked
    looks(site, keeper, 9)
    assert (site.scheduler.cancelled, site.scheduler.asked) == ([], asked)


def test_a_setting_shorter_than_a_few_heartbeats_gives_up_nobody_who_is_well(site: Site, watcher: Watcher) -> None:
    job = training(site, watcher)
    keeper = SilenceKeeper(replace(site.platform, settings=replace(site.platform.settings, silent_s=3.0)))
    for _ in range(59):
        site.clock.tick(1.0)
        keeper.look()
    assert site.scheduler.cancelled == []
    site.clock.tick(1.0)
    keeper.look()
    assert site.scheduler.cancelled == [NativeId(job.native_id)]


def test_jobs_that_are_well_cost_the_scheduler_nothing(site: Site, watcher: Watcher, keeper: SilenceKeeper) -> None:
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
def test_what_a_crash_left_is_finished_by_the_next_daemon(
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


def test_a_request_that_was_lost_is_repeated_also_when_they_wake_up(
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


def test_a_daemon_that_was_stopped_over_it_drops_what_it_had_found(site: Site, watcher: Watcher) -> None:
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


def test_of_two_daemons_one_looks(site: Site, watcher: Watcher, keeper: SilenceKeeper) -> None:
    job = training(site, watcher)
    other = SilenceKeeper(replace(site.platform, owner="other"))
    for _ in range(3):
        site.clock.tick(EVERY_S)
        keeper.look()
        other.look()
    assert site.scheduler.cancelled == [NativeId(job.native_id)]
    other.close()


def test_a_later_run_is_not_the_one_that_was_given_up(site: Site, watcher: Watcher, keeper: SilenceKeeper) -> None:
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


def test_an_allocation_that_cannot_be_ended_is_not_waited_for(
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


def test_controllers_that_wake_up_and_end_are_told_the_same(
    site: Site, watcher: Watcher, keeper: SilenceKeeper
) -> None:
    job = training(site, watcher)
    looks(site, keeper, 3)
    head_of(site, job).ends(Outcome.CANCELLED, stored=False, message="ended from outside")
    after = ends(site, watcher, job)
    assert (after.state, after.overrides.exclude, after.spent.node_failures) == (JobState.PENDING, ("n3",), 1)


def test_a_training_that_is_over_is_stored_and_not_run_again(
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


def test_a_budget_that_is_used_up_ends_the_job(site: Site, watcher: Watcher, keeper: SilenceKeeper) -> None:
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


def test_a_halt_that_nobody_hears_halts_it_all_the_same(site: Site, watcher: Watcher, keeper: SilenceKeeper) -> None:
    job = training(site, watcher)
    halt_job(site.platform, site.caller, job.id)
    looks(site, keeper, 3)
    assert site.scheduler.cancelled == [NativeId(job.native_id)]
    assert ends(site, watcher, job).state is JobState.HALTED


def test_what_the_owner_cancels_is_the_owners(site: Site, watcher: Watcher, keeper: SilenceKeeper) -> None:
    job = training(site, watcher)
    cancel_job(site.platform, site.caller, job.id)
    looks(site, keeper, 6)
    assert (site.job(job.id).wish, read_given_up(site.attempt(job))) == (Wish.CANCEL, None)
    assert ends(site, watcher, job).state is JobState.CANCELLED
