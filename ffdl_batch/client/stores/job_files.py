"""Copy the output of a job into a directory: from its store, its directory, or the daemon. List it, and open a file."""

from __future__ import annotations

import glob
import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from ffdl_batch.attempt.directory_tree import Directories, Gone, remove_tree
from ffdl_batch.attempt.reader import DamagedFile, open_regular
from ffdl_batch.domain.data.staging_protocol import Direction, Done, Entry, Line, Note, Progress
from ffdl_batch.domain.data.store_kinds import StoreAddress, StoreKind
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.staging.faults import Skip
from ffdl_batch.staging.object_names import parts_of

if TYPE_CHECKING:
    from ffdl_batch.client.api_calls.job_output import JobOutput
    from ffdl_batch.client.connection.ways import Way
    from ffdl_batch.client.stores.credentials import Access
    from ffdl_batch.client.stores.user_secrets import UserSecrets
    from ffdl_batch.domain.job.views import OutputView

Report = Callable[[Line], None]


@dataclass(frozen=True, slots=True)
class OwnPlace:
    """The place of the program that copies."""

    secrets: UserSecrets
    """The user's secrets, which are on the daemon's host."""
    is_other_host: bool
    """Whether the daemon is on another host, so that its paths are not those of this machine."""
    environ: Mapping[str, str]
    """Contains the credentials of stores, and the directory with the state of unfinished copies."""


@dataclass(frozen=True, slots=True)
class Copy:
    """What is copied, and how."""

    output: OutputView
    directory: Path
    """The absolute path of the target."""
    replaces: bool = False
    """Whether files of the directory that differ are replaced."""
    parallel: int = 8
    only: tuple[str, ...] = ()
    """Patterns of the files to copy; () for all."""
    most_file_bytes: int = 0
    """The maximum size of a file; 0 = no limit."""


def bring_output(output: JobOutput, copy: Copy, place: OwnPlace, report: Report, each_s: float) -> Done:
    """Copy the files. `report` gets notes, and progress each `each_s`. Raises ClientError, and OutputIncomplete after
    all other files are copied if the daemon could not read some."""
    from ffdl_batch.client.stores.transfers import Move, move

    with _source(output, copy, place, report) as (access, prefix, memory):
        roots = (copy.output.directory, *copy.output.roots)
        asked = Move(
            Direction.IN,
            access,
            prefix,
            copy.directory,
            copy.only,
            copy.replaces,
            copy.parallel,
            roots,
            copy.most_file_bytes,
            memory,
        )
        return move(asked, report, each_s, place.environ)


class OnlyWithDaemon(Exception):
    """The files are on the daemon's host, and this machine does not see them."""


class _Enough(Exception):
    """The listing has as many files as were asked for."""


def list_output(output: OutputView, place: OwnPlace, most: int) -> tuple[list[Entry], bool]:
    """Return the first `most` files, and whether these are all. Links are not followed. Raises ClientError and
    OnlyWithDaemon."""
    from ffdl_batch.client.stores.transfers import list_store

    readable = _readable(output, place)
    if readable is None:
        raise OnlyWithDaemon
    found: list[Entry] = []

    def report(line: Line) -> None:
        if isinstance(line, Entry):
            if len(found) == most:
                raise _Enough
            found.append(line)

    try:
        list_store(*readable, report)
    except _Enough:
        return found, False
    return found, True


def open_output(output: OutputView, place: OwnPlace, name: str, most_stored_bytes: int) -> BinaryIO:
    """Open one file of the output for reading. A file of a store is copied into a temporary file first, if it has at
    most `most_stored_bytes`.

    No link is followed. Raises FileNotFoundError, also for a name that leads out of the directory, OnlyWithDaemon,
    FileTooLarge, other ClientErrors and OSError.
    """
    from ffdl_batch.client.stores.transfers import Move, move

    readable = _readable(output, place)
    if readable is None:
        raise OnlyWithDaemon
    try:
        parts = parts_of(name, is_key=False)
    except Skip:
        raise FileNotFoundError(name) from None
    if output.store is None:
        return _open_in(output.directory, parts, output.inode)
    with tempfile.TemporaryDirectory(prefix="ffdl-") as scratch:
        asked = Move(
            Direction.IN, *readable, Path(scratch, "files"), (glob.escape(name),), most_file_bytes=most_stored_bytes
        )
        move(asked, lambda _: None, 3600.0, {**place.environ, "XDG_CACHE_HOME": scratch})
        return _open_in(str(asked.local), parts)


