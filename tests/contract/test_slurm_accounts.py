"""What Slurm's accounting says of the starts of attempts, and what is concluded where it says nothing or nonsense."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ffdl_batch.domain.backend_facts import AccountedRun
from ffdl_batch.domain.job.job import Token
from ffdl_batch.domain.outcome.observation import NativeId
from ffdl_batch.domain.scheduler_errors import AccountingUnreachable
from ffdl_batch.ports.capabilities import HasAccounting
from tests.contract.scheduler_harness import FakeSlurmHarness

Ended = tuple[NativeId, Token]
GPU2 = "billing=4,cpu=4,gres/gpu=2,node=1"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeSlurmHarness]:
    with FakeSlurmHarness(tmp_path_factory.mktemp("world")) as harness:
        yield harness


@pytest.fixture
def world(shared: FakeSlurmHarness) -> FakeSlurmHarness:
    """The fake cluster, without accounting."""
    (shared.state / "accounting").unlink(missing_ok=True)
    shared.restart()
    return shared


@pytest.fixture(scope="module")
def ended(shared: FakeSlurmHarness) -> Ended:
    """A job of which the accounting says that it had two GPUs for a minute."""
    native, plan = shared.submit("true")
    shared.await_end(native)
    shared.account(native, start=1000, end=1060, tres=GPU2)
    return native, plan.token


def ask(world: FakeSlurmHarness, native: NativeId, token: Token) -> list[AccountedRun] | None:
    scheduler = world.scheduler
    assert isinstance(scheduler, HasAccounting)
    found = scheduler.accounted_runs({native: token})
    return None if found is None else list(found.get(native, ()))


def test_slurm_accounting_returns_runs_of_matching_token_only(world: FakeSlurmHarness, ended: Ended) -> None:
    world.keep_accounts()
    native, token = ended
    assert ask(world, native, token) == [AccountedRun(60.0, 2.0, 4.0, is_over=True)]
    assert ask(world, native, Token("training-000000009-1")) == []


def test_slurm_accounting_returns_none_without_accounting_and_empty_for_unknown_job(
    world: FakeSlurmHarness, ended: Ended
) -> None:
    native, token = ended
    assert ask(world, native, token) is None
    world.keep_accounts()
    assert isinstance(world.scheduler, HasAccounting)
    assert world.scheduler.accounted_runs({NativeId("4242"): token}) == {}
    assert world.scheduler.accounted_runs({}) == {}


def test_slurm_accounting_raises_unreachable_when_sacct_output_is_unusable(
    world: FakeSlurmHarness, ended: Ended
) -> None:
    world.keep_accounts()
    native, token = ended
    for fault in ("down", "cut", "garbage", "binary", "empty"):
        world.restart()  # after a failure it would not be asked for a while
        world.spoil("sacct", fault)
        with pytest.raises(AccountingUnreachable):
            ask(world, native, token)


def test_slurm_accounting_returns_known_jobs_when_other_ids_are_invalid(world: FakeSlurmHarness, ended: Ended) -> None:
    world.keep_accounts()
    native, token = ended
    assert isinstance(world.scheduler, HasAccounting)
    wanted = {native: token, NativeId("0"): Token("a"), NativeId("4294967295"): Token("b")}
    assert set(world.scheduler.accounted_runs(wanted) or ()) == {native}
