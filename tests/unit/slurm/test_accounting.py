"""A slurmdbd that is away is left alone, and is no word about slurmctld."""

from __future__ import annotations

import pytest

from ffdl_batch.ports.capabilities import AccountingOutage
from ffdl_batch.ports.scheduler import AccountingUnreachable, NotNow, SchedulerUnreachable
from ffdl_slurm.accounting import LONGEST_PAUSE_S, WANTED_S, Accounting


class Clock:
    """A clock that stands still until a test moves it."""

    at = 0.0

    def __call__(self) -> float:
        return self.at


def fail(accounting: Accounting, why: str = "connection refused") -> None:
    with pytest.raises(NotNow, match=why), accounting.asking():
        raise SchedulerUnreachable(why)


def test_accounting_is_queried_again_by_one_caller_after_pause() -> None:
    clock = Clock()
    accounting = Accounting(clock)
    fail(accounting)
    with pytest.raises(NotNow, match=r"the accounting does not answer: connection refused"), accounting.asking():
        raise AssertionError("it was asked")
    clock.at += LONGEST_PAUSE_S
    with accounting.asking(), pytest.raises(NotNow), accounting.asking():
        raise AssertionError("a second one asked while the first was waiting for its answer")
    with accounting.asking():
        pass
    with accounting.asking():
        pass


def test_accounting_records_no_outage_for_internal_error() -> None:
    accounting = Accounting(Clock())
    with pytest.raises(ZeroDivisionError), accounting.asking():
        raise ZeroDivisionError
    with accounting.asking():
        pass


def test_accounting_reports_outage_only_while_queries_are_recent() -> None:
    clock = Clock()
    accounting = Accounting(clock)
    clock.at = 1000.0
    assert accounting.outage() is None
    fail(accounting)
    clock.at += 100
    told = accounting.outage()
    assert told == AccountingOutage(100.0, "connection refused", 0.0)
    clock.at += WANTED_S
    assert accounting.outage() is None
    fail(accounting)
    told = accounting.outage()
    assert told is not None and told.for_s == 100 + WANTED_S and 0 < told.again_in_s <= LONGEST_PAUSE_S
    clock.at += 1
    with pytest.raises(AccountingUnreachable) as left_alone, accounting.asking():
        raise AssertionError("it was asked")
    assert left_alone.value.again_in_s == pytest.approx(told.again_in_s - 1)
    clock.at += LONGEST_PAUSE_S
    with accounting.asking():
        pass
    assert accounting.outage() is None


def test_accounting_logs_few_outage_warnings_and_one_recovery(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    accounting = Accounting(clock)
    for _ in range(240):  # four minutes, somebody asks each second
        clock.at += 1
        with pytest.raises(NotNow), accounting.asking():
            raise SchedulerUnreachable(f"sacct: error: slurm_persist_conn_open: ctl:6819 (pid {clock.at:.0f})")
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    assert "does not answer" in caplog.messages[0] and "has not answered for 1" in caplog.messages[1]
    clock.at += 2 * LONGEST_PAUSE_S
    fail(accounting, "no route to host")
    assert "no route to host" in caplog.messages[-1] and len(caplog.messages) == 3
    clock.at += 2 * LONGEST_PAUSE_S
    for _ in range(3):
        with accounting.asking():
            pass
    assert [text for text in caplog.messages if "answers again" in text] == [
        "the accounting answers again, after 479 s"
    ]
    assert len(caplog.messages) == 4
