"""Read requests to a running attempt from ``control.json``, and find out whether a newer run was claimed."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Mapping, Optional

from ffdl_batch.attempt.layout import AttemptDir, JobDir
from ffdl_batch.attempt.reader import find_object
from ffdl_batch.domain.file_format import FORMAT
from ffdl_batch.domain.launch.launch_file import LaunchFile
from ffdl_batch.domain.outcome.controller_events import AbandonMark
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.host.processes import boot_id

RUN = "FFDL_RUN"
"""Variable with the number of the attempt's run, from 1. The head sets it."""
HALT, CANCEL = "halt", "cancel"


@dataclass(frozen=True)
class Control:
    """The content of ``control.json``, which the daemon writes and controllers obey."""

    attempt: int = 0
    """Number of the job's newest attempt; 0 if it is not known."""
    requested_action: str = ""
    """The owner's request: "", halt or cancel."""
    drill: str = ""
    """The event that a drill simulates; see :data:`ffdl_batch.domain.outcome.continuation.SIMULATED`."""
    run: int = 0
    """The run that the drill is simulated on: the scheduler may start the same attempt again."""
    abandon_mark: Optional[AbandonMark] = None
    """The run that the daemon abandoned, with all earlier ones, because its controllers gave no sign of life."""
    learners: Optional[int] = None
    """Number of remaining learners, which are those with the lowest numbers; None = all. Nodes without one of them are
    released."""
    format: int = FORMAT

    def requests_nothing(self, attempt: int) -> bool:
        """Return whether the cell requests nothing from the controllers of this attempt, as at its start."""
        return self.attempt <= attempt and replace(self, attempt=0) == Control()


def read_control(attempt: AttemptDir) -> Control:
    """Return the content of the cell. A missing or damaged cell requests nothing. Raises OSError.

    Unknown values of a newer format are ignored, so that a new cell does not end learners.
    """
    cell = find_object(attempt.control, below=attempt.path)
    number, request, drill, run, learners, found = (
        cell.get(name) for name in ("attempt", "requested_action", "drill", "run", "learners", "format")
    )
    return Control(
        number if isinstance(number, int) else 0,
        request if request in (HALT, CANCEL) else "",
        drill if isinstance(drill, str) else "",
        run if isinstance(run, int) else 0,
        _abandoned_run(cell.get("abandon_mark")),
        learners if isinstance(learners, int) and learners > 0 else None,
        found if isinstance(found, int) else 1,
    )


def _abandoned_run(mark: object) -> Optional[AbandonMark]:
    run = mark.get("run") if isinstance(mark, dict) else None
    return AbandonMark(run) if isinstance(run, int) else None


def own_run(environ: Mapping[str, str]) -> int:
    """Return the run of the attempt to which this controller belongs."""
    text = environ.get(RUN, "")
    return int(text) if text.isdigit() and int(text) else 1


def count_restarts(launch: LaunchFile, environ: Mapping[str, str], run: int) -> int:
    """Return how often the attempt was started again before its `run`: the scheduler's count if it has one."""
    text = environ.get(launch.host.restart_count, "") if launch.host.restart_count else ""
    return int(text) if text.isdigit() else run - 1


def newer_run(launch: LaunchFile, run: int) -> int:
    """Return the newest claimed run after `run` that excludes it; 0 if there is none.

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
