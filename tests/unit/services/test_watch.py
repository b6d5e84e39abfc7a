"""Watching: states come from files at once and from one question for all jobs."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from ffdl_batch.cli.commands.show import print_job
from ffdl_batch.cli.render.job_list import place_or_reason
from ffdl_batch.domain.job.job import Job
from ffdl_batch.domain.job_state import JobState
from ffdl_batch.domain.outcome.controller_events import Event, EventKind, Outcome, encode_event
from ffdl_batch.domain.outcome.observation import EndCause, NativeId, Observation, Phase
from ffdl_batch.services.job_control.stop import cancel_job
from ffdl_batch.services.monitoring.watch_state import Memory
from ffdl_batch.services.monitoring.watcher import FORGOTTEN_AFTER, LONG_AGO_S, LOOK_SOON_S, SETTLE_S
from ffdl_batch.services.outcome.attempt_records import STILL_ALIVE_S
from tests.unit.services.chains import end
from tests.unit.services.conftest import Site, write_events, write_final


def test_watcher_reads_events_after_doorbell_without_scheduler_query(site: Site) -> None:
    job = site.deployed()
    write_events(site, job, [("load-model", site.clock.now() + 1), ("learner", site.clock.now() + 2)])
    assert site.watch(full=False) == 1
    assert site.job(job.id).state is JobState.PROCESSING
    assert site.scheduler.observe_calls == 0
    assert list(Path(site.platform.storage.root.doorbell).iterdir()) == []
    assert site.watch(full=False) == 0


def test_watcher_records_ordered_time_for_every_job_state(site: Site) -> None:
    job = site.deployed()
    start = site.clock.now()
    write_events(site, job, [("load-model", start + 1), ("learner", start + 2), ("store-results", start + 3)])
    site.clock.tick(4)
    write_final(site, job)
    site.end(job, EndCause.SUCCESS)
    view = site.view(job)
    assert view.state == "COMPLETED"
    passed = ["PENDING", "DEPLOYING", "QUEUED", "DOWNLOADING", "PROCESSING", "STORING", "COMPLETED"]
    assert list(view.timestamps) == passed
    assert sorted(view.timestamps.values()) == list(view.timestamps.values())
    assert view.ended_at is not None


def test_watcher_fails_job_with_error_exit_status_and_log_of_learner(site: Site) -> None:
    job = site.deployed()
    record = {"exit_code": 3, "error_code": "C201", "message": "learner 1 ended with 3", "log_tail": ("boom",)}
    write_final(site, job, Outcome.FAILED, **record)
    site.end(job, EndCause.FAILURE)
    view = site.view(job)
    assert (view.state, view.error_code, view.exit_code, view.log_tail) == ("FAILED", "C201", 3, ("boom",))
    assert view.cure


def test_watcher_waits_for_final_record_after_scheduler_end(site: Site) -> None:
    job = site.deployed()
    write_events(site, job, [("learner", site.clock.now())])
    assert site.end(job, EndCause.SUCCESS).state is JobState.PROCESSING
    site.clock.tick(SETTLE_S / 2)
    write_final(site, job)
    site.watch()
    assert site.job(job.id).state is JobState.COMPLETED


def test_watcher_keeps_job_missing_from_listing_until_scheduler_forgets_it(site: Site) -> None:
    job = site.deployed()
    site.watch()
    site.scheduler.seen.clear()
    watch(site, 10, pause_s=10)
    assert site.job(job.id).state is JobState.QUEUED
    site.scheduler.forgotten.add(NativeId(job.native_id))
    site.watch()
    assert (site.job(job.id).state, site.job(job.id).error_code) == (JobState.FAILED, "S106")


def watch(site: Site, times: int, pause_s: float = 0.0) -> None:
    for _ in range(times):
        site.clock.tick(pause_s)
        site.watch()


@pytest.mark.parametrize("given_away", [False, True], ids=["lost", "its id is another job's"])
def test_watcher_requeues_job_lost_by_scheduler_for_new_submission(site: Site, given_away: bool) -> None:
    job = site.deployed()
    site.watch()
    native = NativeId(job.native_id)
    site.scheduler.seen.clear()
    if given_away:
        site.scheduler.seen[native] = Observation(Phase.RUNNING, "RUNNING", name="training-000000000-1")
    else:
        site.scheduler.forgotten.add(native)
        site.scheduler.lost.add(native)
    watch(site, 10, pause_s=10)
    after = site.job(job.id)
    assert (after.state, after.spent.node_failures, after.error_code) == (JobState.PENDING, 1, "000")
    entry = site.platform.storage.store.history(job.id)[-1]
    assert (entry.error_code, entry.message.partition(",")[0]) == ("S112", "the scheduler has lost the job")
    site.deploy()
    assert [token for _, token in site.scheduler.submitted] == [f"{job.id}-1", f"{job.id}-2"]
    assert native not in site.scheduler.cancelled


def test_watcher_catches_up_ends_no_job_and_opens_breaker_when_scheduler_is_unreachable(site: Site) -> None:
    job = site.deployed()
    site.scheduler.down = True
    site.watch()
    assert site.watcher.is_caught_up
    watch(site, 19)
    assert site.job(job.id).state is JobState.QUEUED
    assert not site.platform.adapters.may_ask("fake")
    write_events(site, job, [("learner", site.clock.now() + 1)])
    site.watch(full=False)
    assert site.job(job.id).state is JobState.PROCESSING


def test_watcher_repeats_cancel_request_only_after_interval(site: Site) -> None:
    job = site.deployed()
    cancel_job(site.platform.storage, site.platform.adapters, site.caller, job.id)
    watch(site, 5)
    assert len(site.scheduler.cancelled) == 1
    watch(site, 1, pause_s=60)
    assert len(site.scheduler.cancelled) == 2
    assert site.end(job, EndCause.CANCELLED, started=None).state is JobState.CANCELLED


def test_watcher_clears_pending_reason_when_job_starts(site: Site) -> None:
    job = site.deployed()
    site.watch()
    assert site.job(job.id).pending_reason == "Resources"
    site.scheduler.run(NativeId(job.native_id))
    site.watch()
    assert (site.job(job.id).pending_reason, site.job(job.id).nodes) == ("", "n1")


def test_watcher_shows_missing_image_before_reason_of_head_controller(site: Site) -> None:
    """Its controller loads data, and its learner's image cannot be had: that is nothing that the head knows of."""
    job = site.deployed()
    native, why = NativeId(job.native_id), "the image x cannot be had; correct its name"
    tell_from_head(site, job, "waits for node 1")
    site.scheduler.seen[native] = Observation(Phase.RUNNING, "Running", nodes="n1", lacks=why)
    site.watch()
    assert (site.job(job.id).pending_reason, site.job(job.id).state) == (why, JobState.QUEUED)
    site.scheduler.seen[native] = Observation(Phase.RUNNING, "Running", nodes="n1")
    site.watch()
    assert site.job(job.id).pending_reason == "waits for node 1"


