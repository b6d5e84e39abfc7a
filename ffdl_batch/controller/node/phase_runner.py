"""Run the phases of a node: with their files and events, and again while the file system does not answer."""

from __future__ import annotations

import errno
import os
import time
from typing import Callable, TypeVar

from ffdl_batch.attempt.event_journal import Journal
from ffdl_batch.attempt.filesystem_retry import patiently
from ffdl_batch.attempt.phase_files import PhaseFailed, PhaseFiles, note
from ffdl_batch.controller.data.model_unpacking import ModelRefused
from ffdl_batch.controller.data.tree_copy import UnreadableSource
from ffdl_batch.controller.node.health_findings import HealthFindings
from ffdl_batch.domain.data.staging_protocol import UNREADABLE_CODE, FaultClass
from ffdl_batch.domain.launch.launch_file import LaunchFile
from ffdl_batch.domain.outcome.controller_events import EventKind, Phase
from ffdl_batch.host.permissions import with_denial

T = TypeVar("T")


class OutOfTime(Exception):
    """Storing has to end because the scheduler's KILL is near; the rest is a pending upload."""


class PhaseRunner:
    """Runs the phases of one node."""

    def __init__(self, launch: LaunchFile, phases: PhaseFiles, journal: Journal, health: HealthFindings) -> None:
        self._launch, self._phases, self._journal, self._health = launch, phases, journal, health

    def run(self, phase: Phase, work: Callable[[], None], code: str, *, last: bool = True) -> None:
        """Run one phase. With `last`, this node ends the phase for the whole job. Raises PhaseFailed."""
        status, reason, fault_class = 1, "", ""
        self._journal.append(EventKind.PHASE, phase=phase.value, status="started")
        try:
            note(lambda: self._phases.begin(phase))
            work()
            status = 0
        except PhaseFailed as failed:
            code, reason, fault_class = failed.code, str(failed), failed.fault_class
        except OutOfTime as error:
            code, reason = "", str(error)
        except (OSError, ModelRefused) as error:
            if isinstance(error, OSError) and error.errno and error.filename is None:  # as of write(2)
                error.filename = self._launch.attempt_dir
            reason = with_denial(f"{phase.value} on {os.uname().nodename}: {error}", error)
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                fault_class = FaultClass.FULL.value
            if isinstance(error, UnreadableSource) and phase in (Phase.STORE_RESULTS, Phase.STORE_LOGS):
                code, fault_class = UNREADABLE_CODE, FaultClass.UNREADABLE.value
        if last or status:
            note(lambda: self._phases.end(phase, status))
        self._journal.append(EventKind.PHASE, phase=phase.value, status="ended", exit=status)
        self._health.look()
        if status:
            raise PhaseFailed(code, reason, fault_class)

    def patiently(self, work: Callable[[], T], go_on: Callable[[], None], *, awaits_space: bool = False) -> T:
        """Do `work`, and retry while the file system does not answer. Raises OSError, and what `go_on` raises."""

        def pause(wait_s: float) -> None:
            time.sleep(wait_s)
            go_on()

        patience_s = self._launch.limits.fence_s
        return patiently(work, self._launch.attempt_dir, patience_s, pause, awaits_space=awaits_space)
