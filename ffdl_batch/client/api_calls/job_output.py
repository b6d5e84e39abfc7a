"""Calls that find the output of a job, and receive its files from the daemon."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import IO, BinaryIO, cast
from urllib.parse import quote

from ffdl_batch.attempt.directory_tree import Directories
from ffdl_batch.attempt.file_writer import open_own
from ffdl_batch.client.api_calls.requests import read_answer, segment
from ffdl_batch.client.connection.http_client import STREAM_SILENCE_S, Request, Wire
from ffdl_batch.client.errors import ClientError, DaemonUnreachable, FileTooLarge
from ffdl_batch.domain.data.staging_protocol import Direction, FaultClass, fault_code
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.job.views import LEFT_OUT, UNREADABLE, OutputView, Problem, SupportPart
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.host.file_attributes import inner_target, set_permissions, shown, write_sparse
from ffdl_batch.staging.faults import NAMED, UNREAD_CURE, Skip, unread_text
from ffdl_batch.staging.object_names import is_wanted, parts_of

MOST_NOTES = 100
"""Maximum number of unreadable files that are reported one by one."""


@dataclass(frozen=True, slots=True)
class FileLimits:
    """Which files of an output are written."""

    only: tuple[str, ...] = ()
    """Patterns of their names; () for all."""
    most_bytes: int = 0
    """The maximum size of each; 0 = no limit."""


_ALL = FileLimits()


class JobOutput:
    """The calls about the output of a job, as :attr:`ffdl_batch.Client.output` has them."""

    def __init__(self, wire: Callable[[], Wire]) -> None:
        self._open = wire

    def find(self, job_id: str, kind: str = "results", attempt: int | None = None) -> OutputView:
        """Return where the results, model, logs or checkpoint (`kind`) are. Raises UnknownJob, RequestRefused."""
        with closing(self._open()) as wire:
            reply = wire.ask(Request("GET", _path(job_id, kind, attempt), job_id=job_id))
            return read_answer(OutputView, reply.get("output"))

    def support(self, job_id: str) -> tuple[SupportPart, ...]:
        """Return what the daemon has about a job for a support archive, without secrets. Raises UnknownJob,
        RequestRefused."""
        with closing(self._open()) as wire:
            reply = wire.ask(Request("GET", f"/api/v1/jobs/{segment(job_id)}/support", job_id=job_id))
            return tuple(read_answer(SupportPart, plain) for plain in reply.get("parts", ()))

    def bring(
        self,
        output: OutputView,
        into: Path,
        report: Callable[[int], None] = lambda _: None,
        note: Callable[[str], None] = lambda _: None,
        limits: FileLimits = _ALL,
    ) -> int:
        """Receive the directory's files from the daemon. Return their number. `report` gets the bytes received so far,
        and `note` gets a sentence about each entry that is left out: links that lead out of the directory, pipes,
        sockets and devices.

        Raises DaemonUnreachable if the connection breaks, FileTooLarge, OutputIncomplete after all other files are
        written if the daemon could not read some, and OSError. Nothing is written outside of `into`.
        """
        wire = self._open()
        path = _path(output.job_id, output.kind, output.attempt or None, "/files")
        try:
            request = Request("GET", path, job_id=output.job_id, timeout_s=STREAM_SILENCE_S)
            pieces = _Pieces(wire.pieces(request), report)
            return _unpack(pieces, into, (output.directory, *output.roots), note, limits)
        except (ConnectionError, tarfile.TarError) as error:
            raise DaemonUnreachable(f"the files of {output.job_id} broke off: {error}", "try again") from error
        finally:
            wire.close()


def _path(job_id: str, kind: str, attempt: int | None, rest: str = "") -> str:
    asked = f"?attempt={attempt}" if attempt is not None else ""
    return f"/api/v1/jobs/{segment(job_id)}/output/{quote(kind, safe='')}{rest}{asked}"


class OutputIncomplete(ClientError):
    """The daemon could not read some files of the output. All others are written."""


def _incomplete(unread: list[str]) -> OutputIncomplete:
    message = unread_text(len(unread), unread[:NAMED], "are copied")
    code = fault_code(FaultClass.REFUSED, Direction.IN)
    return OutputIncomplete(Problem(code, message, int(ExitCode.FAILED), UNREAD_CURE))


def _unpack(
    pieces: _Pieces, into: Path, roots: tuple[str, ...], note: Callable[[str], None], limits: FileLimits = _ALL
) -> int:
    count, modes, unread = 0, list[tuple[tuple[str, ...], int]](), list[str]()
    with (
        tarfile.open(fileobj=cast(BinaryIO, pieces), mode="r|") as archive,
        Directories(str(into), 0o777, unlock=True) as tree,
    ):
        for entry in _wanted(archive, limits, unread, note):
            try:
                parts = parts_of(entry.name, is_key=False)
            except Skip as why:
                note(f"{shown(entry.name)} is left out: {why}")
                continue
            content = archive.extractfile(entry) if entry.isreg() else None
            if content is not None:
                _write(content, entry, parts[-1], tree.enter(parts[:-1]))
                count += 1
            elif entry.isdir():
                tree.enter(parts)
                modes.append((parts, entry.mode))
            elif entry.issym():
                target = inner_target(entry.linkname, parts[:-1], roots)
                if target is None:
                    note(
                        f"{shown(entry.name)} is left out: it is a link that leads out of the directory, "
                        f"to {shown(entry.linkname)}"
                    )
                else:
                    _link(target, parts[-1], tree.enter(parts[:-1]))
        for parts, mode in reversed(modes):
            set_permissions(tree.enter(parts), mode)
    if not pieces.is_whole:
        raise ConnectionError("the end is missing")
    if unread:
        raise _incomplete(unread)
    return count


def _wanted(
    archive: tarfile.TarFile, limits: FileLimits, unread: list[str], note: Callable[[str], None]
) -> Iterator[tarfile.TarInfo]:
    """Yield the entries to write. Raises FileTooLarge."""
    for entry in archive:
        if _is_mark(entry, unread, note) or not (entry.isdir() or is_wanted(entry.name, limits.only)):
            continue
        if limits.most_bytes and entry.size > limits.most_bytes:
            why = f"{shown(entry.name)} has {entry.size} bytes; the maximum is {limits.most_bytes}"
            raise FileTooLarge(Problem(fault_code(FaultClass.TOO_LARGE, Direction.IN), why, int(ExitCode.FAILED)))
        yield entry


def _is_mark(entry: tarfile.TarInfo, unread: list[str], note: Callable[[str], None]) -> bool:
    """Return whether an entry only says that the daemon could not read a file, or left it out. Report it."""
    if why := entry.pax_headers.get(UNREADABLE):
        unread.append(f"{shown(entry.name)}: {shown(why)}")
        if len(unread) <= MOST_NOTES:
            note(f"{shown(entry.name)} cannot be read: {shown(why)}")
        return True
    if kind := entry.pax_headers.get(LEFT_OUT):
        note(f"{shown(entry.name)} is left out: it is {shown(kind)}")
        return True
    return False


def _link(target: str, name: str, directory: int) -> None:
    with suppress(OSError):  # it is not a link
        os.readlink(name, dir_fd=directory)
        os.unlink(name, dir_fd=directory)
    os.symlink(target, name, dir_fd=directory)


def _write(content: IO[bytes], entry: tarfile.TarInfo, name: str, directory: int) -> None:
    with os.fdopen(open_own(name, os.O_WRONLY | os.O_TRUNC, 0o666, dir_fd=directory), "wb") as writer:
        at = 0
        while data := content.read(1 << 20):
            write_sparse(writer.fileno(), data, at)
            at += len(data)
        os.ftruncate(writer.fileno(), at)
        set_permissions(writer.fileno(), entry.mode)
        os.utime(writer.fileno(), (entry.mtime, entry.mtime))


class _Pieces:
    """A file for sequential reading from a stream of pieces."""

    def __init__(self, pieces: Iterator[bytes], report: Callable[[int], None]) -> None:
        self._pieces, self._report = pieces, report
        self._rest = b""
        self._last = b""
        self._size = 0

    @property
    def is_whole(self) -> bool:
        """Whether the stream ended with the two blocks of zeros that end a tar. Reads the rest of it."""
        while self.read(1 << 20):
            pass
        return len(self._last) == 2 * tarfile.BLOCKSIZE and not any(self._last)

    def read(self, size: int = -1) -> bytes:
        """Return `size` bytes, or fewer at the end."""
        parts, missing = [self._rest], size - len(self._rest)
        while missing > 0 and (piece := next(self._pieces, b"")):
            self._size += len(piece)
            self._report(self._size)
            parts.append(piece)
            missing -= len(piece)
        data = b"".join(parts)
        taken, self._rest = data[:size], data[size:]
        self._last = (self._last + taken)[-2 * tarfile.BLOCKSIZE :]
        return taken
