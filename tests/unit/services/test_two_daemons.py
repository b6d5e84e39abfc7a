"""Two daemons on one database and one tree: what one of them remembers, or wakes up with, harms nothing."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from ffdl_batch.daemon.platform import Platform
from ffdl_batch.domain.job.job import JobId
from ffdl_batch.domain.job_state import JobState, RequestedAction
from ffdl_batch.domain.outcome.observation import NativeId
from ffdl_batch.runtimes.launch_request import LaunchPlan
from ffdl_batch.services.deployment.deployer import SUBMIT_S, Deployer
from ffdl_batch.services.job_files.attempt_directory import begun_at
from ffdl_batch.services.job_files.orphan_cleanup import ARCHIVE_AGE_S, ORPHAN_AGE_S, sweep
from ffdl_batch.services.leader_lease import LeaderLease
from ffdl_batch.services.monitoring.watcher import Watcher
from ffdl_batch.store import Store, StoreUnavailable
from tests.unit.services.conftest import Site, with_file_time, write_events
from tests.unit.services.test_pending_uploads import FakeStarts, with_pending_upload


class Killed(BaseException):
    """Stands for SIGKILL."""


def other(site: Site) -> Platform:
    """The second daemon's platform."""
    return replace(site.platform, owner="other")


def lease_ends(site: Site) -> None:
    """Whatever is leased now is not any more; nothing of it was renewed."""
    site.clock.tick(site.platform.settings.lease_s + SUBMIT_S + 1)


def test_leader_lease_passes_to_other_daemon_when_released_or_expired(site: Site) -> None:
    taken: list[str] = []
    one = LeaderLease(site.platform.leases, "loop", lambda: taken.append("one"))
    two = LeaderLease(other(site).leases, "loop", lambda: taken.append("two"))
    assert (one.take(), two.take(), one.take()) == (True, False, True)
    site.clock.tick(site.platform.settings.lease_s / 2)
    assert (one.take(), two.take()) == (True, False)
    site.clock.tick(site.platform.settings.lease_s / 2)
    assert (two.take(), one.take()) == (False, True), "renewed half a lease ago"
    one.end()
    assert (one.is_ours, two.take(), one.take()) == (False, True, False)
    site.clock.tick(site.platform.settings.lease_s + 1)
    assert (one.take(), two.take()) == (True, False)
    site.clock.tick(10 * site.platform.settings.lease_s)
    assert one.take()
    assert taken == ["one", "two", "one"], "a lease that ran out and that nobody took goes on"


def test_watcher_counts_no_restart_twice_when_it_resumes_after_other_daemon(site: Site) -> None:
    """Else the scheduler's second start of a job, which the other daemon noted, would be counted once more."""
    job = site.deployed()
    native, head = NativeId.parse(job.native_id), site.head(job)
    one, two = (
        site.platform.watcher(),
        other(site).watcher(),
    )
    for restart, watcher in enumerate((one, one, two)):
        head.at = site.clock.now()
        site.scheduler.run(native, restarts=restart)
        head.starts(restart)
        watcher.step(full=True)
        if restart:
            one.close()
        site.clock.tick(5)
    two.close()
    before = site.states(job)
    assert before[-5:] == ["PROCESSING", "QUEUED", "PROCESSING", "QUEUED", "PROCESSING"]
    assert site.platform.storage.store.history(job.id)[-2].cause == "requeued"
    one.step(full=True)
    assert site.states(job) == before
    one.close()