def _open_in(directory: str, parts: tuple[str, ...], inode: int = 0) -> BinaryIO:
    try:
        with Directories(directory) as tree:
            if inode and os.fstat(tree.enter(())).st_ino != inode:
                raise FileNotFoundError(directory)
            return open_regular(parts[-1], dir_fd=tree.enter(parts[:-1]))
    except (Gone, DamagedFile, NotADirectoryError):
        raise FileNotFoundError(str(Path(directory, *parts))) from None


def place_of(way: Way, environ: Mapping[str, str], state_dir: Path | None = None) -> OwnPlace:
    """Return the place of a program that reaches the daemon by `way`. `state_dir` overrides that of the environment."""
    from ffdl_batch.client.connection.daemon_location import HostPlace
    from ffdl_batch.client.connection.daemon_settings import own_settings
    from ffdl_batch.client.connection.site_daemon import SitePlace
    from ffdl_batch.client.stores.user_secrets import RemoteUserSecrets, UnreadableUserSecrets, UserSecrets

    if way is None or isinstance(way, SitePlace):
        own = own_settings(environ, state_dir if way is None else way.state_dir)
        return OwnPlace(UserSecrets(Path(own.settings.jobs_dir)), is_other_host=False, environ=environ)
    if not isinstance(way, HostPlace):
        return OwnPlace(UnreadableUserSecrets(way.url), is_other_host=True, environ=environ)
    from ffdl_batch.client.connection.host_relay import connector_of

    return OwnPlace(RemoteUserSecrets(way, connector_of(way.host, environ)), is_other_host=True, environ=environ)


@contextmanager
def _source(calls: JobOutput, copy: Copy, place: OwnPlace, report: Report) -> Iterator[tuple[Access, str, str]]:
    """Yield the source of the files, a prefix in it, and the name of the transfer.

    The source is the store; or the job's directory, if this machine sees it and it is complete; or a directory with the
    files that the daemon sends, which is removed afterwards. Raises OutputIncomplete afterwards if the daemon could not
    read all files.
    """
    from ffdl_batch.client.api_calls.job_output import FileLimits, OutputIncomplete
    from ffdl_batch.client.stores.credentials import Access
    from ffdl_batch.client.stores.transfers import transfers_dir

    output = copy.output
    words = (output.job_id, output.kind, str(copy.directory))
    memory = hashlib.sha256("\0".join(words).encode("utf-8", "surrogateescape")).hexdigest()[:32]
    readable = None if output.is_partial and output.store is None else _readable(output, place)
    if readable is not None:
        yield *readable, memory
        return
    directory = StoreAddress(StoreKind.FILE, container=output.directory)

    def progressed(size: int) -> None:
        report(Progress(0, 0, size, size, 0.0))

    sent = transfers_dir(place.environ) / memory / "sent"
    remove_tree(str(sent))
    try:
        sent.mkdir(mode=0o700, parents=True)
        incomplete: OutputIncomplete | None = None
        try:
            limits = FileLimits(() if output.name else copy.only, copy.most_file_bytes)
            calls.bring(output, sent, progressed, lambda what: report(Note(what)), limits)
        except OutputIncomplete as error:
            incomplete = error
        yield Access(replace(directory, container=str(sent)), {}), output.name, memory
        if incomplete is not None:
            raise incomplete
    finally:
        with suppress(OSError):
            remove_tree(str(sent))


def _readable(output: OutputView, place: OwnPlace) -> tuple[Access, str] | None:
    """Return the store or directory, and the prefix in it; None for a directory that only the daemon sees. Raises
    InputUnusable."""
    from ffdl_batch.client.stores.credentials import Access, of_job

    if output.store is not None:
        near = bool(output.directory)
        access = of_job(output.store, Path(output.secrets), place.secrets, place.environ, near=near)
        return access, output.prefix
    if place.is_other_host or not _is_seen(output):
        return None
    return Access(StoreAddress(StoreKind.FILE, container=output.directory), {}), output.name


def _is_seen(output: OutputView) -> bool:
    """Return whether the path is the same directory on this machine as on the daemon's."""
    try:
        return Path(output.directory).stat().st_ino == output.inode and os.access(output.directory, os.R_OK | os.X_OK)
    except OSError:
        return False
