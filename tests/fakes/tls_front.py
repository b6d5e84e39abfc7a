"""TLS in front of a server on loopback that speaks none: bytes are passed on as they are."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def tls_front(port: int, certificate: Path, key: Path) -> Iterator[int]:
    """The port at which the server on `port` is reached by TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=_accept, args=(server, context, port), daemon=True)
    thread.start()
    try:
        yield server.getsockname()[1]
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join()


def _accept(server: socket.socket, context: ssl.SSLContext, port: int) -> None:
    with contextlib.suppress(OSError):
        while True:
            client, _ = server.accept()
            threading.Thread(target=_serve, args=(client, context, port), daemon=True).start()


def _serve(client: socket.socket, context: ssl.SSLContext, port: int) -> None:
    with (
        contextlib.suppress(OSError),
        context.wrap_socket(client, server_side=True) as wrapped,
        socket.create_connection(("127.0.0.1", port)) as behind,
    ):
        threading.Thread(target=_pass_on, args=(behind, wrapped), daemon=True).start()
        _pass_on(wrapped, behind)


def _pass_on(one: socket.socket, other: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := one.recv(65536):
            other.sendall(data)
    with contextlib.suppress(OSError):
        other.shutdown(socket.SHUT_WR)
