"""Servers of tests, each in a thread of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import BaseServer
from threading import Thread


@contextmanager
def serving(server: BaseServer) -> Iterator[None]:
    """Serve until the block is left."""
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class QuietFiles(SimpleHTTPRequestHandler):
    """Python's own server of a directory, which gives no ETag and no ranges."""

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@contextmanager
def serving_files(directory: Path) -> Iterator[str]:
    """Serve a directory; its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietFiles, directory=str(directory)))
    with serving(server):
        yield f"http://127.0.0.1:{server.server_address[1]}"
