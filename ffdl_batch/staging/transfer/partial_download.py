"""A file on its way in that is not whole: where it is, and which of its parts have come."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field

from ffdl_batch.attempt.directory_tree import Parts
from ffdl_batch.staging.stores.digests import count_of_parts, digest_onto, is_md5, new_digest, ranges
from ffdl_batch.staging.stores.store import UNKNOWN, Item


class RunningDigest:
    """Of a file whose parts come in any order: it is made while they come, as far as there is no gap.

    So it costs no reading of a whole file when the last part is there. Calls may come from several threads at once.
    """

    def __init__(self, file: int, name: str) -> None:
        self.name = name
        self._file, self._digest = file, new_digest(name)
        self._at, self._came, self._lock = 0, dict[int, int](), threading.Lock()

    def came(self, start: int, end: int) -> None:
        """A range is in the file and stays as it is. Raises OSError, and EOFError where it is not."""
        self._came[start] = end
        while self._at in self._came and self._lock.acquire(blocking=False):  # else somebody is at it, and sees it
            try:
                while (until := self._came.pop(self._at, None)) is not None:
                    self._on(until)
            finally:
                self._lock.release()

    def hexdigest(self, size: int) -> str:
        """Of the whole file, which has all its parts. Raises OSError, EOFError."""
        with self._lock:
            self._on(size)
            return self._digest.hexdigest()

    def _on(self, until: int) -> None:
        digest_onto(self._digest, self._file, self._at, until)
        self._at = max(self._at, until)


@dataclass(slots=True)
class Half:
    """Descriptors of the file and its directory, and the parts that are to come."""

    name: str
    item: Item
    parts: Parts
    directory: int
    temporary: str
    file: int
    part_bytes: int
    digests: dict[int, str]
    lock: threading.Lock = field(default_factory=threading.Lock)
    remaining: int = 0
    wrong: Exception | None = None
    running: RunningDigest | None = None

    def ranges(self) -> list[tuple[int, int]]:
        """Of its parts, in order."""
        if self.item.size == UNKNOWN or not self.item.ranges:
            return [(0, self.item.size)]
        return ranges(self.item.size, self.part_bytes)

    def length(self, number: int) -> int:
        """Bytes of a part."""
        start, end = self.ranges()[number]
        return max(0, end - start)

    def needs_digests(self) -> bool:
        """Whether the MD5 of a part says anything: of the only one, or of one that the object was stored in."""
        return count_of_parts(self.item.etag) > 0 or self.item.size <= self.part_bytes or not self.item.ranges

    def run_digest(self) -> None:
        """Make the digest of the whole while parts come, where the store has one and there is more than one part."""
        item, found = self.item, self.ranges()
        name = "md5" if is_md5(item.etag) and not item.opaque else next(iter(item.digests), "")
        if not name or len(found) < 2:
            return
        self.running = RunningDigest(self.file, name)
        for number in self.digests:
            self.running.came(*found[number])

    def came(self, number: int) -> None:
        """A part is in the file. Raises OSError, EOFError."""
        if self.running is not None:
            self.running.came(*self.ranges()[number])

    def close(self) -> None:
        """Close both descriptors."""
        os.close(self.file)
        os.close(self.directory)
