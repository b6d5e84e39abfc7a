"""Which fault class a task ends with if it could not read some files."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ffdl_batch.domain.data.staging_protocol import Direction, FaultClass
from ffdl_batch.staging.faults import Fault
from ffdl_batch.staging.reporter import Reporter
from ffdl_batch.staging.run_context import UnreadableFiles

IN, OUT = Direction.IN, Direction.OUT
DENIED, FAULTY, STALE = errno.EACCES, errno.EIO, errno.ESTALE


@pytest.fixture
def reporter(tmp_path: Path) -> Iterator[Reporter]:
    """A reporter whose lines are not read."""
    with (tmp_path / "output").open("wb") as output:
        yield Reporter(output.fileno(), str, 0)


def add(files: UnreadableFiles, *errors: int) -> None:
    for number, error in enumerate(errors):
        files.add(f"f{number}", OSError(error, os.strerror(error)))


@pytest.mark.parametrize(
    ("direction", "errors", "kind"),
    [
        (OUT, (DENIED,), FaultClass.UNREADABLE),
        (OUT, (DENIED, DENIED, DENIED, DENIED), FaultClass.UNREADABLE),
        (OUT, (FAULTY,), FaultClass.REFUSED),
        (OUT, (DENIED, STALE), FaultClass.REFUSED),
        (OUT, (FAULTY, DENIED), FaultClass.REFUSED),
        (IN, (DENIED,), FaultClass.REFUSED),
        (IN, (FAULTY, DENIED), FaultClass.REFUSED),
    ],
)
def test_unreadable_files_are_fault_of_user_only_if_own_files_deny_access(
    reporter: Reporter, direction: Direction, errors: tuple[int, ...], kind: FaultClass
) -> None:
    files = UnreadableFiles(reporter, direction)
    add(files, *errors)
    with pytest.raises(Fault) as caught:
        files.require_none("are stored")
    assert caught.value.kind is kind


@pytest.mark.parametrize(("direction", "kind"), [(OUT, FaultClass.UNREADABLE), (IN, FaultClass.REFUSED)])
def test_unreadable_files_forgets_errors_of_earlier_try(
    reporter: Reporter, direction: Direction, kind: FaultClass
) -> None:
    files = UnreadableFiles(reporter, direction)
    add(files, FAULTY)
    files.forget()
    files.require_none("are stored")
    add(files, DENIED)
    with pytest.raises(Fault) as caught:
        files.require_none("are stored")
    assert caught.value.kind is kind
