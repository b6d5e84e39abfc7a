"""How often Slurm is asked: one query an interval, whatever the number of jobs and whatever Slurm does.

The watcher and the deployer over the real adapter and the fake executables, which write down each command.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from ffdl_batch.config import load_settings
from ffdl_batch.daemon.platform import Platform, open_platform
from ffdl_batch.domain.job.job import Change, Job, new_job_id
from ffdl_batch.domain.job.spec import Framework, JobSpec, Resources
from ffdl_batch.domain.job_state import JobState
from ffdl_batch.domain.outcome.shared_listing import SharedRows
from ffdl_batch.domain.scheduler_errors import SchedulerUnreachable
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.services.job_files.attempt_directory import mark_begun
from ffdl_batch.services.monitoring.watcher import ACCOUNTING_LAG_S, FORGOTTEN_AFTER, Watcher
from ffdl_batch.store import NewJob
from ffdl_slurm.adapter import SlurmScheduler
from ffdl_slurm.gateways.cli_gateway import CommandLineGateway
from tests.contract.scheduler_harness import FakeSlurmHarness
from tests.fakes.clock import FakeClock

JOBS, PURGED = 200, 80
INTERVAL_S = 2.0
FIRST_ID = 1001


@dataclass
class Cluster:
    """JOBS that Slurm has, the platform over them, and what was asked since the last look at it."""

    slurm: FakeSlurmHarness
    platform: Platform
    watcher: Watcher
    clock: FakeClock
    jobs: Sequence[Job]
    seen: int = 0

    def look(self) -> Counter[str]:
        """One look of the watcher, and an interval; the commands that it ran."""
        self.watcher.step(full=True)
        self.clock.tick(INTERVAL_S)
        return self.asked()

    def asked(self) -> Counter[str]:
        """Commands that were run since this was asked last."""
        log = self.slurm.state / "calls.log"
        calls = [json.loads(line)["command"] for line in log.read_text().splitlines()] if log.exists() else []
        new, self.seen = calls[self.seen :], len(calls)
        return Counter(new)

    def states(self) -> Counter[str]:
        return Counter(str(job.state) for job in self.platform.storage.store.get_many([job.id for job in self.jobs]))

    def forget(self, count: int, **values: object) -> None:
        """MinJobAge passes for so many jobs, which ended as `values` say."""
        for number in range(FIRST_ID, FIRST_ID + count):
            path = self.slurm.state / "jobs" / f"{number}.json"
            record = json.loads(path.read_text()) | {"state": "COMPLETED", "end": int(self.clock.now())} | values
            (self.slurm.state / "gone" / path.name).write_text(json.dumps(record))
            path.unlink()

    def spoil(self, fault: str) -> None:
        for command in ("squeue", "sbatch", "scancel", "sinfo", "scontrol"):
            self.slurm.spoil(command, *([f"{fault}:always"] if fault else []))


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    slurm = FakeSlurmHarness(tmp_path)
    clock = FakeClock()
    environ = {"HOME": str(tmp_path), "FFDL_STATE_DIR": str(tmp_path / "state"), "FFDL_BACKEND": "slurm",
               "FFDL_JOBS_DIR": slurm.root.path, "FFDL_CHECK_IMAGES": "false"}  # fmt: skip
    platform = open_platform(load_settings(cwd=tmp_path, environ=environ), clock)
    platform.adapters.use("slurm", slurm.scheduler)
    (slurm.state / "still").touch()
    jobs = add_jobs(platform, clock)
    watcher = platform.watcher()
    found = Cluster(slurm, platform, watcher, clock, jobs)
    try:
        for job, number in zip(jobs, range(FIRST_ID, FIRST_ID + JOBS), strict=True):
            list_job(slurm, number, job.token, clock)
        yield found
    finally:
        watcher.close()
        platform.close()
        slurm.close()


def add_jobs(platform: Platform, clock: FakeClock) -> list[Job]:
    """Rows of jobs that are QUEUED under consecutive ids."""
    resources = Resources(cpus=1, memory_bytes=64 * 1024**2)
    spec = JobSpec("many", Framework("custom", "/images/any.sif", "true"), resources=resources)
    storage = platform.storage
    new = [NewJob(new_job_id(), storage.uid, storage.user, spec, "slurm", "", "0" * 64, clock.now() + n)
           for n in range(JOBS)]  # fmt: skip
    storage.store.add_jobs(new)
    leased = platform.storage.store.claim_deployable("test", limit=JOBS, lease_s=60)
    begun = platform.storage.store.begin_attempts([one.job for one in leased], leased[0].lease_token, clock.now())
    changes = [
        (begun[one.job.id], Change(((JobState.QUEUED, clock.now()),), columns={"native_id": str(FIRST_ID + n)}))
        for n, one in enumerate(leased)
    ]
    return platform.storage.store.apply_many(changes)


def list_job(slurm: FakeSlurmHarness, number: int, name: str, clock: FakeClock) -> None:
    """A job that waits in the fake controller, without any process."""
    record = {"id": str(number), "name": name, "state": "PENDING", "reason": "Priority", "exit": "0:0",
              "submit": int(clock.now()), "start": 0, "end": 0, "nodes": "", "restarts": 0, "options": {},
              "excluded": "", "runner": 0}  # fmt: skip
    (slurm.state / "jobs" / f"{number}.json").write_text(json.dumps(record))


def test_watcher_runs_one_squeue_per_interval_and_one_sacct_for_all_purged_jobs(cluster: Cluster) -> None:
    cluster.slurm.keep_accounts()
    assert [cluster.look() for _ in range(3)] == [Counter(squeue=1)] * 3
    assert cluster.states() == {"QUEUED": JOBS}
    assert {job.pending_reason for job in cluster.platform.storage.store.get_many([cluster.jobs[7].id])} == {"Priority"}
    cluster.forget(PURGED, state="FAILED", exit="4:0", start=int(cluster.clock.now()), nodes="n1")
    assert cluster.look() == Counter(squeue=1, sacct=1)
    for _ in range(8):  # until no final record can still become visible
        cluster.look()
    assert cluster.states() == {"QUEUED": JOBS - PURGED, "FAILED": PURGED}
    assert cluster.look() == Counter(squeue=1)


class HubRows:
    """The listing that the hub of the site shares, asked again for each look."""

    def __init__(self, source: SlurmScheduler) -> None:
        self._source = source

    def read(self) -> SharedRows:
        """The rows of this user."""
        return SharedRows(self._source.list_all_users().get(os.getuid(), []), 0.0)


def test_watcher_of_a_site_asks_only_about_changes_that_the_hub_shows(cluster: Cluster) -> None:
    cluster.slurm.keep_accounts()
    scheduler = cluster.slurm.scheduler
    assert isinstance(scheduler, SlurmScheduler)
    context = replace(scheduler._context, shared=HubRows(scheduler))
    cluster.platform.adapters.use("slurm", SlurmScheduler(scheduler._settings, context, CommandLineGateway(60.0)))
    assert cluster.look() == Counter(squeue=2)
    assert [cluster.look() for _ in range(20)] == [Counter(squeue=1)] * 20  # those of the hub
    assert cluster.states() == {"QUEUED": JOBS}
    cluster.forget(PURGED, state="FAILED", exit="4:0", start=int(cluster.clock.now()), nodes="n1")
    assert cluster.look() == Counter(squeue=2, sacct=1)
    for _ in range(8):
        cluster.look()
    assert cluster.states() == {"QUEUED": JOBS - PURGED, "FAILED": PURGED}
    assert [cluster.look() for _ in range(5)] == [Counter(squeue=1)] * 5


def test_listing_of_all_users_has_live_jobs_by_uid_whatever_their_names(cluster: Cluster) -> None:
    own, other = os.getuid(), os.getuid() + 1
    forged = f"x\n{own}|7|RUNNING|0:0|0|1|1|1|n1|None"
    changes = ({"uid": other, "user": "bob", "name": forged}, {"state": "COMPLETED"})
    for number, change in enumerate(changes, FIRST_ID):
        path = cluster.slurm.state / "jobs" / f"{number}.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | change))
    rows = CommandLineGateway(60.0).list_all_users()
    assert {uid: len(found) for uid, found in rows.items()} == {own: JOBS - 2, other: 1}


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("down", "Unable to contact slurm controller"),
        ("garbage", "squeue printed no header"),
        ("binary", "squeue printed no header"),
        ("empty", "squeue printed no header"),
        ("big", "squeue printed more than 1 MiB"),
        ("hang", "squeue did not answer within 1 s"),
    ],
)
def test_listing_of_all_users_is_whole_or_an_error(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, fault: str, said: str
) -> None:
    monkeypatch.setattr("ffdl_slurm.gateways.cli_gateway.MAX_SHARED_BYTES", 1 << 20)
    cluster.spoil(fault)
    with pytest.raises(SchedulerUnreachable, match=said):
        CommandLineGateway(1.0 if fault == "hang" else 60.0).list_all_users()


def test_watcher_fails_purged_jobs_without_proof_when_accounting_is_absent(cluster: Cluster) -> None:
    cluster.look()
    cluster.forget(PURGED)
    asked = [cluster.look() for _ in range(FORGOTTEN_AFTER)]
    assert asked == [Counter(squeue=1, sacct=1)] * FORGOTTEN_AFTER
    assert cluster.states() == {"QUEUED": JOBS}
    cluster.clock.tick(ACCOUNTING_LAG_S)
    # One question about all of them, whether they are forgotten, and whether somebody had ended them.
    assert cluster.look() == Counter(squeue=2, sacct=2)
    assert cluster.states() == {"QUEUED": JOBS - PURGED, "FAILED": PURGED}
    (job,) = cluster.platform.storage.store.get_many([cluster.jobs[0].id])
    assert (job.error_code, "no record of the job any more" in job.message) == ("S106", True)
    assert cluster.look() == Counter(squeue=1)


def test_watcher_reports_accounting_outage_separately_with_few_log_warnings(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for pause in ("FIRST_PAUSE_S", "LONGEST_PAUSE_S"):  # each look asks
        monkeypatch.setattr(f"ffdl_slurm.gateways.accounting_circuit.{pause}", 0.0)
    adapters = cluster.platform.adapters
    cluster.slurm.keep_accounts()
    cluster.slurm.spoil("sacct", "down:always")
    cluster.look()
    assert adapters.outages() == ()  # nobody has asked it
    cluster.forget(3, state="FAILED", exit="4:0", start=int(cluster.clock.now()), nodes="n1")
    for _ in range(5):
        cluster.look()
    (outage,) = adapters.outages()
    assert (outage.name, outage.accounts_for) == ("slurm's accounting", "slurm")
    assert "sacct" in outage.detail or "database" in outage.detail
    assert not adapters.is_out("slurm")
    assert len(told := [record.message for record in caplog.records if record.levelname == "WARNING"]) <= 3, told
    cluster.slurm.spoil("sacct")
    for _ in range(8):
        cluster.look()
    assert adapters.outages() == ()
    assert len([text for text in caplog.messages if "the accounting answers again" in text]) == 1
    assert cluster.states() == {"QUEUED": JOBS - 3, "FAILED": 3}


def test_watcher_backs_off_during_outage_and_keeps_job_states(cluster: Cluster) -> None:
    cluster.look()
    cluster.spoil("timeout")
    asked = Counter[str]()
    for _ in range(150):  # five minutes
        asked += cluster.look()
    assert asked.keys() == {"squeue"}
    assert 300 / 30 / 1.25 <= asked["squeue"] <= 5 + 300 / (0.75 * 30) + 1
    assert cluster.states() == {"QUEUED": JOBS}
    (outage,) = cluster.platform.adapters.outages()
    assert (outage.name, "squeue" in outage.detail) == ("slurm", True)
    cluster.spoil("")
    cluster.clock.tick(60)
    assert cluster.look() == Counter(squeue=1)
    assert cluster.platform.adapters.outages() == ()


def lose_64_replies(cluster: Cluster, listed: int) -> list[NewJob]:
    """64 jobs that a daemon which is dead had begun to submit; Slurm lists so many of them."""
    cluster.platform.adapters.facts("slurm")
    spec = cluster.jobs[0].spec
    storage = cluster.platform.storage
    new = [NewJob(new_job_id(), storage.uid, storage.user, spec, "slurm", "", "0" * 64, 1.0)
           for _ in range(64)]  # fmt: skip
    storage.store.add_jobs(new)
    leased = cluster.platform.storage.store.claim_deployable("dead", limit=64, lease_s=0.0)
    begun = cluster.platform.storage.store.begin_attempts([one.job for one in leased], leased[0].lease_token, 1.0)
    for number, job in enumerate(begun.values()):
        attempt = cluster.platform.storage.root.job(job.id).attempt(1)
        Path(attempt.path).mkdir(parents=True)
        Path(attempt.submit).mkdir()
        mark_begun(attempt, by="dead")
        if number < listed:
            list_job(cluster.slurm, 5000 + number, job.token, cluster.clock)
    cluster.asked()
    cluster.clock.tick(1.0)
    return new


def test_deployer_finds_64_lost_submissions_with_one_query(cluster: Cluster) -> None:
    new = lose_64_replies(cluster, 64)
    cluster.platform.deployer().step()
    found = cluster.platform.storage.store.get_many([one.id for one in new])
    assert Counter(str(job.state) for job in found) == {"QUEUED": 64}
    assert sorted(job.native_id for job in found) == sorted(str(5000 + n) for n in range(64))
    assert cluster.asked() == Counter(squeue=1, sacct=1)


def test_deployer_adopts_listed_jobs_and_defers_others_when_sacct_is_down(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for pause in ("FIRST_PAUSE_S", "LONGEST_PAUSE_S"):  # however slow this machine is
        monkeypatch.setattr(f"ffdl_slurm.gateways.accounting_circuit.{pause}", 3600.0)
    cluster.slurm.keep_accounts()
    cluster.slurm.spoil("sacct", "down:always")
    new = lose_64_replies(cluster, 40)
    deployer = cluster.platform.deployer()
    for _ in range(5):
        deployer.step()
    found = cluster.platform.storage.store.get_many([one.id for one in new])
    assert Counter(str(job.state) for job in found) == {"QUEUED": 40, "DEPLOYING": 24}
    reasons = {job.pending_reason for job in found if str(job.state) == "DEPLOYING"}
    assert len(reasons) == 1 and reasons.pop().startswith("the accounting does not answer: ")
    assert cluster.asked() == Counter(squeue=1, sacct=1)
    assert len([record for record in caplog.records if record.levelname == "WARNING"]) == 1
