"""Finds the output of a job (results, submitted model, logs, checkpoints), and sends it as a tar archive."""

from __future__ import annotations

import errno
import os
import stat
import tarfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import BinaryIO

from ffdl_batch.attempt.directory_tree import Directories, roots_of, walk
from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.attempt.reader import NO_FILE, kind_of, open_regular, status_of
from ffdl_batch.domain.job.job import Job, attempt_token
from ffdl_batch.domain.job.submission import Caller
from ffdl_batch.domain.job.views import LEFT_OUT, UNREADABLE, JobView, OutputView
from ffdl_batch.domain.launch.launch_file import LaunchFile, Pod
from ffdl_batch.domain.launch.placeholders import fill
from ffdl_batch.domain.launch.pod_protocol import TREE
from ffdl_batch.domain.number_text import counted
from ffdl_batch.domain.scheduler_errors import InvalidRequest, SchedulerUnreachable
from ffdl_batch.host.file_attributes import permission_bits
from ffdl_batch.ports.capabilities import ReadsClaims
from ffdl_batch.services.backends.adapters import Adapters
from ffdl_batch.services.job_storage import JobStorage
from ffdl_batch.services.outcome.attempt_records import read_launch
from ffdl_batch.services.queries.jobs import detailed, own_job
from ffdl_batch.services.queries.pod_output import where_kept, where_stored
from ffdl_batch.services.refusals import try_again, unavailable, wrong_state, wrong_usage
from ffdl_batch.staging.faults import ERRORS_OF_ONE

CHUNK = 1 << 20


class OutputKind(StrEnum):
    """The kinds of output."""

    RESULTS = "results"
    MODEL = "model"
    LOGS = "logs"
    CHECKPOINT = "checkpoint"


def find_output(
    storage: JobStorage, adapters: Adapters, caller: Caller, job_id: str, kind: OutputKind, attempt: int | None
) -> OutputView:
    """Return where the output is. Raises Refused if it does not exist (any more), and OSError."""
    job = own_job(storage.store, caller, job_id)
    if attempt is not None and not 1 <= attempt <= job.attempt:
        raise wrong_usage(f"{job.id} has {counted(job.attempt, 'attempt')}; there is no attempt {attempt}")
    found = _place(storage, adapters, job, kind, attempt)
    if found.store is not None or found.claimed:
        return found
    path = Path(found.directory, found.name)
    try:
        if found.name and not path.is_file():
            raise FileNotFoundError
        with Directories(found.directory, below=storage.root.job(job.id).path) as tree:
            return replace(found, inode=os.fstat(tree.enter(())).st_ino)
    except FileNotFoundError:
        raise wrong_state(f"{job.id} has no {kind} any more: {path} does not exist") from None
    except NotADirectoryError as error:
        raise wrong_state(f"{found.directory}: {error.strerror}", cure="a learner may have replaced it") from None


def _place(storage: JobStorage, adapters: Adapters, job: Job, kind: OutputKind, attempt: int | None) -> OutputView:
    directory = storage.root.job(job.id)
    view = OutputView(job.id, kind, job.state, secrets=directory.secrets)
    if kind is OutputKind.MODEL:
        path = Path(directory.model_archive)
        return replace(view, directory=str(path.parent), name=path.name)
    if not job.state.is_terminal:
        view = replace(view, is_partial=True, note=f"{job.id} is {job.state}: its output is not complete")
    shown = detailed(storage, adapters, job)
    number = attempt or max((one.number for one in shown.attempts if one.logs), default=0)
    if not number:
        raise wrong_state(f"{job.id} is {job.state}, and none of its attempts got as far as its learners")
    own = directory.attempt(number)
    view = replace(view, attempt=number)
    launch = read_launch(own)
    if kind is OutputKind.LOGS:
        in_pods = launch is not None and launch.pod is not None  # only logs with output are copied from pods
        if not (view.is_partial or in_pods or _has_log_file(own, job.most_learners)):
            view = replace(view, note=f"{job.id} has no logs any more: no log file of a learner is in {own.logs}")
        return replace(view, directory=own.logs)
    if launch is not None:
        directory_of_kind = launch.checkpoints if kind is OutputKind.CHECKPOINT else own.results
        view = replace(view, roots=roots_of(launch, directory_of_kind))
    if launch is not None and launch.pod is not None:
        adapter = adapters.get(job.backend)
        return _of_pods(view, kind, launch, launch.pod, reads=isinstance(adapter, ReadsClaims))
    if kind is OutputKind.CHECKPOINT:
        return replace(view, directory=(launch.checkpoints if launch else "") or directory.checkpoints)
    return _results(view, shown, own, launch, attempt)


