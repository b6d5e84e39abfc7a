"""Write FfDL's phase files in $JOB_STATE_DIR: ``<phase>.start``, ``.start_time`` (ms), ``.exit`` (status as text)."""

from __future__ import annotations

import os
import re
import sys
import time
from typing import Callable, Optional

from ffdl_batch.attempt.file_writer import create_empty, touch, write_text
from ffdl_batch.attempt.reader import SMALL_BYTES, DamagedFile, find_text, read_head
from ffdl_batch.domain.outcome.controller_events import Phase

_STATUS = re.compile(r"-?\d{1,3}\n", re.ASCII)


class PhaseFailed(Exception):
    """A phase cannot be completed."""

    def __init__(self, code: str, message: str, fault_class: str = "") -> None:
        """`fault_class` is a value of :class:`~ffdl_batch.domain.data.staging_protocol.FaultClass` for a transfer."""
        super().__init__(message)
        self.code = code
        self.fault_class = fault_class


class Ended(Exception):
    """The job must end before its learners have started."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Fenced(Exception):
    """The learners were killed because they were not allowed to continue; the argument says why."""


class PhaseFiles:
    """The phase files of one attempt. FfDL's names are kept, because user code and collectors read them."""

    def __init__(self, state_dir: str) -> None:
        self.state_dir = state_dir

    def path(self, name: str) -> str:
        """Return the path of a file in the state directory."""
        return os.path.join(self.state_dir, name)

    def begin(self, phase: Phase) -> None:
        """Note that the phase starts. Raises OSError."""
        create_empty(self.path(f"{phase.value}.start"))
        write_text(self.path(f"{phase.value}.start_time"), f"{time.time_ns() // 1_000_000}\n", 0o644)

    def end(self, phase: Phase, status: int) -> None:
        """Note how the phase ended. Raises OSError."""
        write_text(self.path(f"{phase.value}.exit"), f"{status}\n", 0o644)

    def status(self, phase: Phase) -> Optional[int]:
        """Return how the phase ended in this attempt; None if it has not, or its file is damaged."""
        text = find_text(self.path(f"{phase.value}.exit"))
        return int(text) if _STATUS.fullmatch(text) else None

    def announce(self, training_id: str, first_learner: int) -> None:
        """Make what FfDL's scripts make before the command runs: the id's file and ``latest-log``. Raises OSError."""
        touch(self.path(training_id))
        logs = self.path("logs")
        if not os.path.lexists(logs):
            _link(f"../logs/learner-{first_learner}", logs)
        if not os.path.lexists(self.path("latest-log")):
            _link("logs/training-log.txt", self.path("latest-log"))

    def request_halt(self) -> None:
        """Make FfDL's ``halt`` file. Raises OSError."""
        touch(self.path("halt"))

    def began_path(self, learner_id: int) -> str:
        """Return the file that the learner's shell writes before the user's command, with its process id inside."""
        return self.path(f".began-{learner_id}")

    def began(self, learner_id: int) -> Optional[str]:
        """Return the pid in the file; "" if it has none yet (or the disk was full); None if the command was not
        reached.

        The files of the last start are removed before this start. So if the learner's shell recorded its end, or
        something else is in place of one of the two files, the command was reached. Raises OSError.
        """
        try:
            return read_head(self.began_path(learner_id), SMALL_BYTES).decode("ascii", "replace").strip()
        except DamagedFile:
            return ""
        except (FileNotFoundError, NotADirectoryError):
            is_left = os.path.lexists(self.ended_path(learner_id)) or not os.path.isdir(self.state_dir)
            return "" if is_left else None

    def ended_path(self, learner_id: int) -> str:
        """Return the file that the learner's shell writes after the user's command, with the exit status."""
        return self.path(f".ended-{learner_id}")

    def ended_status(self, learner_id: int) -> Optional[int]:
        """Return the status that the learner's shell noted; None if it noted none, or was killed by a signal: what
        killed the controller may have killed it too."""
        text = find_text(self.ended_path(learner_id))
        status = int(text) if _STATUS.fullmatch(text) else None
        return status if status is not None and 0 <= status <= 128 else None

    def ended_at(self, learner_id: int) -> Optional[float]:
        """Return when the shell noted that, by the file system's clock; None if it did not. Raises OSError."""
        try:
            return os.lstat(self.ended_path(learner_id)).st_mtime
        except (FileNotFoundError, NotADirectoryError):
            return None


def _link(target: str, path: str) -> None:
    try:
        os.symlink(target, path)
    except FileExistsError:  # another node's controller was faster
        return


def note(write: Callable[[], None]) -> None:
    """Write one of FfDL's files. An error is only printed, because the events have the same information."""
    try:
        write()
    except OSError as error:
        sys.stderr.write(f"ffdl-controller: {error}\n")
