"""The judge of the proof of faults: what holds, and each way in which it must not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.proof.faults.verdict import Found, Planted, Told

GOOD = Found(
    {"a": Planted("exit-0", "user.exit"), "b": Planted("gpu-0", "node.gpu", "n1"), "c": Planted("healthy-0", "")},
    [Told("a", "user.exit", ("n2",), 3), Told("b", "node.gpu", ("n1",), 1)],
    {"a": "FAILED", "b": "FAILED", "c": "COMPLETED"},
)


def test_fault_proof_accepts_exactly_the_planted_incidents() -> None:
    assert GOOD.holds
    assert GOOD.troubles() == []
    assert "kinds planted 2" in GOOD.report()
    assert "healthy jobs 1 completed without an incident 1" in GOOD.report()


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (GOOD.assigned[:1], "planted node.gpu, told nothing"),
        ([GOOD.assigned[0], replace(GOOD.assigned[1], kind="user.exit")], "told user.exit, which was not planted"),
        ([GOOD.assigned[0], replace(GOOD.assigned[1], nodes=("n3",))], "its node.gpu names n3"),
        ([GOOD.assigned[0], replace(GOOD.assigned[1], evidence=0)], "its node.gpu has no evidence"),
        ([*GOOD.assigned, Told("c", "user.exit", (), 1)], "healthy, told user.exit"),
        ([*GOOD.assigned, Told("a", "user.signal", ("n2",), 1)], "told user.signal, which was not planted"),
    ],
)
def test_fault_proof_detects_missing_wrong_or_extra_incident(told: list[Told], said: str) -> None:
    found = replace(GOOD, assigned=told)
    assert not found.holds
    assert any(said in trouble for trouble in found.troubles()), found.troubles()


def test_fault_proof_rejects_failed_healthy_job() -> None:
    found = replace(GOOD, states={**GOOD.states, "c": "FAILED"})
    assert not found.holds
    assert found.healthy == (1, 0)


def test_fault_proof_rejects_duplicate_incident() -> None:
    assert not replace(GOOD, assigned=[*GOOD.assigned, GOOD.assigned[0]]).holds


def test_fault_proof_rejects_run_without_planted_faults() -> None:
    assert not Found({}, [], {}).holds
    assert not Found({"c": GOOD.planted["c"]}, [], {"c": "COMPLETED"}).holds


def test_fault_proof_computes_precision_and_recall_per_kind() -> None:
    found = replace(GOOD, assigned=[*GOOD.assigned, Told("c", "user.exit", (), 1)])
    [gpu, exited] = found.rows()
    assert (gpu.kind, gpu.precision, gpu.recall) == ("node.gpu", 1.0, 1.0)
    assert (exited.kind, exited.precision, exited.recall) == ("user.exit", 0.5, 1.0)
