"""A slurmdbd that is away is left alone, and is no word about slurmctld."""

from __future__ import annotations

import pytest

from ffdl_batch.ports.scheduler import NotNow, SchedulerUnreachable
from ffdl_slurm.accounting import LONGEST_PAUSE_S, Accounting


class Clock:
    """A clock that stands still until a test moves it."""

    at = 0.0

    def __call__(self) -> float:
        return self.at


def fail(accounting: Accounting) -> None:
    with pytest.raises(NotNow, match="refused"), accounting.asking():
        raise SchedulerUnreachable("connection refused")


def test_it_is_asked_again_after_a_while_by_one() -> None:
    clock = Clock()
    accounting = Accounting(clock)
    fail(accounting)
    with pytest.raises(NotNow, match=r"did not answer a moment ago: connection refused"), accounting.asking():
        raise AssertionError("it was asked")
    clock.at += LONGEST_PAUSE_S
    with accounting.asking(), pytest.raises(NotNow), accounting.asking():
        raise AssertionError("a second one asked while the first was waiting for its answer")
    with accounting.asking():
        pass
    with accounting.asking():
        pass


def test_a_defect_of_ours_is_no_outage() -> None:
    accounting = Accounting(Clock())
    with pytest.raises(ZeroDivisionError), accounting.asking():
        raise ZeroDivisionError
    with accounting.asking():
        pass
