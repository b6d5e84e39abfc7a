"""Connect a learner's output to its log by a pipe and a process that reads it.

That process has a session of its own, so it outlives learner and controller, and of the scheduler's signals only KILL
ends it. The controller keeps the reading end of the pipe open. So a learner survives the end of the process that reads
its output, and a new one continues.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import time
from typing import List, Optional, Tuple

from ffdl_batch.controller.own_program import module_argv
from ffdl_batch.domain.launch.limits import LogLimits
from ffdl_batch.host.fast_dataclass import dataclass

WRITER_MARK = "FFDL_LOG_OF"
"""Variable in the environment of the process, so that the next run of the attempt can wait for its end."""
PIPE_BYTES = 256 * 1024
_F_SETPIPE_SZ = 1031
"""fcntl(2). Python has the name since 3.10."""
WAIT_S, HURRY_S, AGAIN_S = 1.0, 10.0, 1.0
"""Seconds to wait for the end of the output after the learner has ended, then for writing the rest (a file server may
pause), and before a failed process is started again."""


@dataclass(frozen=True)
class LogPlace:
    """Where and how a learner's log is written."""

    attempt_dir: str
    learner_id: int
    limits: LogLimits
    mark: str
    """Value of WRITER_MARK for its writer."""
    pipe: str = ""
    """Named pipe for the output of a learner in another container; "" means an anonymous pipe."""


def _open_pipe(path: str) -> Tuple[int, int]:
    """Return both ends of a named pipe. Raises OSError."""
    reading = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # the other end is not open yet
    try:
        writing = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    except BaseException:
        os.close(reading)
        raise
    os.set_blocking(reading, True)
    return reading, writing


class Output:
    """The output of one learner. Times are of the monotonic clock, since no time limit of the learner is involved."""

    def __init__(self, place: LogPlace, umask: int = -1) -> None:
        """Create the log with `umask` (-1 = this process's). Raises OSError."""
        self._place, self._umask = place, umask
        self._read, self.write_end = _open_pipe(place.pipe) if place.pipe else os.pipe2(os.O_CLOEXEC)
        with contextlib.suppress(OSError):  # the user has too many large pipes: a small one is sufficient
            fcntl.fcntl(self.write_end, _F_SETPIPE_SZ, PIPE_BYTES)
        self._control = -1
        self._writer: Optional["subprocess.Popen[bytes]"] = None
        self._started_at = 0.0
        self._ending_at: Optional[float] = None
        self._was_replaced = False
        try:
            self._start()
        except BaseException:
            self.release()
            os.close(self._read)
            raise

    def _start(self) -> None:
        limits = self._place.limits
        inside, control = os.pipe2(os.O_CLOEXEC)
        numbers = (self._place.learner_id, limits.file_bytes, limits.files, limits.bytes_per_s, inside)
        env = {**os.environ, WRITER_MARK: self._place.mark}
        argv: List[str] = [*module_argv("ffdl_batch.controller.logs.log_writer"), self._place.attempt_dir]
        try:
            self._writer = subprocess.Popen(
                [*argv, *map(str, numbers)],
                env=env,
                cwd="/",
                stdin=self._read,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
                umask=self._umask,
                pass_fds=(inside,),
            )
        except BaseException:
            os.close(control)
            raise
        finally:
            os.close(inside)
        if self._control >= 0:
            os.close(self._control)
        self._control, self._started_at = control, time.monotonic()

    def release(self) -> None:
        """Close the writing end, after the learner was started or could not be started."""
        if self.write_end >= 0:
            os.close(self.write_end)
            self.write_end = -1

    def mind(self) -> None:
        """Start the log writer again if it was killed while the learner runs."""
        now = time.monotonic()
        if self._writer is not None and self._writer.poll() is not None and now - self._started_at > AGAIN_S:
            with contextlib.suppress(OSError):
                self._start()

    def has_ended(self, *, at_once: bool = False) -> bool:
        """Return whether the log is complete, or waiting for it has ended, after the learner has ended.

        Processes that left its session may keep the output open for ever. With `at_once`, nothing more may be written.
        """
        writer, now = self._writer, time.monotonic()
        if writer is None:
            return True
        if self._ending_at is None:
            self._ending_at = now
        if writer.poll() not in (None, 0) and not at_once and not self._was_replaced:
            # It was killed, perhaps for memory, and the pipe still has what it had not read.
            self._was_replaced = True
            with contextlib.suppress(OSError):
                self._start()
                return False
        if writer.poll() is None:
            if at_once or now - self._ending_at > WAIT_S + HURRY_S:
                writer.kill()
                writer.poll()
            elif now - self._ending_at > WAIT_S and self._control >= 0:
                self._hurry()
                return False
            else:
                return False
        self._close()
        return True

    def _hurry(self) -> None:
        with contextlib.suppress(OSError):
            os.write(self._control, b"!")
        os.close(self._control)
        self._control = -1

    def _close(self) -> None:
        for descriptor in (self._read, self._control):
            if descriptor >= 0:
                os.close(descriptor)
        self._writer, self._read, self._control = None, -1, -1
