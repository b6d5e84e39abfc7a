"""A server between a client and a store that fails by rules, and counts what went through."""

from __future__ import annotations

import contextlib
import http.client
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

CHUNK = 64 * 1024


@dataclass
class Rule:
    """Requests of a method whose path has a text: what is done with them, `times` of them after the first `after`.

    `status` is an answer (with S3's `code`) in the place of the store's. `cut_at`: that many bytes of the body are
    given, then the connection is closed, with a reset where `reset`. `hang_s`: nothing is said for so long. `pause_s`:
    between any 64 KiB.
    """

    method: str = ""
    path: str = ""
    after: int = 0
    times: int = 1 << 30
    status: int = 0
    code: str = ""
    cut_at: int = -1
    reset: bool = False
    hang_s: float = 0.0
    pause_s: float = 0.0
    seen: int = 0
    done: int = 0

    def takes(self, method: str, path: str) -> bool:
        """Whether it is for this request; counts it."""
        if self.method not in ("", method) or self.path not in path:
            return False
        self.seen += 1
        if self.seen <= self.after or self.done >= self.times:
            return False
        self.done += 1
        return True


class FaultProxy:
    """In front of a server on loopback, itself at `address`. Without rules it changes nothing."""

    def __init__(self, port: int, address: str = "127.0.0.1") -> None:
        self.upstream = port
        self.rules: list[Rule] = []
        self.requests: list[tuple[str, str, str]] = []
        """Method, path and Range of each."""
        self.authorizations: list[str] = []
        """What each request says of who asks."""
        self.expected: list[str] = []
        """Paths of requests that ask whether they may send their body."""
        self.given: Counter[str] = Counter()
        self.taken: Counter[str] = Counter()
        """Bytes of bodies, by path without query: of answers, and of requests."""
        self.before: Callable[[str, str], None] = lambda _method, _path: None
        """Called before a request goes on."""
        self.edit: Callable[[str, bytes], bytes] = lambda _path, data: data
        """Changes the body of an answer to a path with its query."""
        self.lock = threading.Lock()
        self._closing = threading.Event()
        proxy = self

        class Handler(_Handler):
            front = proxy

        self._server = _Server((address, 0), Handler)
        self.endpoint = f"http://{address}:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()

    def rule_for(self, method: str, path: str) -> Rule | None:
        """The first that takes it."""
        with self.lock:
            return next((rule for rule in self.rules if rule.takes(method, path)), None)

    def wait(self, seconds: float) -> None:
        """For so long, or until the end."""
        self._closing.wait(seconds)

    def stop(self) -> None:
        """End it."""
        self._closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that goes away is what tests are about."""


class _Handler(BaseHTTPRequestHandler):
    front: FaultProxy
    protocol_version = "HTTP/1.1"
    wbufsize = 0

    def _handle(self) -> None:
        path = self.path.partition("?")[0]
        size = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(size)
        with self.front.lock:
            self.front.requests.append((self.command, self.path, self.headers.get("Range", "")))
            self.front.authorizations.append(self.headers.get("Authorization", ""))
            self.front.taken[path] += len(body)
            if "Expect" in self.headers:
                self.front.expected.append(path)
        rule = self.front.rule_for(self.command, self.path) or Rule()
        if rule.hang_s:
            self.front.wait(rule.hang_s)
        if rule.status:
            self._refuse(rule)
            return
        self.front.before(self.command, self.path)
        upstream = http.client.HTTPConnection("127.0.0.1", self.front.upstream, timeout=60)
        with contextlib.closing(upstream):
            headers = {name: value for name, value in self.headers.items() if name.lower() != "expect"}
            upstream.request(self.command, self.path, body=body, headers=headers)
            self._give(upstream.getresponse(), rule, path)

    def _give(self, answer: http.client.HTTPResponse, rule: Rule, path: str) -> None:
        data = self.front.edit(self.path, answer.read())
        self.send_response_only(answer.status, answer.reason)
        for name, value in answer.getheaders():
            if name.lower() not in ("connection", "transfer-encoding", "content-length"):
                self.send_header(name, value)
        length = answer.getheader("Content-Length") if self.command == "HEAD" else str(len(data))
        if length is not None:
            self.send_header("Content-Length", length)
        self.end_headers()
        end = len(data) if rule.cut_at < 0 else min(rule.cut_at, len(data))
        for start in range(0, end, CHUNK):
            piece = data[start : min(start + CHUNK, end)]
            self.wfile.write(piece)
            with self.front.lock:
                self.front.given[path] += len(piece)
            if rule.pause_s:
                time.sleep(rule.pause_s)
        if rule.cut_at >= 0:
            self._close(rule.reset)

    def _refuse(self, rule: Rule) -> None:
        text = f"<?xml version='1.0'?><Error><Code>{rule.code}</Code><Message>by rule</Message></Error>".encode()
        self.send_response_only(rule.status, rule.code)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text)

    def _close(self, reset: bool) -> None:
        self.close_connection = True
        if reset:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _handle  # noqa: N815 - names that the library looks for

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""
