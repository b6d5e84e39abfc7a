"""Relay bytes between a session in a learner and the command that asked for it, until one of them ends."""

from __future__ import annotations

import json
import os
import select
import time
from typing import Any, Dict, List, Optional, Tuple

from ffdl_batch.controller.attach.session import Session
from ffdl_batch.controller.learner.agents import Agent, lives
from ffdl_batch.domain.launch.attach_protocol import (
    ERRORS,
    EXIT,
    INPUT,
    INPUT_END,
    OUTPUT,
    PIECE_BYTES,
    PING,
    REFUSED,
    SIGNAL,
    SILENCE_S,
    TAKEN,
    WINDOW,
    FrameError,
    FrameReader,
    encode_frame,
)
from ffdl_batch.host.descriptors import write_all


class PeerGone(Exception):
    """The other end has closed the connection."""


class Peer:
    """The connection to the command that waits."""

    def __init__(self, source: int = 0, target: int = 1) -> None:
        """`source` and `target` are descriptors."""
        self.source, self._target = source, target
        self._reader = FrameReader()
        self._received_at = time.monotonic()
        self._kept = []  # type: List[Tuple[str, bytes]]

    @property
    def has_frames(self) -> bool:
        """Return whether :meth:`frames` has frames to return again."""
        return bool(self._kept)

    def keep(self, frames: List[Tuple[str, bytes]]) -> None:
        """Let :meth:`frames` return these again."""
        self._kept = frames

    def frames(self) -> List[Tuple[str, bytes]]:
        """Return received frames without pings. Wait if there are none. Raises PeerGone, FrameError."""
        if self._kept:
            kept, self._kept = self._kept, []
            return kept
        data = os.read(self.source, 1 << 16)
        if not data:
            raise PeerGone
        self._received_at = time.monotonic()
        return [frame for frame in self._reader.feed(data) if frame[0] != PING]

    def check(self) -> None:
        """Raise PeerGone if nothing was received for too long."""
        if time.monotonic() - self._received_at > SILENCE_S:
            raise PeerGone

    def send(self, kind: str, payload: bytes = b"") -> None:
        """Send a frame. Raises PeerGone."""
        try:
            write_all(self._target, encode_frame(kind, payload))
        except OSError as error:
            raise PeerGone from error

    def send_object(self, kind: str, fields: Dict[str, Any]) -> None:
        """Send a frame with an object."""
        self.send(kind, json.dumps(fields).encode("ascii"))

    def refuse(self, message: str) -> None:
        """Report that nothing was done, and why."""
        self.send(REFUSED, message.encode("utf-8", "replace"))

    def end(self, status: int) -> None:
        """Report the exit status."""
        self.send_object(EXIT, {"status": status})


TURN_MS = 1000
LOOK_S = 1.0
"""Seconds between two checks whether the learner is alive."""
REST_S = 5.0
"""Seconds that the session's shell may take to end what it started, and the output to arrive."""
SWEEP_S = 30.0
"""Seconds that the session's shell may take to end what it started if the client has gone: three, and more on a busy
node. Processes that ignore signals and have left the session are ended by this shell alone."""
END_OF_TEXT = b"\x04"
SIGNALS = frozenset({"INT", "TERM", "HUP", "QUIT", "USR1", "USR2", "KILL"})


