"""What a fault tells its owner to do."""

from __future__ import annotations

import pytest

from ffdl_batch.domain.outcome.error_codes import FAULTS, NORMAL, Fault, Party

JOB = "training-00000000a"


@pytest.mark.parametrize("code", FAULTS)
def test_fault_codes_have_title_cure_and_consistent_party_and_unknown_code_is_s104(code: str) -> None:
    kind = FAULTS[code]
    assert kind.code == code and kind.title and kind.cure
    assert code[0] in "CS" and (code[0] == "S" or kind.caused_by is Party.USER)
    assert Fault("S999", "x").kind.code == "S104"


def test_fault_cure_is_empty_for_normal_end() -> None:
    assert Fault(NORMAL.code, "").cure(JOB, has_checkpoint=True) == ""


def test_time_limit_cure_suggests_resume_if_checkpoint_exists() -> None:
    fault = Fault("C203", "the time limit was reached")
    assert f"ffdl resume --time TIME {JOB}" in fault.cure(JOB, has_checkpoint=True)
    generic = fault.cure(JOB, has_checkpoint=False)
    assert generic == FAULTS["C203"].cure
    assert JOB not in generic and "ffdl resume --time" in generic and "write checkpoints" in generic


@pytest.mark.parametrize(
    ("code", "used_up", "budget"),
    [
        ("C203", {"gpu_hours"}, "gpu_hours"),
        ("C203", {"timeouts"}, "timeouts"),
        ("S111", {"preemptions", "gpu_hours"}, "gpu_hours"),
        ("S107", {"node_failures"}, "node_failures"),
        ("S110", {"node_failures"}, "node_failures"),
    ],
)
def test_fault_cure_suggests_larger_budget_if_budget_is_used_up(code: str, used_up: set[str], budget: str) -> None:
    cure = Fault(code, "").cure(JOB, has_checkpoint=True, used_up=used_up)
    assert cure.startswith(f"ffdl resume {JOB} continues from its checkpoint and resets the budget; ")
    assert cure.endswith(f"submit again with more batch.retry.{budget}") and "--time" not in cure
    assert "checkpoint" not in Fault(code, "").cure(JOB, has_checkpoint=False, used_up=used_up)


@pytest.mark.parametrize(("code", "used_up"), [("C201", {"gpu_hours", "failures"}), ("C203", {"preemptions"})])
def test_fault_cure_ignores_budget_that_did_not_end_the_job(code: str, used_up: set[str]) -> None:
    fault = Fault(code, "")
    assert fault.cure(JOB, has_checkpoint=True, used_up=used_up) == fault.cure(JOB, has_checkpoint=True)


@pytest.mark.parametrize("code", ["C201", "S111", "X999"])
def test_fault_cure_defaults_to_cure_of_code(code: str) -> None:
    fault = Fault(code, "")
    assert fault.cure(JOB, has_checkpoint=True) == fault.cure(JOB, has_checkpoint=False) == fault.kind.cure


def test_unsatisfied_dependency_fault_names_user_and_both_cures() -> None:
    kind = FAULTS["C105"]
    assert (kind.title, kind.caused_by) == ("dependency never satisfied", Party.USER)
    assert "ffdl show" in kind.cure and "resume" in kind.cure and "submit again" in kind.cure
