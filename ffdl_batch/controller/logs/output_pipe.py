"""A learner's output on its way into its log: a pipe, and the process at its end.

The process has a session of its own, so that it outlives learner and controller, and no signal of the scheduler's but
KILL ends it. While the controller lives it keeps the pipe's reading end, too: a learner does not die of the death of
who reads its output, and the next one reads on.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import time
from dataclasses import dataclass
from typing import List, Optional, Tuple

from ffdl_batch.controller.own_program import module_argv
from ffdl_batch.domain.launch.limits import LogLimits

WRITER_MARK = "FFDL_LOG_OF"
"""Variable that the process is started with, so that the next run of the attempt can wait for its end."""
PIPE_BYTES = 256 * 1024
_F_SETPIPE_SZ = 1031
"""fcntl(2); the name is in Python from 3.10 on."""
WAIT_S, HURRY_S, AGAIN_S = 1.0, 10.0, 1.0
"""How long it may take to the output's end when the learner has ended, then to write what is there (last words are
worth a pause of a file server's), and until a process that failed is started again."""


@dataclass(frozen=True)
class LogPlace:
    """Where a learner's log is, what it may take, and by which mark its writer is known. `pipe` is what a learner in
    another container prints into ("" = a pipe without a name)."""

    attempt_dir: str
    learner_id: int
    limits: LogLimits
    mark: str
    pipe: str = ""


def _open_pipe(path: str) -> Tuple[int, int]:
    """Both ends of a named pipe. Raises OSError."""
    reading = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # the other end is not there yet
    try:
        writing = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    except BaseException:
        os.close(reading)
        raise
    os.set_blocking(reading, True)
    return reading, writing


class Output:
    """Times are of the monotonic clock: nothing here is about how long a learner may run."""

    def __init__(self, place: LogPlace, umask: int = -1) -> None:
        """Create the log with `umask` (-1 = this process's). Raises OSError."""
        self._place, self._umask = place, umask
        self._read, self.write_end = _open_pipe(place.pipe) if place.pipe else os.pipe2(os.O_CLOEXEC)
        with contextlib.suppress(OSError):  # the user has too many large pipes: a small one will do
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
        """The learner has it (or will never have it): this process writes nothing into the pipe."""
        if self.write_end >= 0:
            os.close(self.write_end)
            self.write_end = -1

    def mind(self) -> None:
        """While the learner lives: start what reads again, where it was killed."""
        now = time.monotonic()
        if self._writer is not None and self._writer.poll() is not None and now - self._started_at > AGAIN_S:
            with contextlib.suppress(OSError):
                self._start()

    def has_ended(self, *, at_once: bool = False) -> bool:
        """The learner has ended: whether all that it printed is in the log, as far as that was waited for.

        What left its session may have the output open for ever. `at_once`: nothing may be written any more.
        """
        writer, now = self._writer, time.monotonic()
        if writer is None:
            return True
        if self._ending_at is None:
            self._ending_at = now
        if writer.poll() not in (None, 0) and not at_once and not self._was_replaced:
            # It was killed, for want of memory perhaps, and what it had not read is in the pipe still.
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
