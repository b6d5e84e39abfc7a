"""Claim an attempt, so that at most one head executes it even if the scheduler delivers it twice.

``claim/`` is created by one rename of a directory that already has ``owner.json``. So exactly one of several heads
gets it. If the scheduler starts the same job again (same native id), that start is run 2, 3, …, and claims
``claim/run-<k>`` in the same way.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from typing import Any, Dict, Optional

from ffdl_batch.attempt.file_writer import sync_directory, write_cell
from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.attempt.reader import DamagedFile, read_object
from ffdl_batch.domain.file_format import require_known
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.host.processes import identity, lives_here


@dataclass(frozen=True)
class Claim:
    """The result of a claim."""

    run: int
    """From 1; 0 if another head has the attempt."""
    owner: Dict[str, Any]
    """The head that has the attempt; empty if the claim is damaged."""


def claim_attempt(attempt: AttemptDir, native_id: str) -> Claim:
    """Claim the attempt for `native_id`, or find out which head has it. Raises OSError, also NewerFormat."""
    run = 1
    while True:
        path = attempt.claim if run == 1 else os.path.join(attempt.claim, f"run-{run}")
        mine = {"native_id": native_id, "at": time.time(), "run": run, **identity(os.getpid())}
        owner = _owner(path)
        if owner is None and _rename_into_place(path, mine):
            return Claim(run, mine)
        owner = owner or _owner(path) or {}
        if all(owner.get(key) == mine[key] for key in ("native_id", "pid", "host", "start_ticks", "boot_id")):
            return Claim(run, mine)  # the rename succeeded before, but its reply was lost or a later step failed
        if owner.get("native_id") != native_id or lives_here(owner):
            return Claim(0, owner)
        run += 1


def _owner(path: str) -> Optional[Dict[str, Any]]:
    """Return the owner of the claim; None if it does not exist, an empty owner if it is damaged and the owner is
    unknown."""
    name = os.path.join(path, "owner.json")
    try:
        owner = read_object(name)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except DamagedFile:
        return {}
    require_known(owner, name)
    return owner


def _rename_into_place(path: str, owner: Dict[str, Any]) -> bool:
    host, pid = os.uname().nodename, os.getpid()
    temporary = os.path.join(os.path.dirname(path), f".claim-{host}-{pid}-{time.monotonic_ns()}")
    try:
        os.mkdir(temporary, 0o700)
        write_cell(os.path.join(temporary, "owner.json"), json.loads(json.dumps(owner)))
        os.rename(temporary, path)
    except OSError:
        shutil.rmtree(temporary, ignore_errors=True)
        if not os.path.isdir(path):
            raise
        return False
    sync_directory(os.path.dirname(path))
    return True
