"""The other end of :mod:`ffdl_batch.client.connection.host_relay`: joins this process's standard streams with the
daemon's socket."""

from __future__ import annotations

import os
import socket
import threading

from ffdl_batch import __version__
from ffdl_batch.client.connection.host_relay import FORMAT, GREETING
from ffdl_batch.client.connection.http_client import Channel

_CHUNK = 1 << 16
_STDIN, _STDOUT = 0, 1


def serve(channel: Channel) -> None:
    """Say who we are, and copy until the daemon closes. The end of our input is passed on: what the daemon still has to
    say arrives."""
    greeting = f"\n{GREETING} {FORMAT} {__version__} {socket.gethostname()}\n"
    connection = channel.connection
    connection.settimeout(None)
    try:
        _write(greeting.encode())
        threading.Thread(target=_copy_up, args=(connection,), daemon=True).start()
        while data := connection.recv(_CHUNK):
            _write(data)
    except (BrokenPipeError, ConnectionResetError):
        return  # whoever asked is gone, or the daemon was killed: it is over either way
    finally:
        channel.close()


def _copy_up(connection: socket.socket) -> None:
    try:
        while data := os.read(_STDIN, _CHUNK):
            connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
    except OSError:
        return  # the daemon has closed; the other direction ends by that


def _write(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(_STDOUT, view) :]
