"""Ask the shared cache of this node for an object, as a reader."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping

SOCKET = "/run/ffdl-cache/socket"
WAIT_S = 60.0
"""How long a reader waits while the service fills. Afterwards it reads from the store itself."""
ANSWER_BYTES = 4096


def ask(url: str, etag: str, size: int, headers: Mapping[str, str], path: str = "") -> int | str:
    """Return a descriptor of the object, or why there is none. `headers` are the signature of a GET of the URL.

    The reader has to verify the content, as if it came from the store.
    """
    request = json.dumps({"url": url, "etag": etag, "size": size, "headers": dict(headers)}).encode() + b"\n"
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(WAIT_S)
            connection.connect(path or SOCKET)
            connection.sendall(request)
            answer, descriptors, _, _ = socket.recv_fds(connection, ANSWER_BYTES, 1)
    except OSError as error:
        return f"the shared cache does not answer: {error.strerror or type(error).__name__}"
    if descriptors:
        os.set_inheritable(descriptors[0], False)
        return descriptors[0]
    return answer.decode("utf-8", "replace").strip() or "the shared cache ended the connection"
