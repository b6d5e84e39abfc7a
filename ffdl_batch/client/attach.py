"""Run commands inside running learners, with a helper process on the learner's node.

The helper is a process of this user: a child process, or one of the user's daemon behind a hub; with Slurm it is a job
step. When this process ends, the helper's input is closed, and the helper ends the processes that it started.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from codecs import getincrementaldecoder
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from typing import Any, NoReturn, Protocol

from ffdl_batch.client.errors import RequestRefused
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.job.views import Problem
from ffdl_batch.domain.launch.attach_protocol import (
    AGAIN,
    BEGIN,
    CREDIT_BYTES,
    ERRORS,
    EXIT,
    HELPER_END,
    INPUT,
    INPUT_END,
    OUTPUT,
    PIECE_BYTES,
    PING,
    PING_S,
    READY,
    REFUSED,
    RUN,
    SIGNAL,
    TAKEN,
    WINDOW,
    AttachPlan,
    FrameError,
    FrameReader,
    encode_frame,
)
from ffdl_batch.domain.terminal_text import printable
from ffdl_batch.host.descriptors import write_all
from ffdl_batch.host.fast_dataclass import dataclass

READY_S = 90.0
"""Maximum time for the start of a job step, also if the scheduler is busy."""
END_S = 15.0
"""Maximum time for the helper to end its processes."""
_FULL_S = 2.0
_LOOK_S = 1.0
"""Interval at which a helper that has not started looks whether it was interrupted."""


@dataclass(frozen=True, slots=True)
class AttachRequest:
    """A request to the helper."""

    argv: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    window: tuple[int, int] | None = None
    """Rows and columns of the command's terminal; None for no terminal."""
    do: str = RUN


class Link(Protocol):
    """A started helper. Both descriptors block."""

    source: int
    """The descriptor to read frames from."""
    target: int
    """The descriptor to write frames to."""

    def note_end(self, payload: bytes) -> None:
        """Take the frame HELPER_END."""
        ...

    def end_status(self) -> int | None:
        """Return the helper's exit status after the end of its output; None if it is not known."""
        ...

    def error_output(self) -> str:
        """Return the end of its standard error output."""
        ...

    def interrupt(self, *, can_write: bool) -> None:
        """Begin to end the helper, so that a thread that reads from it sees the end. `can_write` as for `close`."""
        ...

    def close(self, *, can_write: bool) -> None:
        """End the helper. If not `can_write`, another thread waits for it to read."""
        ...


