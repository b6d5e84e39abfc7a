"""What the platform wants of a running attempt, as its controllers read it, and whether a newer run was claimed."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Mapping

from ffdl_batch.attempt.layout import AttemptDir, JobDir
from ffdl_batch.attempt.reader import find_object
from ffdl_batch.domain.file_format import FORMAT
from ffdl_batch.domain.launch.launch_file import LaunchFile
from ffdl_batch.host.processes import boot_id

RUN = "FFDL_RUN"
"""Variable in which the head says which run of the attempt it is (from 1)."""
HALT, CANCEL = "halt", "cancel"


@dataclass(frozen=True)
class Control:
    """The cell ``control.json``: the job's newest attempt (0 = not said), the owner's request ("" | halt | cancel), and
    which event a drill plays on which run ("" = none; see :data:`ffdl_batch.domain.outcome.continuation.PLAYED`), and
    which run
    the platform has given up (0 = none), with those before it."""

    attempt: int = 0
    requested_action: str = ""
    drill: str = ""
    run: int = 0
    format: int = FORMAT
    given_up: int = 0


def read_control(attempt: AttemptDir) -> Control:
    """Return the content of the cell. A missing or damaged cell requests nothing. Raises OSError.

    Unknown values of a newer format are ignored, so that a new cell does not end learners.
    """
    cell = find_object(attempt.control, below=attempt.path)
    number, request, drill, run, found = (
        cell.get(name) for name in ("attempt", "requested_action", "drill", "run", "format")
    )
    return Control(
        number if isinstance(number, int) else 0,
        request if request in (HALT, CANCEL) else "",
        drill if isinstance(drill, str) else "",
        run if isinstance(run, int) else 0,
        found if isinstance(found, int) else 1,
        _run_given_up(cell.get("given_up")),
    )


def _run_given_up(mark: object) -> int:
    run = mark.get("run") if isinstance(mark, dict) else 0
    return run if isinstance(run, int) else 0


def own_run(environ: Mapping[str, str]) -> int:
    """Which run of the attempt this controller belongs to."""
    text = environ.get(RUN, "")
    return int(text) if text.isdigit() and int(text) else 1


def count_restarts(launch: LaunchFile, environ: Mapping[str, str], run: int) -> int:
    """Return how often the attempt was started again before its `run`: the scheduler's count if it has one."""
    text = environ.get(launch.host.restart_count, "") if launch.host.restart_count else ""
    return int(text) if text.isdigit() else run - 1


def newer_run(launch: LaunchFile, run: int) -> int:
    """The newest claimed run after `run` that does not get along with it; 0 = none.

    A head that starts no step adopts or ends the node controller that it finds on its own machine. Raises OSError.
    """
    attempt = AttemptDir(launch.attempt_dir)
    newest = run
    while os.path.isdir(attempt.run_claim(newest + 1)):
        newest += 1
    if newest == run:
        return 0
    owner = find_object(os.path.join(attempt.run_claim(newest), "owner.json"), below=attempt.path)
    here = owner.get("host") == os.uname().nodename and owner.get("boot_id") == boot_id()
    return 0 if here and not launch.step else newest


def newer_attempt(launch: LaunchFile) -> int:
    """Return the number of the newest later attempt that was claimed; 0 if none was.

    Only pods that see the job's directory in a claim look: there is no daemon that writes into it, and a pod on a node
    that does not answer gets no message from the API server. Raises OSError.
    """
    if launch.pod is None or launch.pod.apart:
        return 0
    numbers = [name.rpartition("-")[2] for name in os.listdir(launch.job_dir) if name.startswith("attempt-")]
    later = sorted((int(number) for number in numbers if number.isdecimal()), reverse=True)
    job = JobDir(launch.job_dir)
    return next((n for n in later if n > launch.attempt and os.path.isdir(job.attempt(n).claim)), 0)
