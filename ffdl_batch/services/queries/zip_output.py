"""Convert the tar stream of a job's output to a zip, or extract its only file."""

from __future__ import annotations

import io
import tarfile
import time
import zipfile
from collections.abc import Iterator
from typing import IO

from ffdl_batch.domain.job.views import LEFT_OUT, UNREADABLE

CHUNK = 1 << 20
NOTE = "ffdl-unreadable-files.txt"
"""The entry that names files and directories which could not be read; only if there are any."""


class _Source(io.RawIOBase):
    """The pieces of an iterator as a file."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces, self._rest = pieces, b""

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        """Return `size` bytes, fewer at the end."""
        parts, left = [self._rest], size - len(self._rest)
        while left > 0 and (piece := next(self._pieces, None)) is not None:
            parts.append(piece)
            left -= len(piece)
        data = b"".join(parts)
        self._rest = data[size:]
        return data[:size]


class _Sink(io.RawIOBase):
    """Collects written data until it is taken. Not seekable, so zipfile never rewrites headers."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: bytes, /) -> int:  # type: ignore[override]  # any buffer in the base class
        self._parts.append(bytes(data))
        return len(data)

    def take(self) -> bytes:
        """Return what was written since the last call."""
        data = b"".join(self._parts)
        self._parts.clear()
        return data


def zip_of(tar: Iterator[bytes]) -> Iterator[bytes]:
    """Yield a zip of the regular files. Raises OSError and tarfile.TarError."""
    sink, unreadable = _Sink(), []
    with (
        tarfile.open(fileobj=_Source(tar), mode="r|") as archive,
        zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as target,
    ):
        for member in archive:
            if why := member.pax_headers.get(UNREADABLE):
                unreadable.append(f"{member.name}: {why}\n")
            elif (
                LEFT_OUT not in member.pax_headers
                and member.isreg()
                and (file := archive.extractfile(member)) is not None
            ):
                with target.open(_entry(member), "w", force_zip64=True) as entry:
                    while data := file.read(CHUNK):
                        entry.write(data)
                        yield sink.take()
        if unreadable:
            target.writestr(NOTE, "".join(unreadable))
    yield sink.take()


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> IO[bytes] | None:
    """Return the content of a regular file; None for other entries."""
    return archive.extractfile(member) if member.isreg() and LEFT_OUT not in member.pax_headers else None


def _entry(member: tarfile.TarInfo) -> zipfile.ZipInfo:
    latest_year, earliest_year = 2107, 1980  # of the format
    moment = time.localtime(member.mtime)[:6]
    entry = zipfile.ZipInfo(member.name, moment if earliest_year <= moment[0] <= latest_year else (1980, 1, 1, 0, 0, 0))
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.external_attr = (0o100000 | member.mode & 0o777) << 16
    return entry


def file_of(tar: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the content of the only file. Raises OSError and tarfile.TarError."""
    with tarfile.open(fileobj=_Source(tar), mode="r|") as archive:
        for member in archive:
            if (file := _content(archive, member)) is not None:
                while data := file.read(CHUNK):
                    yield data