def tell_from_head(site: Site, job: Job, *messages: str) -> None:
    """What the head would write of what it waits for, and the bell that it would ring."""
    kinds = [Event(1, site.clock.now(), "head", EventKind.CLAIMED, {"native_id": job.native_id, "restart": 0})]
    kinds += [Event(n, site.clock.now(), "head", EventKind.WAITING, {"message": m}) for n, m in enumerate(messages, 2)]
    Path(site.attempt(job).events, "head.jsonl").write_text("".join(map(encode_event, kinds)))
    Path(site.platform.storage.root.doorbell, job.id).touch()


def test_watcher_shows_and_clears_pending_reason_of_head_controller(site: Site) -> None:
    job = site.deployed()
    site.watch()
    why = "waiting for the controller of node 0 of attempt 1 (pid 7 on n2); it has not said that it ended"
    tell_from_head(site, job, why)
    site.watch(full=False)
    assert (site.job(job.id).state, site.job(job.id).pending_reason) == (JobState.QUEUED, why)
    site.scheduler.seen[NativeId(job.native_id)] = Observation(Phase.RUNNING, "RUNNING", nodes="n1")
    for _ in range(3):
        site.watch()
        assert (site.job(job.id).pending_reason, site.job(job.id).nodes) == (why, "n1")
    tell_from_head(site, job, why, "")
    site.watch(full=False)
    assert site.job(job.id).pending_reason == ""
    tell_from_head(site, job, why)
    site.watch(full=False)
    after = end(site, job, EndCause.CANCELLED)
    assert (after.state.is_terminal, after.pending_reason) == (True, "")


