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
_FIRST_YEAR, _LAST_YEAR = 1980, 2107
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
        zipfile.ZipFile(sink, "w", compresslevel=1) as target,
    ):
        for member in archive:
            if why := member.pax_headers.get(UNREADABLE):
                unreadable.append(f"{_printable(member.name)}: {why}\n")
            elif (file := _content(archive, member)) is not None:
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
    entry = zipfile.ZipInfo(_printable(member.name), _moment(member.mtime))
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.external_attr = (0o100000 | member.mode & 0o777) << 16
    return entry


def _printable(name: str) -> str:
    """Return a name with bytes that are not UTF-8 as escapes, because names in a zip are text."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _moment(mtime: float) -> tuple[int, int, int, int, int, int]:
    """Return the local time, or the first one of the format if the format cannot have it."""
    try:
        year, *rest = time.localtime(mtime)[:6]
    except (OverflowError, OSError, ValueError):
        year, rest = 0, []
    month, day, hour, minute, second = rest if _FIRST_YEAR <= year <= _LAST_YEAR else (1, 1, 0, 0, 0)
    return (year if rest and _FIRST_YEAR <= year <= _LAST_YEAR else _FIRST_YEAR, month, day, hour, minute, second)


def file_of(tar: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the content of the only file. Raises OSError and tarfile.TarError."""
    with tarfile.open(fileobj=_Source(tar), mode="r|") as archive:
        for member in archive:
            if (file := _content(archive, member)) is not None:
                while data := file.read(CHUNK):
                    yield data
