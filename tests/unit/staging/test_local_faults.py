"""What the staging program reports about files of this machine that it may not use."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from ffdl_batch.domain.data.staging_protocol import FaultClass
from ffdl_batch.staging.faults import local_fault


@pytest.mark.usefixtures("bound_by_modes", "joined_later")
@pytest.mark.parametrize("name", ["cache", "cache/entry/file"])
def test_local_fault_names_own_closed_directory_and_chmod(tmp_path: Path, name: str) -> None:
    """No group helps here, so the daemon's age is not blamed, and no administrator is named."""
    closed, path = tmp_path / "cache", tmp_path / name
    closed.mkdir(0)
    fault = local_fault(PermissionError(errno.EACCES, "Permission denied"), str(path))
    said = f"{path} on this machine: Permission denied; you own {closed}, and it has mode 0000; chmod u+rwx {closed}"
    assert (fault.kind, fault.sentence()) == (FaultClass.REFUSED, said)


@pytest.mark.parametrize(
    ("error", "kind", "cure"),
    [
        (PermissionError(errno.EPERM, "Operation not permitted"), FaultClass.REFUSED, "administrators"),
        (OSError(errno.ENOSPC, "No space left on device"), FaultClass.FULL, "free some space in {}, or request more"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), FaultClass.FULL, "free some space in {}, or request more there"),
        (
            OSError(errno.EROFS, "Read-only file system"),
            FaultClass.REFUSED,
            "use another directory, or have it mounted",
        ),
    ],
)
def test_local_fault_has_cure_for_each_error(tmp_path: Path, error: OSError, kind: FaultClass, cure: str) -> None:
    fault = local_fault(error, str(tmp_path))
    assert (fault.kind, cure.format(tmp_path) in fault.sentence()) == (kind, True)


def test_local_fault_names_the_file_of_the_error(tmp_path: Path) -> None:
    error = OSError(errno.ENOSPC, "No space left on device", str(tmp_path / "state/journal"))
    fault = local_fault(error, "/elsewhere/file")
    assert fault.sentence().startswith(f"{tmp_path}/state/journal on this machine: No space left on device; free some")
    assert f"in {tmp_path}/state, or" in fault.sentence()
