"""What a job left: the client's calls that find it, and files of it that come through the daemon."""

from __future__ import annotations

import os
import shutil
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, cast
from urllib.parse import quote

from ffdl_batch.attempt.directories import Directories
from ffdl_batch.attempt.writer import open_own
from ffdl_batch.client.errors import DaemonUnreachable, RequestRefused
from ffdl_batch.client.job_paths import segment
from ffdl_batch.client.wire import STREAM_SILENCE_S, Request, Wire
from ffdl_batch.domain.codec import CodecError, from_plain
from ffdl_batch.domain.views import LeftView, Problem
from ffdl_batch.staging.faults import Skip
from ffdl_batch.staging.names import parts_of


class Left:
    """What can be asked about what a job left; :attr:`ffdl_batch.Client.left` is one."""

    def __init__(self, wire: Callable[[], Wire]) -> None:
        self._open = wire

    def find(self, job_id: str, kind: str = "results", attempt: int | None = None) -> LeftView:
        """Where its results, model, logs or checkpoint (`kind`) lie; raises UnknownJob, RequestRefused."""
        wire = self._open()
        try:
            plain = wire.ask(Request("GET", _path(job_id, kind, attempt), job_id=job_id)).get("left")
            return from_plain(LeftView, plain)
        except CodecError as error:
            problem = Problem("S106", f"the daemon's answer cannot be read: {error}", 1)
            raise RequestRefused(problem) from error
        finally:
            wire.close()

    def bring(self, left: LeftView, into: Path, told: Callable[[int], None] = lambda _: None) -> int:
        """Have the daemon send the directory's files; how many came. `told` hears how many bytes have come.

        Raises DaemonUnreachable where it broke off, and OSError. Nothing is written outside of `into`.
        """
        wire = self._open()
        path = _path(left.job_id, left.kind, left.attempt or None, "/files")
        try:
            pieces = _Pieces(wire.pieces(Request("GET", path, job_id=left.job_id, timeout_s=STREAM_SILENCE_S)), told)
            return _unpack(pieces, into)
        except (ConnectionError, tarfile.TarError) as error:
            raise DaemonUnreachable(f"the files of {left.job_id} broke off: {error}", "try again") from error
        finally:
            wire.close()


def _path(job_id: str, kind: str, attempt: int | None, rest: str = "") -> str:
    asked = f"?attempt={attempt}" if attempt is not None else ""
    return f"/api/v1/jobs/{segment(job_id)}/left/{quote(kind, safe='')}{rest}{asked}"


def _unpack(pieces: _Pieces, into: Path) -> int:
    count = 0
    with tarfile.open(fileobj=cast(BinaryIO, pieces), mode="r|") as archive, Directories(str(into), 0o777) as tree:
        for entry in archive:
            content = archive.extractfile(entry) if entry.isreg() else None
            if content is None:
                continue
            try:
                *above, name = parts_of(entry.name)
            except Skip:
                continue
            descriptor = open_own(name, os.O_WRONLY | os.O_TRUNC, 0o666, dir_fd=tree.enter(tuple(above)))
            with os.fdopen(descriptor, "wb") as writer:
                shutil.copyfileobj(content, writer, 1 << 20)
                os.utime(descriptor, (entry.mtime, entry.mtime))
            count += 1
    if not pieces.is_whole:
        raise ConnectionError("the end is missing")
    return count


class _Pieces:
    """A stream of pieces as a file that is read from front to back."""

    def __init__(self, pieces: Iterator[bytes], told: Callable[[int], None]) -> None:
        self._pieces, self._told = pieces, told
        self._rest = b""
        self._last = b""
        self._size = 0

    @property
    def is_whole(self) -> bool:
        """Whether the stream ended with the two blocks of zeros that end a tar; reads what is left of it."""
        while self.read(1 << 20):
            pass
        return len(self._last) == 2 * tarfile.BLOCKSIZE and not any(self._last)

    def read(self, size: int = -1) -> bytes:
        """So many bytes, fewer at the end alone."""
        parts, missing = [self._rest], size - len(self._rest)
        while missing > 0 and (piece := next(self._pieces, b"")):
            self._size += len(piece)
            self._told(self._size)
            parts.append(piece)
            missing -= len(piece)
        data = b"".join(parts)
        taken, self._rest = data[:size], data[size:]
        self._last = (self._last + taken)[-2 * tarfile.BLOCKSIZE :]
        return taken
