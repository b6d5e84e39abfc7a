"""Digests of files and of parts of files, to compare them with what a store reports."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import zlib
from collections.abc import Iterator
from typing import Protocol

from ffdl_batch.staging.stores.store import CHUNK_BYTES, Item

_MD5 = re.compile(r"[0-9a-f]{32}")
_IN_PARTS = re.compile(r"([0-9a-f]{32})-([1-9][0-9]*)")
_MIB = 1 << 20
USUAL_PART_MIB = (5, 8, 10, 15, 16, 20, 25, 32, 50, 64, 100, 128, 256, 512)
"""Part sizes of common clients, used if the store does not report the size of the first part."""


class Digest(Protocol):
    """The interface of hashlib's objects."""

    def update(self, data: bytes | memoryview, /) -> None:
        """Add data."""

    def hexdigest(self) -> str:
        """Return the digest of all data."""


class _Crc32:
    def __init__(self) -> None:
        self._value = 0

    def update(self, data: bytes | memoryview, /) -> None:
        self._value = zlib.crc32(data, self._value)

    def hexdigest(self) -> str:
        return f"{self._value:08x}"


def new_digest(name: str) -> Digest:
    """Return a new digest by the name of the algorithm."""
    return _Crc32() if name == "crc32" else hashlib.new(name, usedforsecurity=False)


def is_md5(etag: str) -> bool:
    """Return whether the ETag can be the MD5 of the object."""
    return _MD5.fullmatch(etag) is not None


def count_of_parts(etag: str) -> int:
    """Return in how many parts the object was stored; 0 if the ETag does not say."""
    found = _IN_PARTS.fullmatch(etag)
    return int(found[2]) if found else 0


def parts_etag(md5s: list[str]) -> str:
    """Return the ETag of an object that was stored in parts with these MD5s."""
    joined = b"".join(bytes.fromhex(md5) for md5 in md5s)
    return f"{hashlib.md5(joined, usedforsecurity=False).hexdigest()}-{len(md5s)}"


def part_sizes(item: Item) -> list[int]:
    """Return possible part sizes of the object, the likeliest first."""
    count = count_of_parts(item.etag)
    if not count or item.size <= 0:
        return []
    if item.part_bytes:
        sizes = [item.part_bytes]
    else:
        sizes = [item.size] if count == 1 else [mib * _MIB for mib in USUAL_PART_MIB]
    return [size for size in sizes if -(-item.size // size) == count]


def digest_of(descriptor: int, start: int, end: int, name: str = "md5") -> str:
    """Return the digest of a range of a file, in hexadecimal. Raises OSError, and EOFError if the file ends before."""
    digest = new_digest(name)
    digest_onto(digest, descriptor, start, end)
    return digest.hexdigest()


def digest_onto(digest: Digest, descriptor: int, start: int, end: int) -> None:
    """Continue with a range of a file. Raises OSError, and EOFError if the file ends before."""
    for data in file_chunks(descriptor, start, end):
        digest.update(data)


def file_chunks(descriptor: int, start: int, end: int) -> Iterator[bytes]:
    """Yield a range of a file. Raises OSError, and EOFError if the file ends before."""
    while start < end:
        data = os.pread(descriptor, min(CHUNK_BYTES, end - start), start)
        if not data:
            raise EOFError
        yield data
        start += len(data)


def hex_of_base64(text: str) -> str:
    """Return a digest in hexadecimal digits; "" if the text is not Base64."""
    try:
        return base64.b64decode(text, validate=True).hex()
    except ValueError:
        return ""


def ranges(size: int, part_bytes: int) -> list[tuple[int, int]]:
    """Return the ranges of all parts of a file, in order."""
    return [(start, min(start + part_bytes, size)) for start in range(0, size, part_bytes)]


def has_etag(descriptor: int, item: Item) -> bool:
    """Return whether the ETag is that of the file's content, stored whole or in parts. Raises OSError, EOFError."""
    if is_md5(item.etag):
        return not item.opaque and digest_of(descriptor, 0, item.size) == item.etag
    return any(
        parts_etag([digest_of(descriptor, start, end) for start, end in ranges(item.size, size)]) == item.etag
        for size in part_sizes(item)
    )
