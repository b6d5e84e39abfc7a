"""Numbers that are no job's: in what sbatch prints, in rows of the database, in what sacct is asked. Against the fake
executables, whose sacct refuses them as 26.05's does."""

from __future__ import annotations

import pytest

from ffdl_batch.domain.backend_facts import Absent
from ffdl_batch.domain.outcome.observation import NativeId, Phase
from ffdl_batch.domain.scheduler_errors import SubmissionUncertain
from ffdl_batch.ports.capabilities import AvoidsNodes, StopsMany
from ffdl_slurm.adapter import SlurmScheduler
from tests.contract.scheduler_harness import FakeSlurmHarness

TOO_LARGE, NONE = "4294967999", "0"
LARGEST = "4294967292"


def ended_and_forgotten(slurm: FakeSlurmHarness) -> list[NativeId]:
    """Jobs that only the accounting knows."""
    slurm.keep_accounts()
    natives = [slurm.submit("exit 4")[0] for _ in range(2)]
    for native in natives:
        slurm.await_end(native)
        slurm.forget(native)
    return natives


def accounted(slurm: FakeSlurmHarness) -> set[str]:
    """The ids that sacct was asked about so far."""
    lists = (word.partition("=")[2] for call in slurm.calls("sacct") for word in call["argv"] if "--jobs=" in word)
    return {job for ids in lists for job in ids.split(",")}


def test_slurm_submit_treats_invalid_id_as_uncertain_and_finds_job(slurm: FakeSlurmHarness) -> None:
    slurm.freeze()
    slurm.spoil("sbatch", f"wrapped={TOO_LARGE}")
    plan = slurm.prepare("true")
    with pytest.raises(SubmissionUncertain, match="looked for"):
        slurm.scheduler.submit(plan)
    assert [native.job for native in slurm.scheduler.find(plan.token, plan.attempt_dir)] == slurm.accepted()


def test_slurm_queries_report_invalid_id_as_forgotten_and_observe_other_jobs(slurm: FakeSlurmHarness) -> None:
    """Rows that an earlier release wrote."""
    natives = ended_and_forgotten(slurm)
    bad = [NativeId(number) for number in (TOO_LARGE, NONE, "none")]
    unknown = [*bad, *(NativeId(native.job, "3") for native in bad), NativeId(LARGEST)]
    everything = [natives[0], *unknown, *natives[1:]]
    seen = slurm.scheduler.observe(everything)
    assert {native: found.exit_code for native, found in seen.items()} == dict.fromkeys(natives, 4)
    assert isinstance(slurm.scheduler, SlurmScheduler)
    assert slurm.scheduler.find_absent(everything) == Absent(frozenset(unknown))
    assert slurm.scheduler.accounting_outage() is None
    assert accounted(slurm) == {*(native.job for native in natives), LARGEST}


def test_slurm_commands_skip_invalid_job_ids(slurm: FakeSlurmHarness) -> None:
    """scancel takes the id of a step modulo 2^32: the signal would reach job 703."""
    slurm.freeze()
    native, _ = slurm.submit("true")
    bad = [NativeId(number, task) for number in (TOO_LARGE, NONE) for task in (None, "3")]
    scheduler = slurm.scheduler
    assert isinstance(scheduler, StopsMany) and isinstance(scheduler, AvoidsNodes)
    before = len(slurm.calls("scancel")) + len(slurm.calls("scontrol")) + len(slurm.calls("squeue"))
    for ask in (scheduler.cancel_many, scheduler.withdraw_many):
        ask(bad)
    scheduler.signal_many(bad, "URG")
    for one in bad:
        scheduler.avoid(one, ["n1"])
        scheduler.exclude_only(one, "n1")
    assert len(slurm.calls("scancel")) + len(slurm.calls("scontrol")) + len(slurm.calls("squeue")) == before
    scheduler.cancel_many([*bad, native])
    assert [call["argv"] for call in slurm.calls("scancel")] == [[native.job]]
    assert (slurm.observe(native) or pytest.fail("it is gone")).phase is Phase.ENDED


def test_slurm_accounting_is_not_an_outage_when_sacct_rejects_one_id(
    slurm: FakeSlurmHarness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As that of a release whose ids are smaller: the others are asked about without it."""
    caplog.set_level("INFO")
    monkeypatch.setattr("ffdl_slurm.commands.LARGEST_JOB_ID", int(TOO_LARGE))
    natives, bad = ended_and_forgotten(slurm), NativeId(TOO_LARGE)
    assert isinstance(slurm.scheduler, SlurmScheduler)
    for _ in range(3):
        assert set(slurm.scheduler.observe([*natives, bad])) == set(natives)
        assert slurm.scheduler.find_absent([*natives, bad]) == Absent(frozenset({bad}))
    assert slurm.scheduler.accounting_outage() is None
    told = [text for text in caplog.messages if TOO_LARGE in text]
    assert len(told) == 1 and "is unknown to the accounting" in told[0] and "larger than acceptable" in told[0]
    (slurm.state / "accounting").unlink()
    assert slurm.scheduler.find_absent([*natives, bad]) == Absent(frozenset({*natives, bad}))
