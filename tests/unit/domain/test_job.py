"""Ids and tokens."""

from __future__ import annotations

import re

import pytest

from ffdl_batch.domain.faults import FAULTS, Fault
from ffdl_batch.domain.findings import Finding, InputRefused, Severity
from ffdl_batch.domain.job import MAX_TOKEN, attempt_token, new_job_id, parse_job_id
from ffdl_batch.domain.observation import NativeId


def test_ids_are_dns_labels_and_do_not_repeat() -> None:
    ids = {new_job_id() for _ in range(2000)}
    assert len(ids) == 2000
    assert all(re.fullmatch(r"[a-z][a-z0-9-]{0,62}", i) and parse_job_id(i) == i for i in ids)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "training-",
        "../etc",
        "training-ABCDEFGHI",
        "training-000000000/..",
        "training-0000000001",
        "training-００００００００0",
    ],
)
def test_what_is_no_id_can_not_become_a_path(text: str) -> None:
    with pytest.raises(ValueError, match="training id"):
        parse_job_id(text)


def test_tokens() -> None:
    job = new_job_id()
    assert attempt_token(job, 1) == f"{job}-1"
    assert len(attempt_token(job, 10**20)) <= MAX_TOKEN
    with pytest.raises(ValueError, match="no token"):
        attempt_token(job, 0)


@pytest.mark.parametrize("text", ["12", "12_3"])
def test_native_ids_read_back(text: str) -> None:
    assert str(NativeId.parse(text)) == text


def test_every_fault_says_who_and_what_to_do() -> None:
    assert all(code == kind.code and kind.cure and kind.title for code, kind in FAULTS.items())
    assert Fault("S999", "x").kind.code == "S104"


def test_a_finding_reads_like_a_compilers_message() -> None:
    finding = Finding(Severity.ERROR, "is no number", "write 2", "m.yml", 3, 7, "gpus")
    assert str(finding) == "m.yml:3:7: error: gpus: is no number (write 2)"
    warning = Finding(Severity.WARNING, "odd")
    assert str(InputRefused([finding, warning])) == str(finding)
