"""An S3 server that costs little: one process, one loop, all in memory. For figures, where a slow server would be what
is measured; it checks neither keys nor signatures, and says what is wrong by a status alone.

python -m tests.fakes.quick_s3 -H HOST -p PORT
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import urllib.parse
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from email.utils import formatdate
from xml.sax.saxutils import escape

PAGE = 1000
_NOW = formatdate(1_767_225_600, usegmt=True)
_NOW_ISO = "2026-01-01T00:00:00.000Z"
_XML = '<?xml version="1.0" encoding="UTF-8"?>'


@dataclass(slots=True)
class Stored:
    """An object, or a part of one."""

    data: bytes
    etag: str


@dataclass(slots=True)
class Answer:
    """What is sent back. `length`: of a body that is not sent."""

    status: int = 200
    body: bytes | memoryview = b""
    headers: dict[str, str] = field(default_factory=dict)
    length: int = -1


@dataclass(slots=True)
class Asked:
    """A request: `key` has the bucket before its first slash, names of headers are lower case."""

    method: str
    key: str
    query: dict[str, str]
    headers: dict[str, str]


class Objects:
    """All buckets, by `bucket/key`."""

    def __init__(self) -> None:
        self._objects: dict[str, Stored] = {}
        self._uploads: dict[str, dict[int, Stored]] = {}
        self._names: list[str] | None = None
        self._begun = 0

    def answer(self, asked: Asked, body: bytes, md5: str) -> Answer:
        """Do what is asked. `md5`: of the body, hexadecimal."""
        if asked.method in ("GET", "HEAD"):
            if "/" not in asked.key:
                return self._listed(asked)
            return self._given(asked)
        if "uploadId" in asked.query or "uploads" in asked.query:
            return self._in_parts(asked, body, md5)
        if asked.method == "PUT" and "/" in asked.key:
            self._keep(asked.key, Stored(body, md5))
            return Answer(headers={"ETag": f'"{md5}"'})
        return Answer(200 if asked.method == "PUT" else 501)

    def _keep(self, key: str, stored: Stored) -> None:
        if key not in self._objects:
            self._names = None
        self._objects[key] = stored

    def _given(self, asked: Asked) -> Answer:
        stored = self._objects.get(asked.key)
        if stored is None:
            return Answer(404)
        wanted = f'"{stored.etag}"'
        if asked.headers.get("if-match", wanted) != wanted:
            return Answer(412)
        headers = {"ETag": wanted, "Last-Modified": _NOW, "Accept-Ranges": "bytes"}
        if asked.method == "HEAD":
            return Answer(200, b"", headers, len(stored.data))
        if "range" not in asked.headers:
            return Answer(200, stored.data, headers)
        first, _, last = asked.headers["range"].removeprefix("bytes=").partition("-")
        size = len(stored.data)
        start, end = int(first), min(int(last or size), size - 1)
        headers["Content-Range"] = f"bytes {start}-{end}/{size}"
        return Answer(206, memoryview(stored.data)[start : end + 1], headers)

    def _listed(self, asked: Asked) -> Answer:
        if self._names is None:
            self._names = sorted(self._objects)
        bucket, query = f"{asked.key}/", asked.query
        prefix = bucket + query.get("prefix", "")
        after = query.get("continuation-token") or query.get("start-after")
        start = bisect_right(self._names, bucket + after) if after else 0
        start = max(start, bisect_left(self._names, prefix))
        count = int(query.get("max-keys", PAGE))
        found = [name for name in self._names[start : start + count + 1] if name.startswith(prefix)]
        more = len(found) > count
        return Answer(200, self._page(found[:count], len(bucket), more).encode(), {"Content-Type": "application/xml"})

    def _page(self, names: Iterable[str], start: int, more: bool) -> str:
        lines, key = [f"{_XML}<ListBucketResult>"], ""
        for name in names:
            stored, key = self._objects[name], urllib.parse.quote(name[start:], safe="/")
            lines.append(
                f"<Contents><Key>{key}</Key><LastModified>{_NOW_ISO}</LastModified>"
                f"<ETag>&quot;{stored.etag}&quot;</ETag><Size>{len(stored.data)}</Size></Contents>"
            )
        if more:
            lines.append(f"<NextContinuationToken>{escape(urllib.parse.unquote(key))}</NextContinuationToken>")
        said = "true" if more else "false"
        lines.append(f"<EncodingType>url</EncodingType><IsTruncated>{said}</IsTruncated></ListBucketResult>")
        return "".join(lines)

    def _in_parts(self, asked: Asked, body: bytes, md5: str) -> Answer:
        if asked.method == "POST" and "uploads" in asked.query:
            self._begun += 1
            upload = f"upload-{self._begun}"
            self._uploads[upload] = {}
            text = f"{_XML}<InitiateMultipartUploadResult><UploadId>{upload}</UploadId></InitiateMultipartUploadResult>"
            return Answer(200, text.encode())
        upload = asked.query.get("uploadId", "")
        if upload not in self._uploads:
            return Answer(404, f"{_XML}<Error><Code>NoSuchUpload</Code></Error>".encode())
        if asked.method == "PUT":
            self._uploads[upload][int(asked.query["partNumber"])] = Stored(body, md5)
            return Answer(headers={"ETag": f'"{md5}"'})
        parts = [part for _, part in sorted(self._uploads.pop(upload).items())]
        if asked.method == "DELETE":
            return Answer(204)
        joined = hashlib.md5(b"".join(bytes.fromhex(part.etag) for part in parts)).hexdigest()
        etag = f"{joined}-{len(parts)}"
        self._keep(asked.key, Stored(b"".join(part.data for part in parts), etag))
        text = f"{_XML}<CompleteMultipartUploadResult><ETag>&quot;{etag}&quot;</ETag></CompleteMultipartUploadResult>"
        return Answer(200, text.encode())


class Connection(asyncio.Protocol):
    """One client, whose requests are answered one after the other."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._transport: asyncio.Transport
        self._head = b""
        self._asked: Asked | None = None
        self._chunks: list[bytes] = []
        self._rest, self._md5 = 0, hashlib.md5()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        while data:
            if self._asked is None:
                self._head += data
                head, mark, data = self._head.partition(b"\r\n\r\n")
                if not mark:
                    return
                self._head = b""
                self._begin(head.decode("latin-1"))
            taken, data = data[: self._rest], data[self._rest :]
            if taken:
                self._md5.update(taken)
                self._chunks.append(taken)
                self._rest -= len(taken)
            if not self._rest:
                self._end()

    def _begin(self, head: str) -> None:
        first, *lines = head.split("\r\n")
        method, target, _ = first.split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        path, _, query = target.partition("?")
        asked = dict(urllib.parse.parse_qsl(query, keep_blank_values=True))
        self._asked = Asked(method, urllib.parse.unquote(path).strip("/"), asked, headers)
        assert "aws-chunked" not in headers.get("content-encoding", ""), "trailers are not understood"
        self._rest, self._md5, self._chunks = int(headers.get("content-length", "0")), hashlib.md5(), []
        if headers.get("expect") == "100-continue":
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _end(self) -> None:
        assert self._asked is not None
        asked, self._asked = self._asked, None
        answer = self._objects.answer(asked, b"".join(self._chunks), self._md5.hexdigest())
        length = len(answer.body) if answer.length < 0 else answer.length
        lines = [f"{name}: {value}\r\n" for name, value in answer.headers.items()]
        head = f"HTTP/1.1 {answer.status} Said\r\nContent-Length: {length}\r\n{''.join(lines)}\r\n".encode()
        if len(answer.body) <= PAGE:
            self._transport.write(head + answer.body)
        else:
            self._transport.writelines((head, answer.body))


async def serve(host: str, port: int) -> None:
    """For ever."""
    objects = Objects()
    server = await asyncio.get_running_loop().create_server(lambda: Connection(objects), host, port)
    await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("-H", dest="host", default="127.0.0.1")
    parser.add_argument("-p", dest="port", type=int, required=True)
    options = parser.parse_args()
    asyncio.run(serve(options.host, options.port))
