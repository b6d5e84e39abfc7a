"""Which fault class a task ends with if it could not read some files."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ffdl_batch.domain.data.staging_protocol import FaultClass
from ffdl_batch.staging.faults import Fault
from ffdl_batch.staging.reporter import Reporter
from ffdl_batch.staging.run_context import UnreadableFiles

MINE, STORES = FaultClass.UNREADABLE, FaultClass.CREDENTIALS
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
    ("denied", "errors", "kind"),
    [
        (MINE, (DENIED,), FaultClass.UNREADABLE),
        (MINE, (DENIED, DENIED, DENIED, DENIED), FaultClass.UNREADABLE),
        (MINE, (FAULTY,), FaultClass.REFUSED),
        (MINE, (DENIED, STALE), FaultClass.REFUSED),
        (MINE, (FAULTY, DENIED), FaultClass.REFUSED),
        (STORES, (DENIED,), FaultClass.CREDENTIALS),
        (STORES, (FAULTY, DENIED), FaultClass.REFUSED),
    ],
)
def test_unreadable_files_are_fault_of_user_only_if_own_files_deny_access(
    reporter: Reporter, denied: FaultClass, errors: tuple[int, ...], kind: FaultClass
) -> None:
    files = UnreadableFiles(reporter, denied)
    add(files, *errors)
    with pytest.raises(Fault) as caught:
        files.require_none("are stored")
    assert caught.value.kind is kind


@pytest.mark.parametrize(("denied", "kind"), [(MINE, FaultClass.UNREADABLE), (STORES, FaultClass.CREDENTIALS)])
def test_unreadable_files_forgets_errors_of_earlier_try(
    reporter: Reporter, denied: FaultClass, kind: FaultClass
) -> None:
    files = UnreadableFiles(reporter, denied)
    add(files, FAULTY)
    files.forget()
    files.require_none("are stored")
    add(files, DENIED)
    with pytest.raises(Fault) as caught:
        files.require_none("are stored")
    assert caught.value.kind is kind
