"""A Swift store with one account: tokens by v1 and v3, pages, ranges, conditions, static and dynamic large objects."""

from __future__ import annotations

import hashlib
import json
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.fakes.serving import serving


@dataclass
class Stored:
    """An object: its own bytes, or the parts that it stands for."""

    data: bytes
    parts: list[tuple[str, str]] = field(default_factory=list)
    dynamic: str = ""


@dataclass
class Swift:
    """What is stored, by container and name, and who may ask."""

    user: str = "tester"
    password: str = "planted-swift-password"
    project: str = ""
    domain: str = ""
    tokens: set[str] = field(default_factory=set)
    containers: dict[str, dict[str, Stored]] = field(default_factory=lambda: {"box": {}})
    port: int = 0

    def content(self, container: str, name: str) -> bytes:
        """The whole of an object."""
        stored = self.containers[container][name]
        if stored.dynamic:
            box, _, prefix = stored.dynamic.partition("/")
            return b"".join(self.containers[box][key].data for key in self._below(box, prefix))
        return b"".join(self.containers[c][n].data for c, n in stored.parts) if stored.parts else stored.data

    def etag(self, container: str, name: str) -> str:
        """Of the content, or of the ETags of the parts."""
        stored = self.containers[container][name]
        box, _, prefix = stored.dynamic.partition("/")
        parts = [(box, key) for key in self._below(box, prefix)] if stored.dynamic else stored.parts
        if not parts:
            return hashlib.md5(stored.data).hexdigest()
        joined = "".join(hashlib.md5(self.containers[c][n].data).hexdigest() for c, n in parts)
        return hashlib.md5(joined.encode()).hexdigest()

    def _below(self, container: str, prefix: str) -> list[str]:
        return sorted(name for name in self.containers[container] if name.startswith(prefix))

    def listed(self, container: str, query: dict[str, str]) -> list[dict[str, Any]]:
        """A page. With a delimiter what lies below the first one after the prefix is one `subdir`."""
        prefix, mark = query.get("prefix", ""), query.get("delimiter", "")
        names = [name for name in self._below(container, prefix) if name > query.get("marker", "")]
        if mark:
            cut = [name.partition(mark) for name in (name.removeprefix(prefix) for name in names)]
            names = list(dict.fromkeys(prefix + first + found for first, found, _ in cut))
        page: list[dict[str, Any]] = []
        for name in names[: int(query.get("limit", 10_000))]:
            if mark and name.endswith(mark):
                page.append({"subdir": name})
                continue
            stored, size = self.containers[container][name], len(self.content(container, name))
            found = {"name": name, "bytes": 0 if stored.dynamic else size, "hash": hashlib.md5(stored.data).hexdigest()}
            if stored.parts:
                found["slo_etag"] = f'"{self.etag(container, name)}"'
            page.append({**found, "last_modified": "2026-01-02T03:04:05.678900"})
        return page


class _Handler(BaseHTTPRequestHandler):
    swift: Swift
    protocol_version = "HTTP/1.1"

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path, _, query = self.path.partition("?")
        asked = dict(urllib.parse.parse_qsl(query))
        if path == "/auth/v1.0":
            self._token_v1()
        elif path == "/v3/auth/tokens":
            self._token_v3(json.loads(body))
        elif self.headers.get("X-Auth-Token") not in self.swift.tokens:
            self._answer(401)
        else:
            container, _, name = urllib.parse.unquote(path.removeprefix("/v1/AUTH_test/")).partition("/")
            self._serve(container, name, asked, body)

    def _new_token(self) -> str:
        self.swift.tokens.add(f"token-{len(self.swift.tokens)}")
        return f"token-{len(self.swift.tokens) - 1}"

    @property
    def _account(self) -> str:
        return f"http://{self.headers['Host']}/v1/AUTH_test"

    def _token_v1(self) -> None:
        if (self.headers["X-Auth-User"], self.headers["X-Auth-Key"]) != (self.swift.user, self.swift.password):
            self._answer(401)
            return
        self._answer(200, b"", **{"X-Storage-Url": self._account, "X-Auth-Token": self._new_token()})

    def _token_v3(self, asked: dict[str, Any]) -> None:
        user = asked["auth"]["identity"]["password"]["user"]
        good = {"name": self.swift.user, "domain": {"name": self.swift.domain}, "password": self.swift.password}
        if user != good or asked["auth"]["scope"] != {"project": {"id": self.swift.project}}:
            self._answer(401)
            return
        ends = [{"interface": "public", "region": region, "url": self._account} for region in ("south", "north")]
        ends[0]["url"] += "/elsewhere"
        catalog = [{"type": "compute", "endpoints": []}, {"type": "object-store", "endpoints": ends}]
        self._answer(
            201, json.dumps({"token": {"catalog": catalog}}).encode(), **{"X-Subject-Token": self._new_token()}
        )

    def _serve(self, container: str, name: str, asked: dict[str, str], body: bytes) -> None:
        boxes = self.swift.containers
        if not name and self.command == "PUT":
            boxes.setdefault(container, {})
            self._answer(201)
        elif container not in boxes or (name not in boxes[container] and name and self.command != "PUT"):
            self._answer(404)
        elif not name:
            self._answer(200, json.dumps(self.swift.listed(container, asked)).encode())
        elif self.command == "DELETE":
            del boxes[container][name]
            self._answer(204)
        elif self.command == "PUT":
            self._put(container, name, asked, body)
        else:
            self._give(container, name)

    def _put(self, container: str, name: str, asked: dict[str, str], body: bytes) -> None:
        if asked.get("multipart-manifest") == "put":
            parts = [tuple(part["path"].strip("/").split("/", 1)) for part in json.loads(body)]
            for (box, key), part in zip(parts, json.loads(body), strict=True):
                data = self.swift.containers[box][key].data
                assert (hashlib.md5(data).hexdigest(), len(data)) == (part["etag"], part["size_bytes"])
            stored = Stored(body, parts)
        elif self.headers.get("ETag", hashlib.md5(body).hexdigest()) != hashlib.md5(body).hexdigest():
            self._answer(422)
            return
        else:
            stored = Stored(body, dynamic=self.headers.get("X-Object-Manifest", ""))
        self.swift.containers[container][name] = stored
        self._answer(201, ETag=self.swift.etag(container, name))

    def _give(self, container: str, name: str) -> None:
        data, etag = self.swift.content(container, name), self.swift.etag(container, name)
        stored = self.swift.containers[container][name]
        headers = {"ETag": etag, "Last-Modified": "Fri, 02 Jan 2026 03:04:06 GMT"}
        if stored.parts:
            headers["X-Static-Large-Object"] = "True"
        if stored.dynamic:
            headers["X-Object-Manifest"] = stored.dynamic
        if self.headers.get("If-Match", f'"{etag}"') != f'"{etag}"':
            self._answer(412)
            return
        asked = self.headers.get("Range")
        if asked:
            first, last = asked.removeprefix("bytes=").split("-")
            data = data[int(first) : int(last) + 1]
        self._answer(206 if asked else 200, data, **headers)

    def _answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _handle  # noqa: N815 - names that the library looks for

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@contextmanager
def swift_server(address: str = "127.0.0.1", port: int = 0) -> Iterator[Swift]:
    """The store; port 0 = one that is free."""
    made = Swift()

    class Handler(_Handler):
        swift = made

    server = ThreadingHTTPServer((address, port), Handler)
    server.daemon_threads = True
    made.port = server.server_address[1]
    with serving(server):
        yield made
