"""Who gets an attempt: one delivery, whatever process asks."""

from __future__ import annotations

from pathlib import Path

import pytest

from ffdl_batch.controller.head import claim
from ffdl_batch.controller.head.claim import claim_attempt
from ffdl_batch.controller.machine.processes import identity
from ffdl_batch.domain.jobdir import AttemptDir


@pytest.fixture
def attempt(tmp_path: Path) -> AttemptDir:
    return AttemptDir(str(tmp_path))


def test_claim_rejects_second_delivery_with_same_process_identity(attempt: AttemptDir) -> None:
    """Process ids begin anew in each namespace: two heads of one node may have the same id, start and boot."""
    assert claim_attempt(attempt, "101").run == 1
    second = claim_attempt(attempt, "102")
    assert (second.run, second.owner["native_id"]) == (0, "101")


def test_claim_succeeds_when_rename_result_is_lost(attempt: AttemptDir, monkeypatch: pytest.MonkeyPatch) -> None:
    put = claim._rename_into_place

    def put_and_lose_the_answer(path: str, owner: dict[str, object]) -> bool:
        put(path, owner)
        return False

    monkeypatch.setattr(claim, "_rename_into_place", put_and_lose_the_answer)
    assert claim_attempt(attempt, "101").run == 1


def test_claim_admits_same_native_job_only_after_first_run_dies(
    attempt: AttemptDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert claim_attempt(attempt, "101").run == 1
    monkeypatch.setattr(claim, "identity", lambda pid: {**identity(pid), "pid": pid + 1})
    assert claim_attempt(attempt, "101").run == 0
    monkeypatch.setattr(claim, "lives_here", lambda _: False)
    assert claim_attempt(attempt, "101").run == 2