def test_watcher_writes_nothing_when_nothing_changed(site: Site) -> None:
    job = site.deployed()
    site.watch()
    revision = site.job(job.id).revision
    for _ in range(5):
        assert site.watch() == 0
    assert site.job(job.id).revision == revision


def test_second_watcher_catches_up_at_once_and_does_nothing_until_first_closes(site: Site) -> None:
    job = site.deployed()
    site.watch()
    other = site.platform.watcher()
    before = other.is_caught_up
    write_events(site, job, [("learner", site.clock.now())])
    assert (other.step(full=True), before, other.is_caught_up) == (0, False, True)
    site.watcher.close()
    assert other.step(full=True) >= 1


def test_watcher_cancels_queued_job_without_waiting_for_final_record(site: Site) -> None:
    """Slurm reports such a job as started and ended at the moment of the cancellation, on no node."""
    job = site.deployed()
    cancel_job(site.platform.storage, site.platform.adapters, site.caller, job.id)
    site.watch()
    assert site.end(job, EndCause.CANCELLED, started=site.clock.now()).state is JobState.CANCELLED


def test_watcher_adopts_native_job_that_holds_claim_and_cancels_the_other(site: Site) -> None:
    job = site.deployed()
    late = site.scheduler.accept(job.token)
    claim = Path(site.attempt(job).claim)
    claim.mkdir()
    (claim / "owner.json").write_text(f'{{"native_id": "{late}"}}')
    site.watch()
    assert site.job(job.id).native_id == str(late)
    assert [str(native) for native in site.scheduler.cancelled] == [job.native_id]
    write_final(site, site.job(job.id))
    site.scheduler.end(late, EndCause.SUCCESS, site.clock.now())
    watch(site, 1, pause_s=30)
    assert site.job(job.id).state is JobState.COMPLETED


def test_watcher_ignores_native_id_reused_for_another_attempt(site: Site) -> None:
    """A controller that lost its last seconds in a crash forgets jobs and uses their numbers again."""
    job = site.deployed()
    native = NativeId(job.native_id)
    site.watch()
    site.scheduler.seen[native] = Observation(Phase.ENDED, "CANCELLED", EndCause.CANCELLED, name="training-zzzzzzzzz-1")
    cancel_job(site.platform.storage, site.platform.adapters, site.caller, job.id)
    for _ in range(FORGOTTEN_AFTER - 1):
        site.watch()
        assert site.job(job.id).state is JobState.QUEUED
        site.clock.tick(60)
    assert site.scheduler.cancelled == []
    write_final(site, job)
    site.watch()
    assert site.job(job.id).state is JobState.COMPLETED


def test_watcher_observes_other_jobs_when_cancel_request_is_refused(site: Site) -> None:
    job, other = site.deployed("one"), site.deployed("two")
    cancel_job(site.platform.storage, site.platform.adapters, site.caller, job.id)
    site.scheduler.refuse_cancel = "Access/permission denied"
    write_final(site, other)
    assert site.end(other, EndCause.SUCCESS).state is JobState.COMPLETED


def test_watcher_queries_scheduler_once_soon_after_final_record(site: Site) -> None:
    job = site.deployed()
    write_final(site, job)
    write_events(site, job, [("store-results", site.clock.now())])
    site.watch(full=False)
    assert site.scheduler.observe_calls == 0
    site.clock.tick(LOOK_SOON_S)
    site.scheduler.end(NativeId(job.native_id), EndCause.SUCCESS, site.clock.now())
    site.watch(full=False)
    assert site.job(job.id).state is JobState.COMPLETED
    for _ in range(5):
        site.clock.tick(LOOK_SOON_S)
        site.watch(full=False)
    assert site.scheduler.observe_calls == 1


