"""The interface of stores. Each call is one request, or one per page of a listing. The caller retries."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import field
from itertools import islice
from typing import Any, BinaryIO, Protocol, runtime_checkable

from ffdl_batch.domain.data.staging_protocol import FaultClass
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.staging.faults import Fault
from ffdl_batch.staging.tree import TreeEntry

UNKNOWN = -1
CHUNK_BYTES = 1 << 20
PAGE = 1000


@dataclass(frozen=True, slots=True)
class Item:
    """An object. `etag` has no quotes, "" = unknown; `mtime` is in seconds, 0 = unknown; `size` may be UNKNOWN.

    `ranges`: parts of it can be asked for. `opaque`: its ETag says nothing about its content. `digests` are
    hexadecimal, by algorithm. `part_bytes` is the size of its first part where it was stored in parts, 0 = unknown.
    `doubt` is why it may not be what was meant, for a person; "" = nothing speaks for that.
    """

    key: str
    size: int
    etag: str
    mtime: float = 0.0
    ranges: bool = True
    opaque: bool = False
    digests: dict[str, str] = field(default_factory=dict)
    part_bytes: int = 0
    doubt: str = ""


@dataclass(frozen=True, slots=True)
class Sent:
    """The body of a request: `size` bytes, whose MD5 (hexadecimal) is known.

    Small bodies are bytes, which are sent with the header at once. For files, clients first ask whether they may send
    them.
    """

    body: BinaryIO | bytes
    size: int
    md5: str

    def chunks(self) -> Iterator[bytes]:
        """Yield the body. Call it once."""
        if isinstance(self.body, bytes):
            yield self.body
            return
        while data := self.body.read(CHUNK_BYTES):
            yield data


def in_pages(items: Iterable[Item]) -> Iterator[list[Item]]:
    """Yield the items in lists of PAGE, and one empty list if there are none."""
    rest, count = iter(items), 0
    while (page := list(islice(rest, PAGE))) or not count:
        yield page
        count += 1


class Store(Protocol):
    """A container of objects. Methods may be called from several threads at once.

    They raise TemporaryFailure, Fault, and OSError of sockets, which counts as temporary, too.
    """

    def listing(self, prefix: str, start_after: str = "") -> Iterator[list[Item]]:
        """Yield pages of the objects that begin with the prefix, after one key, in the order of keys."""

    def head(self, key: str) -> Item | None:
        """Return what the store reports about one object, or None."""

    def read(self, item: Item, start: int, end: int) -> AbstractContextManager[Iterator[bytes]]:
        """Yield the object's bytes from `start` up to `end` (UNKNOWN = all). Raises ObjectChanged if it has changed."""

    def put(self, key: str, sent: Sent) -> str:
        """Store one object. Return its ETag."""

    def close(self) -> None:
        """Close connections. No call may follow."""


@runtime_checkable
class KeepsEntries(Protocol):
    """A store that keeps links, modes and empty directories by itself."""

    def entries(self, prefix: str, skipped: Callable[[str], None]) -> list[TreeEntry]:
        """Return those below the prefix. `skipped` gets a sentence for each pipe, socket and device. Raises Fault,
        OSError."""

    def keep(self, prefix: str, entries: Iterable[TreeEntry], skipped: Callable[[str], None]) -> None:
        """Store entries below the prefix. `skipped` gets a sentence for each one whose name a file has. Raises
        Fault."""


@runtime_checkable
class KnowsParts(Protocol):
    """A store that remembers in which parts an object was stored. Clients choose the sizes of parts."""

    def lengths_of_parts(self, item: Item) -> list[int]:
        """Return the length of each part, in order; [] if unknown."""


@runtime_checkable
class StoresInParts(Protocol):
    """A store that takes a large object in parts, in any order."""

    @property
    def most_parts(self) -> int:
        """Parts that one object may have."""

    def begin(self, key: str) -> str:
        """Begin an upload. Return its id."""

    def put_part(self, key: str, upload: str, number: int, sent: Sent) -> str:
        """Store a part, counted from 1. Return its ETag. Raises UnknownUpload."""

    def complete(self, key: str, upload: str, etags: list[str]) -> str:
        """Make the object of its parts. Return its ETag. Raises UnknownUpload."""

    def abort(self, key: str, upload: str) -> None:
        """Abort the upload. It is harmless if the store does not know it."""


def library(module: str, extra: str) -> Any:
    """Import an optional library. Raises Fault if it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise Fault(FaultClass.LIBRARY, f"{module} is not installed here, which the extra [{extra}] brings") from error