class ChildProcess:
    """A helper that is a child of this process."""

    def __init__(self, plan: AttachPlan) -> None:
        """Start it. Raises RequestRefused if it cannot run here."""
        program = shutil.which(plan.argv[0])
        if obstacle := plan.obstacle(os.uname().nodename, program):
            _refuse(*obstacle, ExitCode.UNAVAILABLE)
        assert program is not None
        self._error_output = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the helper
        self._process = subprocess.Popen(
            [program, *plan.argv[1:]],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._error_output,
            env=plan.environment(os.environ),
            start_new_session=True,  # signals of the terminal must not end srun
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self.target, self.source = self._process.stdin.fileno(), self._process.stdout.fileno()

    def note_end(self, payload: bytes) -> None:
        """See :class:`Link`. No child sends this frame."""

    def end_status(self) -> int | None:
        """See :class:`Link`."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(END_S)
        return None

    def error_output(self) -> str:
        """See :class:`Link`."""
        self._error_output.seek(0)
        return self._error_output.read(1 << 16).decode("utf-8", "replace")

    def interrupt(self, *, can_write: bool) -> None:
        """See :class:`Link`."""
        assert self._process.stdin is not None
        if can_write:
            self._process.stdin.close()
        else:  # the helper no longer reads
            self._process.kill()

    def close(self, *, can_write: bool) -> None:
        """See :class:`Link`."""
        assert self._process.stdout is not None
        self.interrupt(can_write=can_write)
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._error_output.close()


class Helper:
    """A running helper. Use it as a context manager: the helper ends with the block."""

    def __init__(self, plan: AttachPlan, link: Link | None = None) -> None:
        """Start it as a child process, unless `link` has one. Raises RequestRefused if it cannot run here."""
        self.plan = plan
        self._link: Link = link or ChildProcess(plan)
        self._reader, self._frames = FrameReader(), deque[tuple[str, bytes]]()
        self._lock, self._over = threading.Lock(), threading.Event()
        threading.Thread(target=self._ping, name="ping", daemon=True).start()

    def __enter__(self) -> Helper:
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        can_write = self._lock.acquire(timeout=_FULL_S)
        self._link.close(can_write=can_write)
        if can_write:
            self._lock.release()

    def interrupt(self) -> None:
        """End the helper and its command, while another thread waits for them. That thread gets RequestRefused."""
        self._over.set()
        can_write = self._lock.acquire(timeout=_FULL_S)
        self._link.interrupt(can_write=can_write)
        if can_write:
            self._lock.release()

    @property
    def descriptor(self) -> int:
        """The descriptor that frames are read from. If it is readable, :meth:`take` does not wait."""
        return self._link.source

    def send(self, kind: str, payload: bytes = b"") -> None:
        """Send a frame. It is lost if the helper has ended; its last message has the reason."""
        data = encode_frame(kind, payload)
        with self._lock:
            if self._over.is_set():
                return
            try:
                write_all(self._link.target, data)
            except BrokenPipeError:
                return

    def begin(self, request: AttachRequest) -> dict[str, Any]:
        """Send the request and wait until the helper has found its learners. Raises RequestRefused."""
        body = {"do": request.do, "argv": list(request.argv), "env": dict(request.env), "window": request.window}
        self.send(BEGIN, json.dumps(body).encode("ascii"))
        end = time.monotonic() + READY_S
        while True:
            left_s = max(0.0, end - time.monotonic())
            if not self._frames and not _is_readable(self._link.source, min(left_s, _LOOK_S)):
                if self._over.is_set():
                    _refuse("the command was cancelled before it started")
                if left_s > _LOOK_S:
                    continue
                _refuse(
                    f"nothing can be started beside the learner within {READY_S:g} s{self._last_error_output()}",
                    "the scheduler may be busy or away; try again",
                    ExitCode.TRY_AGAIN,
                )
            for kind, payload in self.take():
                if kind == READY:
                    found = json.loads(payload)
                    return found if isinstance(found, dict) else {}

    @property
    def has_frames(self) -> bool:
        """Whether :meth:`take` has frames that were read before."""
        return bool(self._frames)

    def take(self) -> Iterator[tuple[str, bytes]]:
        """Yield the next frames, and wait if there are none. Frames that are not taken remain for the next call. Raises
        RequestRefused if the helper refuses, or has ended without a message."""
        if not self._frames:
            self._read()
        while self._frames:
            kind, payload = self._frames.popleft()
            if kind == REFUSED:
                self._stop(payload.decode("utf-8", "replace"))
            yield kind, payload

    def _stop(self, message: str) -> NoReturn:
        deadline = time.monotonic() + END_S
        while _is_readable(self._link.source, max(0.0, deadline - time.monotonic())) and self._receive():
            pass
        if self._link.end_status() == AGAIN:
            _refuse(message, "try again later; to see the job: ffdl show", ExitCode.TRY_AGAIN)
        _refuse(message)

    def _read(self) -> None:
        if not self._receive():
            self._link.end_status()
            _refuse(f"the connection to the learner broke off{self._last_error_output()}", "to see the job: ffdl show")

    def _receive(self) -> bool:
        """Read frames. Return whether the helper may send more. Raises RequestRefused."""
        data = os.read(self._link.source, 1 << 16)
        try:
            for kind, payload in self._reader.feed(data):
                if kind == HELPER_END:
                    self._link.note_end(payload)
                else:
                    self._frames.append((kind, payload))
        except FrameError as error:
            _refuse(f"the data from the learner's node are not the helper's: {error}")
        return bool(data)

    def _last_error_output(self) -> str:
        lines = [line.strip() for line in self._link.error_output().splitlines()]
        last = [line for line in lines if line][-3:]
        return f": {'; '.join(last)}" if last else ""

    def _ping(self) -> None:
        while not self._over.wait(PING_S):
            self.send(PING)


class Terminal:
    """The descriptors of this process for a command's input, output and errors."""

    source, target, errors = 0, 1, 2


def run(helper: Helper, request: AttachRequest, window: Callable[[], tuple[int, int]] | None = None) -> int:
    """Run the requested command with this process's standard streams. Return its exit status, or 128 + signal.

    The output of a user's command (RUN) is not filtered; that of ffdl's own commands is. The first INT is sent to the
    command, the second one ends the wait (KeyboardInterrupt). `window` returns the current size of the terminal.
    """
    helper.begin(request)
    return follow(helper, request, window)


def follow(helper: Helper, request: AttachRequest, window: Callable[[], tuple[int, int]] | None = None) -> int:
    """Run a command that the helper has begun; see :func:`run`."""
    with _Signals(helper, window) as signals:
        return _Pump(helper, signals, reads=request.do == RUN).run()


class _Signals:
    """Handlers of INT and WINCH while a command runs. Each signal wakes the poll."""

    def __init__(self, helper: Helper, window: Callable[[], tuple[int, int]] | None) -> None:
        self._helper, self._window = helper, window
        self.wake, self._write = os.pipe()
        os.set_blocking(self._write, False)
        os.set_blocking(self.wake, False)
        self._before: dict[signal.Signals, Any] = {}
        self._interrupts = 0

    def __enter__(self) -> _Signals:
        if self._window:
            self._before = {signal.SIGWINCH: signal.signal(signal.SIGWINCH, lambda *_: None)}
        else:
            self._before = {signal.SIGINT: signal.signal(signal.SIGINT, self._interrupt)}
        self._old = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(self._old)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.close(self.wake)
        os.close(self._write)

    def _interrupt(self, *_: object) -> None:
        """Raise at the second INT, because the other end may not read."""
        self._interrupts += 1
        if self._interrupts > 1:
            raise KeyboardInterrupt

    def handle(self) -> None:
        """Pass on the signals that arrived."""
        for number in os.read(self.wake, 64):
            if number == signal.SIGINT:
                self._helper.send(SIGNAL, b"INT")
            elif number == signal.SIGWINCH and self._window:
                self._helper.send(WINDOW, json.dumps(self._window()).encode("ascii"))


class _Pump:
    def __init__(self, helper: Helper, signals: _Signals, *, reads: bool) -> None:
        self._helper, self._signals, self._reads = helper, signals, reads
        self._shown = None if reads else {kind: getincrementaldecoder("utf-8")("replace") for kind in (OUTPUT, ERRORS)}
        self._credit = CREDIT_BYTES

    def run(self) -> int:
        while True:
            poll = select.poll()
            poll.register(self._helper.descriptor, select.POLLIN)
            poll.register(self._signals.wake, select.POLLIN)
            if self._reads and self._credit > 0:
                poll.register(Terminal.source, select.POLLIN)
            ready = {descriptor for descriptor, _ in poll.poll(0 if self._helper.has_frames else None)}
            if self._signals.wake in ready:
                self._signals.handle()
            if Terminal.source in ready:
                self._read_input()
            if self._helper.has_frames or self._helper.descriptor in ready:
                status = self._take()
                if status is not None:
                    return status

    def _read_input(self) -> None:
        try:
            data = os.read(Terminal.source, min(PIECE_BYTES, self._credit))
        except OSError:  # closed, or a lost terminal
            data = b""
        if data:
            self._credit -= len(data)
            self._helper.send(INPUT, data)
        else:
            self._reads = False
            self._helper.send(INPUT_END)

    def _take(self) -> int | None:
        for kind, payload in self._helper.take():
            if kind in (OUTPUT, ERRORS):
                data = payload if self._shown is None else printable(self._shown[kind].decode(payload)).encode()
                _write(Terminal.target if kind == OUTPUT else Terminal.errors, data)
            elif kind == TAKEN:
                self._credit += int(payload)
            elif kind == EXIT:
                return int(json.loads(payload)["status"])
        return None


def _write(descriptor: int, data: bytes) -> None:
    try:
        write_all(descriptor, data)
    except BrokenPipeError:
        raise
    except OSError as error:
        where = {Terminal.target: "standard output", Terminal.errors: "standard error"}.get(descriptor, "the output")
        _refuse(f"{where} cannot be written: {error.strerror}; the command was ended")


def _is_readable(descriptor: int, patience_s: float) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(patience_s * 1000))


def _refuse(message: str, cure: str = "", code: ExitCode = ExitCode.FAILED) -> NoReturn:
    raise RequestRefused(Problem("S101", message, int(code), cure=cure))
