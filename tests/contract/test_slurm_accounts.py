"""What Slurm's accounting says of the starts of attempts, and what is concluded where it says nothing or nonsense."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ffdl_batch.domain.job import Token
from ffdl_batch.domain.observation import NativeId
from ffdl_batch.ports.accounts import AccountedRun, AccountsForRuns
from ffdl_batch.ports.scheduler import AccountingUnreachable
from tests.contract.scheduler_harness import FakeSlurmHarness

GPU2 = "billing=4,cpu=4,gres/gpu=2,node=1"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[FakeSlurmHarness]:
    """The fake cluster."""
    harness = FakeSlurmHarness(tmp_path)
    try:
        yield harness
    finally:
        harness.close()


def ask(world: FakeSlurmHarness, native: NativeId, token: Token) -> list[AccountedRun] | None:
    scheduler = world.scheduler
    assert isinstance(scheduler, AccountsForRuns)
    found = scheduler.accounted_runs({native: token})
    return None if found is None else list(found.get(native, ()))


def ended(world: FakeSlurmHarness) -> tuple[NativeId, Token]:
    """A job of which the accounting says that it had two GPUs for a minute."""
    native, plan = world.submit("true")
    world.await_end(native)
    world.account(native, start=1000, end=1060, tres=GPU2)
    return native, plan.token


def test_slurm_accounting_returns_runs_of_matching_token_only(world: FakeSlurmHarness) -> None:
    world.keep_accounts()
    native, token = ended(world)
    assert ask(world, native, token) == [AccountedRun(60.0, 2.0, 4.0, is_over=True)]
    assert ask(world, native, Token("training-000000009-1")) == []


def test_slurm_accounting_returns_none_without_accounting_and_empty_for_unknown_job(world: FakeSlurmHarness) -> None:
    native, token = ended(world)
    assert ask(world, native, token) is None
    world.keep_accounts()
    assert isinstance(world.scheduler, AccountsForRuns)
    assert world.scheduler.accounted_runs({NativeId("4242"): token}) == {}
    assert world.scheduler.accounted_runs({}) == {}


@pytest.mark.parametrize("fault", ["down", "cut", "garbage", "binary", "empty"])
def test_slurm_accounting_raises_unreachable_when_sacct_output_is_unusable(world: FakeSlurmHarness, fault: str) -> None:
    world.keep_accounts()
    native, token = ended(world)
    world.spoil("sacct", fault)
    with pytest.raises(AccountingUnreachable):
        ask(world, native, token)


def test_slurm_accounting_returns_known_jobs_when_other_ids_are_invalid(world: FakeSlurmHarness) -> None:
    world.keep_accounts()
    native, token = ended(world)
    assert isinstance(world.scheduler, AccountsForRuns)
    wanted = {native: token, NativeId("0"): Token("a"), NativeId("4294967295"): Token("b")}
    assert set(world.scheduler.accounted_runs(wanted) or ()) == {native}
