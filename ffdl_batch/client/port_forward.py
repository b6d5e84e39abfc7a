"""Forward a TCP port of this machine to a port of a running learner, through a helper beside it.

In the learner, python3 runs the source of :mod:`ffdl_batch.client.port_streams`. Only users who may run commands in the
learner can therefore forward its ports. Programs of other users on this machine can reach the local port, so their
connections are refused.
"""

from __future__ import annotations

import json
import os
import select
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING

from ffdl_batch.client import port_streams
from ffdl_batch.client.attach import AttachRequest
from ffdl_batch.client.errors import RequestRefused
from ffdl_batch.client.port_streams import MOST, Streams
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.job.views import Problem
from ffdl_batch.domain.launch.attach_protocol import ERRORS, EXIT, INPUT, OUTPUT, PIECE_BYTES
from ffdl_batch.domain.terminal_text import printable
from ffdl_batch.host.users import read_loopback_uid, user_name

if TYPE_CHECKING:
    from ffdl_batch.client.attach import Helper


def listen(port: int) -> socket.socket:
    """Listen on a port of the loopback interface; 0 is any free port. Raises OSError."""
    return socket.create_server(("127.0.0.1", port), backlog=MOST)


def request_for(port: int) -> AttachRequest:
    """Return the command that connects to a port of the learner. It imports no modules from the learner's directory."""
    return AttachRequest(("python3", "-I", "-c", Path(port_streams.__file__).read_text("utf-8"), str(port)))


def forward(helper: Helper, listener: socket.socket, report: Callable[[str], None]) -> int:
    """Forward connections until the helper's command has ended, and return its status. `report` gets the reasons why
    connections were closed. Raises RequestRefused."""
    waiting: SimpleQueue[bytes] = SimpleQueue()  # bounded by the windows of the connections
    threading.Thread(target=_send_all, args=(helper, waiting), name="port forward", daemon=True).start()
    streams = Streams(waiting.put, report=lambda text: report(printable(text)))
    refused: set[int | None] = set()
    while True:
        poll = select.poll()
        poll.register(helper.descriptor, select.POLLIN)
        if len(streams) < MOST:
            poll.register(listener, select.POLLIN)
        numbers = streams.register(poll)
        ready = dict(poll.poll(0 if helper.has_frames else None))
        if ready.pop(listener.fileno(), 0):
            connection = listener.accept()[0]
            uid = read_loopback_uid(connection)
            if uid == os.getuid():
                streams.accept(connection)
            else:
                connection.close()
                if uid not in refused:
                    report(_refusal(uid))
                refused.add(uid)
        if ready.pop(helper.descriptor, 0) or helper.has_frames:
            status = _take(helper, streams)
            if status is not None:
                return status
        for descriptor, events in ready.items():
            streams.serve(numbers[descriptor], events)


def _refusal(uid: int | None) -> str:
    if uid is None:
        return "a connection was refused, because its user is not known"
    return f"a connection of another user of this machine was refused: {user_name(uid)}"


def _take(helper: Helper, streams: Streams) -> int | None:
    for kind, payload in helper.take():
        if kind == OUTPUT:
            try:
                streams.feed(payload)
            except ValueError as error:
                message = f"invalid data from the program in the learner: {error}"
                raise RequestRefused(Problem("S101", message, int(ExitCode.FAILED))) from error
        elif kind == ERRORS:
            sys.stderr.write(printable(payload.decode("utf-8", "replace")))
        elif kind == EXIT:
            return int(json.loads(payload)["status"])
    return None


def _send_all(helper: Helper, waiting: SimpleQueue[bytes]) -> None:
    """Send the data of the connections. The main thread must not wait for this, because it reads what the helper sends,
    and a helper that cannot send does not read."""
    while True:
        data = waiting.get()
        for at in range(0, len(data), PIECE_BYTES):
            helper.send(INPUT, data[at : at + PIECE_BYTES])