def _has_log_file(attempt: AttemptDir, learners: int) -> bool:
    """Return whether the log file of any learner exists. Node controllers create them before they start learners."""
    return any(status_of(attempt.training_log(number)) is not None for number in range(1, learners + 1))


def _results(
    view: OutputView, job: JobView, own: AttemptDir, launch: LaunchFile | None, attempt: int | None
) -> OutputView:
    """Return where results are: in the attempt's own directory if `attempt` is given, if the attempt is running or if
    its upload is pending; else in the store."""
    here = replace(view, directory=own.results)
    if attempt is not None or view.is_partial:
        return here
    if any(one.upload_pending for one in job.attempts if one.number == view.attempt):
        return replace(here, note="the results could not be stored yet; these are the attempt's own")
    for upload in launch.uploads if launch is not None else ():
        if fill(upload.local, {}) == own.results:
            return replace(here, store=upload.store, prefix=fill(upload.prefix, {}))
    return replace(view, directory=job.results) if job.results else here


def _of_pods(view: OutputView, kind: OutputKind, launch: LaunchFile, pod: Pod, *, reads: bool) -> OutputView:
    """Return where the output of pods is: in the store, or in a claim that the backend can read (`reads`).

    The files of pods are not on this host, except their logs.
    """
    if view.is_partial:
        note = f"{view.job_id} is {view.state}: pods store when their learners have ended; its output is not complete"
        view = replace(view, note=note)
    local = launch.checkpoints if kind is OutputKind.CHECKPOINT else AttemptDir(launch.attempt_dir).results
    for upload in launch.uploads:
        if fill(upload.local, {}) == local:
            return replace(view, store=upload.store, prefix=fill(upload.prefix, {}))
    where, cure = where_kept(pod, local)
    claimed = "" if pod.apart else f"/{local.removeprefix(f'{TREE}/')}"
    if kind is OutputKind.RESULTS and launch.stores.results:
        if Path(launch.stores.results).is_dir():
            return replace(view, directory=launch.stores.results)
        where, cure = where_stored(launch)
        local, claimed = launch.stores.results, pod.place_of(launch.stores.results)
    if claimed and reads:
        return replace(view, directory=local, claimed=claimed)
    raise wrong_state(f"the {kind} of {view.job_id} are not on this host: they {where}", cure=cure)


def send_output(  # noqa: PLR0913 - what selects the files, and what reads them
    storage: JobStorage,
    adapters: Adapters,
    caller: Caller,
    job_id: str,
    kind: OutputKind,
    attempt: int | None,
    *,
    near: bool = False,
) -> Iterator[bytes]:
    """Return the files of a directory, or of a claim, as a tar. With `near`, files that are also in a store
    come from the attempt's own directory. Raises Refused and OSError, as :func:`find_output`."""
    output = find_output(storage, adapters, caller, job_id, kind, attempt)
    if near and output.store is not None and output.directory:
        output = find_output(storage, adapters, caller, job_id, kind, output.attempt)
    if output.store is not None:
        raise wrong_state(f"the {kind} of {output.job_id} are in a store", cure=f"ffdl download {output.job_id}")
    if output.claimed:
        return _from_claim(adapters, own_job(storage.store, caller, job_id), output)
    return archive_output(output)


