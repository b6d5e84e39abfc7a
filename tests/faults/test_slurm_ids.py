"""Numbers that are no job's: in what sbatch prints, in rows of the database, in what sacct is asked. Against the fake
executables, whose sacct refuses them as 26.05's does."""

from __future__ import annotations

from pathlib import Path

import pytest

from ffdl_batch.domain.observation import EndCause, NativeId, Phase
from ffdl_batch.ports.capabilities import AvoidsNodes, ForgetsJobs, LosesJobs, StopsMany
from ffdl_batch.ports.scheduler import SubmissionUncertain
from ffdl_slurm.adapter import SlurmScheduler
from tests.contract.scheduler_harness import FakeSlurmHarness
from tests.crash.world import WorldOptions
from tests.faults.slurm_office import Office

TOO_LARGE, NONE = "4294967999", "0"
LARGEST = "4294967292"


def ended_and_forgotten(slurm: FakeSlurmHarness) -> list[NativeId]:
    """Jobs that only the accounting knows."""
    slurm.keep_accounts()
    natives = [slurm.submit("exit 4")[0] for _ in range(3)]
    for native in natives:
        slurm.await_end(native)
        slurm.forget(native)
    return natives


def accounted(slurm: FakeSlurmHarness) -> set[str]:
    """The ids that sacct was asked about so far."""
    lists = (word.partition("=")[2] for call in slurm.calls("sacct") for word in call["argv"] if "--jobs=" in word)
    return {job for ids in lists for job in ids.split(",")}


@pytest.mark.parametrize("number", [TOO_LARGE, NONE])
def test_slurm_submit_treats_invalid_id_as_uncertain_and_finds_job(slurm: FakeSlurmHarness, number: str) -> None:
    slurm.spoil("sbatch", f"wrapped={number}")
    plan = slurm.prepare("true")
    with pytest.raises(SubmissionUncertain, match="looked for"):
        slurm.scheduler.submit(plan)
    (native,) = slurm.scheduler.find(plan.token, plan.attempt_dir)
    assert slurm.accepted() == [native.job]
    assert slurm.await_end(native).end is EndCause.SUCCESS


@pytest.mark.parametrize("number", [TOO_LARGE, NONE, "none"])
def test_slurm_queries_report_invalid_id_as_forgotten_and_observe_other_jobs(
    slurm: FakeSlurmHarness, number: str
) -> None:
    """A row that an earlier release wrote."""
    natives, bad = ended_and_forgotten(slurm), NativeId(number)
    everything = [natives[0], bad, *natives[1:], NativeId(number, "3"), NativeId(LARGEST)]
    seen = slurm.scheduler.observe(everything)
    assert {native: found.exit_code for native, found in seen.items()} == dict.fromkeys(natives, 4)
    assert isinstance(slurm.scheduler, SlurmScheduler)
    assert slurm.scheduler.is_forgotten(everything) == {bad, NativeId(number, "3"), NativeId(LARGEST)}
    assert slurm.scheduler.was_lost([bad]) == frozenset()
    assert slurm.scheduler.accounting_outage() is None
    assert accounted(slurm) == {*(native.job for native in natives), LARGEST}


@pytest.mark.parametrize("number", [TOO_LARGE, NONE])
def test_slurm_commands_skip_invalid_job_ids(slurm: FakeSlurmHarness, number: str) -> None:
    """scancel takes the id of a step modulo 2^32: the signal would reach job 703."""
    slurm.freeze()
    native, _ = slurm.submit("true")
    bad, task = NativeId(number), NativeId(number, "3")
    scheduler = slurm.scheduler
    assert isinstance(scheduler, StopsMany) and isinstance(scheduler, AvoidsNodes)
    before = len(slurm.calls("scancel")) + len(slurm.calls("scontrol")) + len(slurm.calls("squeue"))
    for ask in (scheduler.cancel_many, scheduler.withdraw_many):
        ask([bad, task])
    scheduler.signal_many([bad, task], "URG")
    scheduler.avoid(bad, ["n1"])
    scheduler.exclude_only(task, "n1")
    assert len(slurm.calls("scancel")) + len(slurm.calls("scontrol")) + len(slurm.calls("squeue")) == before
    scheduler.cancel_many([bad, native, task])
    assert [call["argv"] for call in slurm.calls("scancel")] == [[native.job]]
    assert (slurm.observe(native) or pytest.fail("it is gone")).phase is Phase.ENDED


def test_slurm_accounting_is_not_an_outage_when_sacct_rejects_one_id(
    slurm: FakeSlurmHarness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As that of a release whose ids are smaller: the others are asked about without it."""
    caplog.set_level("INFO")
    monkeypatch.setattr("ffdl_slurm.commands.LARGEST_JOB_ID", int(TOO_LARGE))
    natives, bad = ended_and_forgotten(slurm), NativeId(TOO_LARGE)
    assert isinstance(slurm.scheduler, ForgetsJobs) and isinstance(slurm.scheduler, LosesJobs)
    assert isinstance(slurm.scheduler, SlurmScheduler)
    for _ in range(3):
        assert set(slurm.scheduler.observe([*natives, bad])) == set(natives)
        assert slurm.scheduler.is_forgotten([*natives, bad]) == {bad}
    assert slurm.scheduler.accounting_outage() is None
    told = [text for text in caplog.messages if TOO_LARGE in text]
    assert len(told) == 1 and "is unknown to the accounting" in told[0] and "larger than acceptable" in told[0]
    (slurm.state / "accounting").unlink()
    assert slurm.scheduler.is_forgotten([*natives, bad]) == {*natives, bad}


def test_daemon_runs_job_once_when_sbatch_prints_invalid_id(tmp_path: Path) -> None:
    office = Office(tmp_path, WorldOptions(timeout_s=60.0, life_s=4.0))
    try:
        (office.slurm / "accounting").touch()
        office.spoil("sbatch", f"wrapped={TOO_LARGE}", f"wrapped={NONE}")
        office.start()
        jobs = [office.accept("") for _ in range(3)]
        for job_id in jobs:
            job = office.until(job_id, "COMPLETED", "FAILED")
            assert (job["state"], job["attempt"]) == ("COMPLETED", 1), job
        assert office.runs() == dict.fromkeys(jobs, 1)
        assert office.outages() == []
        told = [word for command in ("sacct", "scancel", "squeue") for argv in office.calls(command) for word in argv]
        assert not [word for word in told if TOO_LARGE in word]
    finally:
        office.close()
