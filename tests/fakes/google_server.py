"""Google's store by its own (JSON) interface, as far as rclone mounts by it: listings, objects, and who may ask."""

from __future__ import annotations

import base64
import hashlib
import json
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.fakes.serving import serving

API = "/storage/v1/b/"


@dataclass
class Google:
    """Objects by bucket and name; `token` is the one that is taken, and given to service accounts at `token_url`."""

    token: str = "planted-token-of-google"
    buckets: dict[str, dict[str, bytes]] = field(default_factory=lambda: {"box": {}})
    given: int = 0
    port: int = 0

    @property
    def endpoint(self) -> str:
        """What a manifest has as `auth_url`."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def token_url(self) -> str:
        """The `token_uri` of accounts."""
        return f"{self.endpoint}/token"


class _Handler(BaseHTTPRequestHandler):
    google: Google
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        form = self.rfile.read(int(self.headers["Content-Length"])).decode()
        if self.path != "/token" or "assertion=" not in form:
            self._answer(400)
            return
        self.google.given += 1
        self._json({"access_token": self.google.token, "token_type": "Bearer", "expires_in": 3600})

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        if self.headers.get("Authorization") != f"Bearer {self.google.token}":
            self._answer(401)
            return
        bucket, _, rest = path.removeprefix("/download").removeprefix(API).partition("/o")
        objects, name = self.google.buckets.get(bucket), urllib.parse.unquote(rest.lstrip("/"))
        asked = dict(urllib.parse.parse_qsl(query))
        if objects is None or (name and name not in objects):
            self._answer(404)
        elif not name:
            self._list(bucket, objects, asked)
        elif asked.get("alt") == "media":
            self._give(objects[name])
        else:
            self._json(self._object(bucket, name, objects[name]))

    def _list(self, bucket: str, objects: dict[str, bytes], asked: dict[str, str]) -> None:
        prefix, mark = asked.get("prefix", ""), asked.get("delimiter", "")
        found, below = [], dict[str, None]()
        for name in sorted(name for name in objects if name.startswith(prefix)):
            first, cut, _ = name.removeprefix(prefix).partition(mark) if mark else (name, "", "")
            if cut:
                below[prefix + first + cut] = None
            else:
                found.append(self._object(bucket, name, objects[name]))
        self._json({"kind": "storage#objects", "items": found, "prefixes": list(below)})

    def _object(self, bucket: str, name: str, data: bytes) -> dict[str, Any]:
        place = f"{bucket}/o/{urllib.parse.quote(name, safe='')}"
        return {
            "kind": "storage#object",
            "bucket": bucket,
            "name": name,
            "size": str(len(data)),
            "md5Hash": base64.b64encode(hashlib.md5(data).digest()).decode(),
            "updated": "2026-01-02T03:04:05.678Z",
            "mediaLink": f"{self.google.endpoint}/download{API}{place}?alt=media",
        }

    def _give(self, data: bytes) -> None:
        first, _, last = self.headers.get("Range", "").removeprefix("bytes=").partition("-")
        if not first:
            self._answer(200, data)
            return
        part = data[int(first) : int(last) + 1 if last else None]
        self._answer(206, part, **{"Content-Range": f"bytes {first}-{int(first) + len(part) - 1}/{len(data)}"})

    def _json(self, value: object) -> None:
        self._answer(200, json.dumps(value).encode(), **{"Content-Type": "application/json"})

    def _answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@contextmanager
def google_server() -> Iterator[Google]:
    """The store, on loopback."""
    made = Google()

    class Handler(_Handler):
        google = made

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    made.port = server.server_address[1]
    with serving(server):
        yield made