def _from_claim(adapters: Adapters, job: Job, output: OutputView) -> Iterator[bytes]:
    claim, _, below = output.claimed.partition("/")
    try:
        adapter = adapters.get(job.backend)
        assert isinstance(adapter, ReadsClaims)  # find_output raises Refused otherwise
        return adapter.read_claim(attempt_token(job.id, output.attempt), claim, below)
    except FileNotFoundError:
        raise wrong_state(f"{job.id} has no {output.kind} (any more): {below} is not in the claim") from None
    except InvalidRequest as error:
        raise unavailable(f"the {output.kind} of {job.id} cannot be read in the claim: {error}") from error
    except SchedulerUnreachable as error:
        raise try_again("S200", f"the {output.kind} of {job.id} cannot be read in the claim now: {error}") from error


def archive_output(output: OutputView) -> Iterator[bytes]:
    """Yield the files as a tar, with links, directories and modes; each file with the size that it had when it was
    opened. Links are stored unchanged and not followed. Files and directories that cannot be read are entries with the
    header UNREADABLE; pipes, sockets and devices are entries with the header LEFT_OUT. Raises OSError."""
    unread: list[tuple[str, OSError]] = []
    with Directories(output.directory) as tree:
        if output.inode and os.fstat(tree.enter(())).st_ino != output.inode:
            raise OSError(errno.ESTALE, "the directory was replaced", output.directory)
        for parts, directory, entries in walk(tree, unread=lambda name, error: unread.append((name, _of_one(error)))):
            if parts:
                yield _head("/".join(parts), tarfile.DIRTYPE, os.fstat(directory))
            for name in [output.name] if output.name else [entry.name for entry in entries]:
                path = "/".join((*parts, name))
                try:
                    reader = open_regular(name, dir_fd=directory)
                except NO_FILE:
                    pass
                except OSError as error:
                    unread.append((path, _of_one(error)))
                    continue
                else:
                    with reader:
                        yield from _file(path, reader)
                    continue
                with suppress(OSError):  # it was removed or replaced meanwhile
                    yield _special(path, name, directory)
            if output.name:
                break
    for path, why in unread:
        yield _mark(path, UNREADABLE, why.strerror or str(why))
    yield bytes(2 * tarfile.BLOCKSIZE)


def _of_one(error: OSError) -> OSError:
    """Return the error. Raises it if it does not concern only one file."""
    if error.errno not in ERRORS_OF_ONE:
        raise error
    return error


def _special(path: str, name: str, directory: int) -> bytes:
    """Return the entry of a link, pipe, socket or device; nothing for other files. Raises OSError."""
    found = os.stat(name, dir_fd=directory, follow_symlinks=False)
    if stat.S_ISLNK(found.st_mode):
        return _head(path, tarfile.SYMTYPE, os.stat_result((0,) * 10), os.readlink(name, dir_fd=directory))
    if stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode):
        return b""
    return _mark(path, LEFT_OUT, kind_of(found.st_mode))


def _mark(name: str, header: str, text: str) -> bytes:
    """Return an entry that has only a header."""
    entry = tarfile.TarInfo(name)
    entry.pax_headers = {header: text}
    return entry.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def _head(name: str, kind: bytes, found: os.stat_result, target: str = "") -> bytes:
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode, entry.mtime, entry.linkname = kind, permission_bits(found.st_mode), found.st_mtime, target
    entry.size = found.st_size if kind == tarfile.REGTYPE else 0
    return entry.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def _file(name: str, reader: BinaryIO) -> Iterator[bytes]:
    found = os.fstat(reader.fileno())
    yield _head(name, tarfile.REGTYPE, found)
    left = found.st_size
    while left:
        data = reader.read(min(CHUNK, left))
        if not data:
            raise OSError(f"{name} became shorter while it was read")
        left -= len(data)
        yield data
    yield bytes(-found.st_size % tarfile.BLOCKSIZE)
