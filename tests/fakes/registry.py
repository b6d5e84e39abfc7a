"""A registry of images on loopback, and a client that pushes tiny ones: to this one, and to real ones.

The registry keeps what is pushed in memory, wants tokens where told, and counts what it is asked.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import tarfile
import threading
import urllib.parse
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
USER, PASSWORD = "planted-user", "planted-Registry/Password+987"


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def layer_of(files: dict[str, bytes]) -> bytes:
    """A gzipped tar with these files, which anybody may execute."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(data), 0o755
            archive.addfile(member, io.BytesIO(data))
    return gzip.compress(raw.getvalue(), mtime=0)


class Pusher:
    """Pushes images to a registry that lets anybody in, or who has the password."""

    def __init__(self, endpoint: str, user: str = "", password: str = "") -> None:
        self.endpoint = endpoint
        pair = base64.b64encode(f"{user}:{password}".encode()).decode()
        self._headers = {"Authorization": f"Basic {pair}"} if user else {}

    def push(self, name: str, tag: str, files: dict[str, bytes], architecture: str = "amd64") -> str:
        """One layer; the digest of the manifest."""
        layer = layer_of(files)
        raw = gzip.decompress(layer)
        config = json.dumps(
            {
                "architecture": architecture,
                "os": "linux",
                "config": {},
                "rootfs": {"type": "layers", "diff_ids": [digest_of(raw)]},
            }
        ).encode()
        for blob in (layer, config):
            self._blob(name, blob)
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": _described("application/vnd.oci.image.config.v1+json", config),
            "layers": [_described("application/vnd.oci.image.layer.v1.tar+gzip", layer)],
        }
        return self._manifest(name, tag, manifest)

    def push_index(self, name: str, tag: str, manifests: dict[str, str]) -> str:
        """An image of several architectures, by the digests of their manifests."""
        listed = [
            {"mediaType": MANIFEST, "digest": digest, "size": 1, "platform": {"architecture": arch, "os": "linux"}}
            for arch, digest in manifests.items()
        ]
        return self._manifest(name, tag, {"schemaVersion": 2, "mediaType": INDEX, "manifests": listed})

    def _blob(self, name: str, data: bytes) -> None:
        place = self._send("POST", f"{self.endpoint}/v2/{name}/blobs/uploads/", b"")["Location"]
        place = urllib.parse.urljoin(self.endpoint, place)
        query = urllib.parse.urlencode({"digest": digest_of(data)})
        self._send("PUT", f"{place}{'&' if '?' in place else '?'}{query}", data, "application/octet-stream")

    def _manifest(self, name: str, tag: str, plain: dict[str, Any]) -> str:
        data = json.dumps(plain).encode()
        self._send("PUT", f"{self.endpoint}/v2/{name}/manifests/{tag}", data, plain["mediaType"])
        return digest_of(data)

    def _send(self, method: str, url: str, data: bytes, kind: str = "") -> Any:
        headers = {**self._headers, **({"Content-Type": kind} if kind else {})}
        asked = urllib.request.Request(url, data=data, method=method, headers=headers)
        with urllib.request.urlopen(asked, timeout=30) as answer:
            return answer.headers


def _described(kind: str, data: bytes) -> dict[str, Any]:
    return {"mediaType": kind, "digest": digest_of(data), "size": len(data)}


class Registry:
    """The registry. `token`: what a reader has to bring, "" = nobody is asked. `spoil`: manifests come damaged."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}
        self.manifests: dict[str, tuple[str, bytes]] = {}
        self.asked: list[str] = []
        self.tokens: list[str] = []
        self.token, self.spoil = "", 0
        registry = self

        class Handler(_Handler):
            front = registry

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.host = f"127.0.0.1:{self._server.server_address[1]}"
        self.endpoint = f"http://{self.host}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    front: Registry
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        if path == "/token":
            self._give_token(urllib.parse.parse_qs(query))
            return
        self.front.asked.append(path)
        if self.front.token and self.headers.get("Authorization") != f"Bearer {self.front.token}":
            name = path.split("/manifests/")[0].removeprefix("/v2/")
            asked = f'Bearer realm="{self.front.endpoint}/token",service="here",scope="repository:{name}:pull"'
            self._answer(401, b"{}", {"WWW-Authenticate": asked})
            return
        kind, data = self.front.manifests.get(path, ("", b""))
        if not data:
            self._answer(404, b'{"errors": [{"code": "MANIFEST_UNKNOWN"}]}', {})
            return
        if self.front.spoil:
            self.front.spoil -= 1
            data = data.replace(b"layers", b"lAyers")
        self._answer(200, data, {"Content-Type": kind, "Docker-Content-Digest": digest_of(data)})

    def _give_token(self, query: dict[str, list[str]]) -> None:
        pair = f"{USER}:{PASSWORD}"
        good = self.headers.get("Authorization") == f"Basic {base64.b64encode(pair.encode()).decode()}"
        self.front.tokens.append(query["scope"][0])
        self._answer(200 if good else 401, json.dumps({"token": self.front.token}).encode(), {})

    def do_POST(self) -> None:
        self._answer(202, b"", {"Location": f"{self.path}one"})

    def do_PUT(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"]))
        if "/manifests/" in self.path:
            name = self.path.split("/manifests/")[0]
            for wanted in (self.path, f"{name}/manifests/{digest_of(data)}"):
                self.front.manifests[wanted] = (self.headers["Content-Type"], data)
        self._answer(201, b"", {})

    def _answer(self, status: int, data: bytes, headers: dict[str, str]) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""
