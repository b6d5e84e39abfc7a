"""The host's end of :mod:`ffdl_batch.client.connection.host_relay`: joins the standard streams of this process with the
daemon's socket."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Sequence

from ffdl_batch import __version__
from ffdl_batch.client.connection.host_relay import FORMAT, GREETING
from ffdl_batch.client.connection.http_client import Channel
from ffdl_batch.host.descriptors import write_all

_CHUNK = 1 << 16
_STDIN, _STDOUT = 0, 1


def serve(channel: Channel, warnings: Sequence[str]) -> None:
    """Send the greeting, and copy until the daemon closes. The end of the input is passed on as a half-close, so that
    the rest of the daemon's answer arrives."""
    greeting = f"{GREETING} {FORMAT} {json.dumps({'release': __version__, 'warnings': list(warnings)})}\n"
    connection = channel.connection
    connection.settimeout(None)
    try:
        write_all(_STDOUT, greeting.encode())
        threading.Thread(target=_copy_up, args=(channel,), daemon=True).start()
        while data := connection.recv(_CHUNK):
            write_all(_STDOUT, data)
    except (BrokenPipeError, ConnectionResetError):
        return  # the client is gone, or the daemon was killed
    finally:
        channel.close()


def _copy_up(channel: Channel) -> None:
    connection = channel.connection
    try:
        while data := os.read(_STDIN, _CHUNK):
            connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
    except OSError:
        return  # the daemon has closed; the other direction ends by that
