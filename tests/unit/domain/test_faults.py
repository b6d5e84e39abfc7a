"""What a fault tells its owner to do."""

from __future__ import annotations

import pytest

from ffdl_batch.domain.faults import FAULTS, NORMAL, Fault, Party

JOB = "training-00000000a"


@pytest.mark.parametrize("code", FAULTS)
def test_every_code_says_what_it_means_and_what_to_do(code: str) -> None:
    kind = FAULTS[code]
    assert kind.code == code and kind.title and kind.cure
    assert code[0] in "CS" and (code[0] == "S" or kind.caused_by is Party.USER)


def test_nothing_is_to_be_done_where_nothing_is_wrong() -> None:
    assert Fault(NORMAL.code, "").cure(JOB, has_checkpoint=True) == ""


def test_a_time_limit_is_cured_by_a_resume_where_there_is_a_checkpoint() -> None:
    fault = Fault("C203", "the time limit was reached")
    assert f"ffdl resume --time TIME {JOB}" in fault.cure(JOB, has_checkpoint=True)
    generic = fault.cure(JOB, has_checkpoint=False)
    assert generic == FAULTS["C203"].cure
    assert JOB not in generic and "ffdl resume --time" in generic and "write checkpoints" in generic


@pytest.mark.parametrize("code", ["C201", "S111", "X999"])
def test_other_cures_are_the_codes_own(code: str) -> None:
    fault = Fault(code, "")
    assert fault.cure(JOB, has_checkpoint=True) == fault.cure(JOB, has_checkpoint=False) == fault.kind.cure


def test_a_dependency_that_is_never_satisfied_is_the_users_and_names_both_ways_out() -> None:
    kind = FAULTS["C105"]
    assert (kind.title, kind.caused_by) == ("dependency never satisfied", Party.USER)
    assert "ffdl show" in kind.cure and "resume" in kind.cure and "submit again" in kind.cure
