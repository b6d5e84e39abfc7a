"""Carry TCP connections over one pair of pipes, for `ffdl port-forward`.

The learner's python3 runs the same source, so it imports the standard library only, and runs on Python 3.7. A frame is
a header and its data. Each side sends at most WINDOW bytes of a connection that the other side has not written to its
socket, so memory is bounded, and a connection that is not read does not delay the others.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import sys
from collections.abc import Callable, Iterator

OPEN, DATA, END, ABORT, WRITTEN = b"O", b"D", b"E", b"X", b"W"
"""END: no more data in this direction. ABORT: the connection is closed; the data is the reason, or empty."""
WINDOW = 1 << 16
MOST = 64
"""Maximum number of connections."""
_PIECE = 1 << 14
_HEAD = struct.Struct(">cII")
_CONNECT_S = 2.0


class Stream:
    """One connection. It reads until the end of its input, and writes until the other side has sent END."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.socket = connection
        self.credit = WINDOW
        self.unsent = bytearray()
        self.reads = True
        self.ends = False
        """Whether the output ends after `unsent`."""
        self.writes = True

    @property
    def events(self) -> int:
        """What to wait for, as in poll(2)."""
        return (select.POLLIN if self.reads and self.credit else 0) | (select.POLLOUT if self.unsent else 0)


class Streams:
    """The connections of one side, by number."""

    def __init__(
        self,
        send: Callable[[bytes], None],
        dial: Callable[[], socket.socket] | None = None,
        report: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`send` takes frames for the other side, `dial` connects if that side asks for a connection, and `report` gets
        the reasons why that side closed one."""
        self._send, self._dial, self._report = send, dial, report
        self._streams: dict[int, Stream] = {}
        self._rest = bytearray()
        self._last = 0

    def __len__(self) -> int:
        return len(self._streams)

    def accept(self, connection: socket.socket) -> None:
        """Ask the other side to connect, and join the connections."""
        self._last += 1
        self._streams[self._last] = Stream(connection)
        self._put(OPEN, self._last)

    def register(self, poll: select.poll) -> dict[int, int]:
        """Register the sockets that wait for something. Return their numbers by descriptor."""
        found = {}
        for number, stream in self._streams.items():
            if stream.events:
                poll.register(stream.socket, stream.events)
                found[stream.socket.fileno()] = number
        return found

    def serve(self, number: int, events: int) -> None:
        """Read and write a socket that is ready."""
        stream = self._streams.get(number)
        if stream is None:
            return
        try:
            if stream.unsent and events & ~select.POLLIN:
                self._write(number, stream)
            if stream.reads and stream.credit and events & ~select.POLLOUT:
                self._read(number, stream)
        except BlockingIOError:
            return
        except OSError:
            self._put(ABORT, number)
            self._drop(number)

    def feed(self, data: bytes) -> None:
        """Take bytes from the other side. Raises ValueError if they are not frames of this protocol."""
        self._rest += data
        for kind, number, payload in self._frames():
            stream = self._streams.get(number)
            if kind == OPEN and stream is None and self._dial:
                self._connect(number)
            elif stream is None:
                continue  # this side has closed it
            elif kind == DATA and len(stream.unsent) + len(payload) <= WINDOW:
                stream.unsent += payload
                self.serve(number, select.POLLOUT)
            elif kind == WRITTEN and stream.credit + int.from_bytes(payload, "big") <= WINDOW:
                stream.credit += int.from_bytes(payload, "big")
            elif kind == END:
                stream.ends = True
                self._finish(number, stream)
            elif kind == ABORT:
                if payload:
                    self._report(payload.decode("utf-8", "replace"))
                self._drop(number)
            else:
                raise ValueError(f"unexpected frame {kind!r}")

    def _frames(self) -> Iterator[tuple[bytes, int, bytes]]:
        while len(self._rest) >= _HEAD.size:
            kind, number, size = _HEAD.unpack_from(self._rest)
            if size > _PIECE:
                raise ValueError(f"a frame of {size} bytes")
            end = _HEAD.size + size
            if len(self._rest) < end:
                return
            payload = bytes(self._rest[_HEAD.size : end])
            del self._rest[:end]
            yield kind, number, payload

    def _put(self, kind: bytes, number: int, payload: bytes = b"") -> None:
        self._send(_HEAD.pack(kind, number, len(payload)) + payload)

    def _connect(self, number: int) -> None:
        assert self._dial is not None
        if len(self) >= MOST:
            self._put(ABORT, number, b"too many connections")
            return
        try:
            self._streams[number] = Stream(self._dial())
        except OSError as error:
            self._put(ABORT, number, str(error.strerror or error).encode()[:_PIECE])

    def _write(self, number: int, stream: Stream) -> None:
        count = stream.socket.send(stream.unsent)
        del stream.unsent[:count]
        self._put(WRITTEN, number, count.to_bytes(4, "big"))
        self._finish(number, stream)

    def _read(self, number: int, stream: Stream) -> None:
        data = stream.socket.recv(min(_PIECE, stream.credit))
        stream.credit -= len(data)
        if data:
            self._put(DATA, number, data)
        else:
            stream.reads = False
            self._put(END, number)
            self._finish(number, stream)

    def _finish(self, number: int, stream: Stream) -> None:
        """End the output if all is written, and close the connection if both directions have ended."""
        if stream.ends and stream.writes and not stream.unsent:
            stream.writes = False
            with contextlib.suppress(OSError):  # the peer has closed it; reading shows that
                stream.socket.shutdown(socket.SHUT_WR)
        if not stream.writes and not stream.reads:
            self._drop(number)

    def _drop(self, number: int) -> None:
        self._streams.pop(number).socket.close()


def serve_learner(port: int) -> None:
    """In the learner, connect to a local port for each connection of the other side, until that side ends."""

    def dial() -> socket.socket:
        try:
            return socket.create_connection(("127.0.0.1", port), _CONNECT_S)
        except ConnectionRefusedError:
            with contextlib.suppress(OSError):
                return socket.create_connection(("::1", port), _CONNECT_S)
            raise

    def send(data: bytes) -> None:
        while data:
            data = data[os.write(1, data) :]

    streams = Streams(send, dial)
    while True:
        poll = select.poll()
        poll.register(0, select.POLLIN)
        numbers = streams.register(poll)
        for descriptor, events in poll.poll():
            if descriptor:
                streams.serve(numbers[descriptor], events)
                continue
            data = os.read(0, 1 << 16)
            if not data:
                return
            streams.feed(data)


if __name__ == "__main__":
    serve_learner(int(sys.argv[1]))