def test_listing_without_changes_causes_no_work_per_job(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    job, other = site.deployed("one"), site.deployed("two")
    for _ in range(3):
        site.watch()
    with monkeypatch.context() as patched:
        patched.setattr(Memory, "is_unmoved", lambda *_: pytest.fail("a job was compared"))
        assert site.watch() == 0
    write_events(site, job, [("learner", site.clock.now())])
    assert site.watch() == 1
    site.scheduler.end(NativeId.parse(other.native_id), EndCause.FAILURE, site.clock.now())
    site.watch()
    site.clock.tick(SETTLE_S)
    site.watch()
    assert (site.job(job.id).state, site.job(other.id).state) == (JobState.PROCESSING, JobState.FAILED)


def test_watcher_queries_less_often_while_scheduler_does_not_know_the_end(site: Site) -> None:
    """Its epilog may take minutes."""
    job = site.deployed()
    write_final(site, job)
    write_events(site, job, [("store-results", site.clock.now())])
    pauses = []
    for _ in range(5):
        site.watch(full=False)
        pauses.append(round(site.watcher.look_in_s, 3))
        site.clock.tick(min(1.0, pauses[-1]))
    assert pauses == [LOOK_SOON_S, 0.2, 0.4, 0.8, math.inf]  # only full polls follow
    write_events(site, job, [("store-logs", site.clock.now())])  # another event: it may end now
    site.watch(full=False)
    assert site.watcher.look_in_s == pytest.approx(LOOK_SOON_S)


def test_slow_scheduler_is_queried_less_often_after_final_records(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    job = site.deployed()
    observe = site.scheduler.observe

    def slow(*args: object) -> object:
        site.clock.tick(0.5)
        return observe(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(site.scheduler, "observe", slow)
    write_final(site, job)
    site.watch()
    assert site.watcher.look_in_s == pytest.approx(10.0)


def test_watcher_keeps_forgotten_job_while_its_heartbeat_is_recent(site: Site) -> None:
    job = site.deployed()
    write_events(site, job, [("learner", site.clock.now())])
    site.head(job).beats()
    native = NativeId(job.native_id)
    del site.scheduler.seen[native]
    site.scheduler.forgotten.add(native)
    watch(site, 2 * FORGOTTEN_AFTER)
    assert site.job(job.id).state is JobState.PROCESSING
    watch(site, 1, pause_s=STILL_ALIVE_S + 1)
    last = site.platform.storage.store.history(job.id)[-1]
    assert (last.state, last.error_code) == (JobState.PENDING, "S106")
    assert "no record of the job any more" in last.message


def test_watcher_shows_disruption_of_running_job_in_list_show_and_why_until_it_is_over(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    """A pod on Kubernetes that is evicted runs on for its grace period."""
    job = site.deployed()
    write_events(site, job, [("learner", site.clock.now())])
    native = NativeId(job.native_id)
    for words in ("pod-0 is about to end: its node shuts down; kubelet kills it at 17:00", ""):
        site.scheduler.seen[native] = Observation(Phase.RUNNING, "Running", nodes="n1", lacks=words)
        site.watch()
        view = site.view(job)
        assert (view.state, place_or_reason(view)) == ("PROCESSING", f"({words})" if words else "n1")
        print_job(view)
        shown = [line.partition(":") for line in capsys.readouterr().out.splitlines()]
        assert [text.strip() for label, _, text in shown if label == "Disruption"] == ([words] if words else [])
        sentence = site.platform.explainer.explain_job(site.caller, job.id).sentence
        assert sentence.startswith("it is not waiting: it ")
        assert sentence.endswith(f" on n1; {words}" if words else " on n1")


def test_watcher_records_no_requeue_from_observation_before_start(site: Site) -> None:
    """The scheduler was asked while the job waited; all that follows comes from files until it is asked again."""
    job = site.deployed()
    start = site.clock.now()
    site.scheduler.seen[NativeId(job.native_id)] = Observation(Phase.PENDING, "PENDING", submitted_at=start)
    site.watch()
    phases = [("load-model", start + 1), ("learner", start + 2), ("store-results", start + 3)]
    for count in (2, 3):
        write_events(site, job, phases[:count])
        site.clock.tick(2)
        site.watch(full=False)
    assert site.states(job) == ["PENDING", "DEPLOYING", "QUEUED", "DOWNLOADING", "PROCESSING", "STORING"]


def test_watcher_catches_up_with_ended_jobs_in_first_round_with_one_scheduler_query(site: Site) -> None:
    jobs = [site.deployed(key) for key in ("one", "two")]
    for job in jobs:
        write_final(site, job)
        site.scheduler.end(NativeId(job.native_id), EndCause.SUCCESS, site.clock.now())
    before = site.watcher.is_caught_up
    site.watch()
    assert (before, site.watcher.is_caught_up) == (False, True)
    assert {site.job(job.id).state for job in jobs} == {JobState.COMPLETED}
    assert site.scheduler.observe_calls == 1


def test_watcher_follows_continuations_without_another_listing(site: Site) -> None:
    """The bell of the job is taken down when its first attempt is read, and nobody rings for the later ones again."""
    job = site.deployed()
    head = site.head(job)
    head.starts()
    head.goes_on()
    native = site.scheduler.accept(f"{job.id}-2")  # type: ignore[arg-type]
    site.watch()
    assert (site.job(job.id).state, site.watcher.is_caught_up) == (JobState.DEPLOYING, False)
    assert site.watch(full=False) == 0
    site.deploy()
    last = site.head(job)
    last.starts()
    last.stores()
    last.ends(Outcome.COMPLETED, exit_code=0)
    site.scheduler.end(native, EndCause.SUCCESS, site.clock.now())
    take_bells_down(site)
    site.watch(full=False)
    assert (site.job(job.id).state, site.watcher.is_caught_up) == (JobState.PROCESSING, False)
    site.clock.tick(2 * LOOK_SOON_S)
    site.watch(full=False)
    assert (site.job(job.id).state, site.watcher.is_caught_up) == (JobState.COMPLETED, True)
    assert site.scheduler.observe_calls == 1


@pytest.mark.parametrize("rung", [True, False])
def test_watcher_fails_forgotten_job_by_final_record_with_or_without_doorbell(site: Site, rung: bool) -> None:
    job = site.deployed()
    head = site.head(job)
    head.starts()
    head.ends(Outcome.FAILED, error_code="C201", message="learner 1 ended with exit code 3", exit_code=3)
    native = NativeId(job.native_id)
    del site.scheduler.seen[native]
    site.scheduler.forgotten.add(native)
    if not rung:
        take_bells_down(site)
    site.watch()
    site.clock.tick(LOOK_SOON_S)
    site.watch(full=False)
    assert (site.job(job.id).state, site.watcher.is_caught_up) == (JobState.FAILED, True)
    assert site.scheduler.observe_calls == (1 if rung else 2)


def test_watcher_keeps_forgotten_job_processing_after_record_of_external_end(site: Site) -> None:
    """What was ended from outside may have been started again; a listing that leaves it out proves nothing yet."""
    job = site.deployed()
    head = site.head(job)
    head.starts()
    head.ends(Outcome.CANCELLED, message="ended from outside")
    native = NativeId(job.native_id)
    del site.scheduler.seen[native]
    site.scheduler.forgotten.add(native)
    site.watch()
    assert site.job(job.id).state is JobState.PROCESSING


@pytest.mark.parametrize(("ago_s", "state"), [(SETTLE_S, JobState.PROCESSING), (LONG_AGO_S, JobState.PENDING)])
def test_watcher_waits_for_final_record_only_if_job_ended_recently(site: Site, ago_s: float, state: JobState) -> None:
    job = site.deployed()
    site.head(job).starts()
    site.scheduler.end(NativeId(job.native_id), EndCause.NODE_FAIL, site.clock.now())
    site.clock.tick(ago_s)
    site.watch()
    assert site.job(job.id).state is state


def take_bells_down(site: Site) -> None:
    """As a daemon does that is killed before it has read."""
    for bell in Path(site.platform.storage.root.doorbell).iterdir():
        bell.unlink()