def test_watcher_reads_doorbell_entry_removed_by_killed_watcher(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    job = site.deployed()
    one, two = (
        site.platform.watcher(),
        other(site).watcher(),
    )
    two.step(full=True)
    two.close()

    def die(*_: object, **_words: object) -> None:
        raise Killed

    one.step(full=True)
    write_events(site, job, [("load-model", site.clock.now()), ("learner", site.clock.now())])
    with monkeypatch.context() as patch:
        patch.setattr(Watcher, "_settle", die)
        with pytest.raises(Killed):
            one.step(full=False)
    assert two.step(full=False) == 0
    lease_ends(site)
    assert two.step(full=False) == 1
    assert site.job(job.id).state is JobState.PROCESSING
    two.close()


def test_watcher_reads_events_again_when_row_changed_meanwhile(site: Site) -> None:
    """The row changed between reading and writing: another daemon watches, or the owner requested something."""
    job = site.deployed()
    requests: list[RequestedAction] = []

    def request(step: str) -> None:
        if step == "judged" and requests:
            site.platform.storage.store.set_requested_action(job.id, requests.pop())

    racing = site.platform.watcher(request)
    racing.step(full=True)
    requests.append(RequestedAction.HALT)
    write_events(site, job, [("load-model", site.clock.now()), ("learner", site.clock.now())])
    assert racing.step(full=False) == 0
    assert racing.step(full=False) == 1
    assert site.job(job.id).state is JobState.PROCESSING


def test_watcher_reads_events_again_when_database_write_failed(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    job = site.deployed()
    site.watch()
    site.scheduler.run(NativeId.parse(job.native_id), nodes="n7")
    write_events(site, job, [("load-model", site.clock.now()), ("learner", site.clock.now())])

    def refuse(*_: object) -> None:
        raise StoreUnavailable("the server is shutting down")

    for full in (False, True):
        with monkeypatch.context() as patch:
            patch.setattr(Store, "apply_many", refuse)
            with pytest.raises(StoreUnavailable):
                site.watch(full=full)
    site.watch(full=False)
    assert site.job(job.id).state is JobState.PROCESSING
    site.watch()
    assert site.job(job.id).nodes == "n7"


@pytest.fixture(autouse=True)
def stopped_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """The threads of a daemon that is stopped are all stopped: none tells what jobs wait for."""
    monkeypatch.setattr("ffdl_batch.services.deployment.result_writer.AWAIT_S", 3600.0)


class StoppedInSubmit:
    """The daemon is stopped (SIGSTOP) as it is about to call the scheduler, and `meanwhile` happens."""

    def __init__(self, site: Site, meanwhile: object) -> None:
        self._site, self._meanwhile = site, meanwhile
        self._submit = site.scheduler.submit
        site.scheduler.submit = self.submit  # type: ignore[method-assign]

    def submit(self, plan: LaunchPlan) -> NativeId:
        self._site.scheduler.submit = self._submit  # type: ignore[method-assign]
        assert callable(self._meanwhile)
        self._meanwhile()
        return self._submit(plan)


def get_on(deployer: Deployer) -> int:
    """Steps until one of them got on with a job, which the first need not: PostgreSQL skips a row on which the stopped
    daemon's own thread writes at that moment that the scheduler has not answered."""
    deadline = time.monotonic() + 120
    while not (done := deployer.step()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return done


def deploy_by_other(site: Site) -> None:
    """Long enough for the lease and for the scheduler's credential to be over."""
    lease_ends(site)
    other(site).deployer().step()
    site.clock.at = max(site.clock.at, *(_marks(site) or [0.0])) + site.scheduler.credential_life_s + 1
    assert get_on(other(site).deployer()) == 1


def _marks(site: Site) -> list[float]:
    jobs = site.platform.storage.store.list_jobs(uid=None)
    return [at for job in jobs if (at := begun_at(site.attempt(job))) is not None]


def test_deployer_withdraws_own_late_submission_when_other_daemon_deployed_job(site: Site) -> None:
    job = site.accept()
    StoppedInSubmit(site, lambda: deploy_by_other(site))
    assert site.deploy() == 0
    (taken, _), (late, _) = site.scheduler.submitted
    after = site.job(job.id)
    assert (after.state, after.attempt, after.native_id) == (JobState.QUEUED, 1, str(taken))
    assert (site.scheduler.withdrawn, site.scheduler.cancelled) == ([late], [])
    assert site.platform.storage.store.claim_deployable("third", limit=9, lease_s=1) == []


def test_deployer_keeps_late_submission_that_other_daemon_adopted(site: Site) -> None:
    job = site.accept()

    def adopt() -> None:
        lease_ends(site)
        assert get_on(other(site).deployer()) == 1

    def submit_then_stop(plan: LaunchPlan) -> NativeId:
        native = type(site.scheduler).submit(site.scheduler, plan)
        adopt()
        return native

    site.scheduler.submit = submit_then_stop  # type: ignore[method-assign]
    assert site.deploy() == 0
    ((native, _),) = site.scheduler.submitted
    assert site.job(job.id).native_id == str(native)
    assert (site.scheduler.withdrawn, site.scheduler.cancelled) == ([], [])


def test_deployer_withdraws_late_submission_of_cancelled_job(site: Site) -> None:
    job = site.accept()

    def cancel() -> None:
        site.platform.storage.store.set_requested_action(job.id, RequestedAction.CANCEL)
        deploy_by_other(site)

    StoppedInSubmit(site, cancel)
    site.deploy()
    assert site.job(job.id).state is JobState.CANCELLED
    ((late, _),) = site.scheduler.submitted
    assert site.scheduler.withdrawn == [late]


def test_deployer_keeps_submit_marker_of_other_daemon_after_late_refusal(site: Site) -> None:
    """Else, should that one die before it wrote the id, nobody would look for what it submitted."""
    job = site.accept()

    def other_dies() -> None:
        def die(step: str) -> None:
            if step == "submitted":
                raise Killed

        lease_ends(site)
        site.clock.at = max(site.clock.at, *_marks(site)) + site.scheduler.credential_life_s + 1
        with pytest.raises(Killed):
            get_on(other(site).deployer(die))
        assert len(site.scheduler.submitted) == 1
        site.scheduler.down = True

    StoppedInSubmit(site, other_dies)
    site.deploy()
    site.scheduler.down = False
    site.clock.at = max(site.clock.at, *_marks(site)) + 60
    site.deploy()
    after = site.job(job.id)
    assert (after.state, len(site.scheduler.submitted)) == (JobState.QUEUED, 1)
    assert after.native_id == str(site.scheduler.submitted[0][0])


def test_second_daemon_takes_over_pending_upload_when_lease_expires(site: Site) -> None:
    job = with_pending_upload(site)
    site.clock.tick(3600)
    starts, other_starts = FakeStarts(), FakeStarts()
    one, two = (
        site.platform.pending_uploads(starts.start),
        other(site).pending_uploads(other_starts.start),
    )
    one.step()
    two.step()
    assert (len(starts.made), len(other_starts.made)) == (1, 0)
    assert (one.is_waiting, two.is_waiting) == (False, True)
    for _ in range(4):
        site.clock.tick(site.platform.settings.lease_s / 2)
        one.step()
        two.step()
    assert other_starts.made == [], "the lease is renewed during an upload"
    lease_ends(site)  # it was stopped
    two.step()
    assert [uploaded.attempt for uploaded in other_starts.made] == [site.attempt(job)]
    one.step()
    assert (starts.made[0].ended, one.is_uploading) == (True, False), "who wakes up drops it"
    Path(site.attempt(job).uploaded).write_text("{}")
    other_starts.made[0].status = 0
    assert (one.step(), two.step()) == (0, 1)
    assert not site.platform.storage.store.attempts(job.id)[0].upload_pending


def test_second_daemon_takes_over_pending_upload_when_first_closes(site: Site) -> None:
    with_pending_upload(site)
    site.clock.tick(3600)
    starts, other_starts = FakeStarts(), FakeStarts()
    one, two = (
        site.platform.pending_uploads(starts.start),
        other(site).pending_uploads(other_starts.start),
    )
    one.step()
    one.close()
    two.step()
    assert (starts.made[0].ended, len(other_starts.made)) == (True, 1)


def orphan(site: Site, name: str) -> Path:
    path = Path(site.platform.storage.root.job(JobId(name)).path)
    path.mkdir()
    (path / "environment.json").write_text("{}")
    return path


def test_janitor_measures_age_by_file_system_clock(site: Site) -> None:
    """A host whose clock is hours ahead must not sweep what another daemon is just about to commit."""
    stamped = [0.0]
    platform = with_file_time(site.platform, lambda _: stamped[0])
    path, archive = orphan(site, "training-0000000aa"), Path(site.platform.storage.root.model("f" * 64))
    archive.write_bytes(b"x")
    site.clock.tick(1e6)
    stamped[0] = path.stat().st_mtime + ORPHAN_AGE_S - 60
    assert sweep(platform.storage, platform.settings) == 0
    stamped[0] = path.stat().st_mtime + ORPHAN_AGE_S + 60
    assert sweep(platform.storage, platform.settings) == 1
    assert not path.exists() and archive.exists()
    stamped[0] = archive.stat().st_mtime + ARCHIVE_AGE_S + 60
    assert sweep(platform.storage, platform.settings) == 2, "this one, and the one of the fixture"


def test_janitor_tolerates_concurrent_sweep_of_same_directories(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [orphan(site, f"training-0000000a{letter}") for letter in "abc"]
    later = paths[0].stat().st_mtime + ORPHAN_AGE_S + 60
    platform = with_file_time(site.platform, lambda _: later)
    ask = Store.get_many

    def sweep_meanwhile(store: Store, ids: list[str]) -> object:
        with monkeypatch.context() as patch:
            patch.setattr(Store, "get_many", ask)
            assert sweep(platform.storage, platform.settings) == 3
        return ask(store, ids)

    monkeypatch.setattr(Store, "get_many", sweep_meanwhile)
    assert sweep(platform.storage, platform.settings) == 0
    assert list((Path(site.platform.storage.root.path) / "jobs").iterdir()) == []


def test_janitor_removes_directory_left_by_interrupted_sweep(site: Site) -> None:
    left = Path(site.platform.storage.root.path, "jobs", ".removing-training-0000000aa-0123abcd")
    left.mkdir()
    (left / "environment.json").write_text("{}")
    sweep(site.platform.storage, site.platform.settings)
    assert not left.exists()