class Running:
    """One session, from its start to its end."""

    def __init__(self, session: Session, peer: Peer, agent: Agent) -> None:
        self._session, self._peer, self._agent = session, peer, agent
        self._look_at = time.monotonic() + LOOK_S
        self._waiting = b""
        self._input_ends = False
        self._status_line = b""
        self._ended_at: Optional[float] = None
        self._open = {session.input: OUTPUT} if session.output is None else {session.output: OUTPUT}
        if session.errors is not None:
            self._open[session.errors] = ERRORS
        self._input: Optional[int] = session.input

    def run(self) -> Optional[int]:
        """Run until the command ends. Return its exit status; None if the learner ended without one.

        Raises PeerGone if no process waits for the command any more. Then it has been ended.
        """
        try:
            while not self._is_done():
                if self._ended_at is None and not self._learner_lives():
                    self._read_status()  # the end of an interactive job's command ends the learner
                    if self._ended_at is None:
                        self._end()
                        return None
                self._turn()
                self._peer.check()
        except (PeerGone, FrameError) as error:
            self._end()
            raise PeerGone from error
        finally:
            self._session.let_go()
        word = self._status_line.strip().decode("ascii", "replace")
        return int(word) if word.isdigit() else None

    def _learner_lives(self) -> bool:
        """Return whether the learner is alive, as last checked by its agent, which ends with it."""
        now = time.monotonic()
        if now < self._look_at:
            return True
        self._look_at = now + LOOK_S
        return lives(self._agent)

    def _is_done(self) -> bool:
        if self._ended_at is None:
            return False
        if not self._open:
            return True
        if time.monotonic() - self._ended_at < REST_S:
            return False
        self._session.kill()  # a process still has the output open
        return True

    def _turn(self) -> None:
        if self._peer.has_frames:
            self._read()
        poll = select.poll()
        poll.register(self._peer.source, select.POLLIN)
        if self._ended_at is None:
            poll.register(self._session.status, select.POLLIN)
        wanted = dict.fromkeys(self._open, select.POLLIN)
        if self._input is not None and self._waiting:
            wanted[self._input] = wanted.get(self._input, 0) | select.POLLOUT
        for descriptor, events in wanted.items():
            poll.register(descriptor, events)
        for descriptor, events in poll.poll(TURN_MS if self._ended_at is None else 100):
            if descriptor == self._peer.source:
                self._read()
            elif descriptor == self._session.status:
                self._read_status()
            else:
                if events & select.POLLOUT:
                    self._give()
                if events & ~select.POLLOUT and descriptor in self._open:
                    self._pass_on(descriptor)

    def _read(self) -> None:
        for kind, payload in self._peer.frames():
            if kind == INPUT:
                self._waiting += payload
            elif kind == INPUT_END and self._session.has_terminal:
                self._waiting += END_OF_TEXT
            elif kind == INPUT_END:
                self._input_ends = True
            elif kind == SIGNAL and self._ended_at is None:
                name = payload.decode("ascii", "replace")
                if name in SIGNALS:
                    self._session.signal(name)
            elif kind == WINDOW and self._session.has_terminal:
                rows, columns = json.loads(payload)
                self._session.resize(int(rows), int(columns))
        self._give()

    def _give(self) -> None:
        """Pass on input as far as the command reads it. Drop it if the command no longer reads."""
        if self._input is None:
            return
        try:
            while self._waiting:
                count = os.write(self._input, self._waiting)
                self._waiting = self._waiting[count:]
                self._peer.send(TAKEN, str(count).encode("ascii"))
        except BlockingIOError:
            return
        except OSError:
            self._waiting, self._input_ends = b"", True
        if self._input_ends and not self._session.has_terminal:
            os.close(self._input)
            self._input = None

    def _read_status(self) -> None:
        try:
            data = os.read(self._session.status, 100)
        except BlockingIOError:
            return
        self._status_line += data
        if not data or self._status_line.endswith(b"\n"):
            self._ended_at = time.monotonic()

    def _pass_on(self, descriptor: int) -> None:
        try:
            data = os.read(descriptor, PIECE_BYTES)
        except BlockingIOError:
            return
        except OSError:  # EIO of a terminal whose other end is closed (tty_ioctl(4))
            data = b""
        if data:
            self._peer.send(self._open[descriptor], data)
        else:
            del self._open[descriptor]

    def _end(self) -> None:
        """End the command, because no process waits for it any more."""
        self._session.let_go()
        poll, end = select.poll(), time.monotonic() + SWEEP_S
        poll.register(self._session.status, select.POLLIN)
        while self._ended_at is None and time.monotonic() < end:
            if poll.poll(TURN_MS):
                self._read_status()
            for descriptor in list(self._open):
                _drain(descriptor)
        self._session.kill()


def _drain(descriptor: int) -> None:
    """Read and discard output, so that writers do not wait."""
    try:
        while os.read(descriptor, 1 << 16):
            continue
    except OSError:
        return


def collect(session: Session, limit_s: float) -> "tuple[Optional[int], bytes]":
    """Return the status and output of a session without input, within `limit_s` seconds."""
    os.close(session.input)
    output: List[bytes] = []
    open_, status, end = {session.output, session.errors, session.status}, b"", time.monotonic() + limit_s
    while open_ and time.monotonic() < end:
        poll = select.poll()
        for descriptor in open_:
            poll.register(descriptor or 0, select.POLLIN)
        for descriptor, _ in poll.poll(TURN_MS):
            try:
                data = os.read(descriptor, 1 << 16)
            except BlockingIOError:
                continue
            if not data:
                open_.discard(descriptor)
            elif descriptor == session.status:
                status += data
            elif descriptor == session.output:
                output.append(data)
    session.let_go()
    for one in (session.output, session.errors, session.status):
        os.close(one or 0)
    word = status.strip().decode("ascii", "replace")
    return (int(word) if word.isdigit() else None), b"".join(output)
