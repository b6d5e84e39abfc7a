"""Move a user's files by the staging program, a child process.

The task and the values of secrets are passed in memory that only the two processes have, never by a file or argument.
The program's journal is in the user's cache directory, so that the same command continues where an earlier one ended.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from ffdl_batch.client.errors import ClientError, FileTooLarge
from ffdl_batch.client.stores.credentials import Access
from ffdl_batch.domain.data.staging_protocol import (
    Direction,
    Done,
    Failed,
    FaultClass,
    Line,
    StageTask,
    Transfer,
    encode_task,
    fault_code,
    read_line,
)
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.job.views import Problem
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.host.resource_exhaustion import explain_disk
from ffdl_batch.host.users import base_directory

KEPT_S = 30 * 86400.0
"""How long the journal of an unfinished transfer is kept."""
_ENDS_WITHIN_S = 5.0
_WITHOUT = "no credentials were given: name secrets (--secret), or set the variables of this store's own programs"
_EXIT = {
    FaultClass.CREDENTIALS: ExitCode.NOT_ALLOWED,
    FaultClass.MISSING: ExitCode.NO_INPUT,
    FaultClass.FULL: ExitCode.TRY_AGAIN,
    FaultClass.NETWORK: ExitCode.TRY_AGAIN,
    FaultClass.LIBRARY: ExitCode.UNAVAILABLE,
    FaultClass.TASK: ExitCode.BAD_MANIFEST,
}


class TransferFailed(ClientError):
    """The staging program could not move the files; what it has moved is kept for the next attempt."""


@dataclass(frozen=True, slots=True)
class Move:
    """Files between a prefix of a store and a local directory; see
    :class:`~ffdl_batch.domain.data.staging_protocol.Transfer`."""

    direction: Direction
    access: Access
    prefix: str
    local: Path
    only: tuple[str, ...] = ()
    replaces: bool = True
    parallel: int = 8
    roots: tuple[str, ...] = ()
    most_file_bytes: int = 0
    """The maximum size of a file; 0 = no limit."""
    memory: str = ""
    """The name of its journal; "" for a name from its source and target."""

    @property
    def name(self) -> str:
        """Return the name, which does not depend on credentials."""
        if self.memory:
            return self.memory
        store = self.access.address
        words = (self.direction.value, store.kind.value, store.endpoint, store.container, self.prefix, str(self.local))
        return hashlib.sha256("\0".join((*words, *self.only)).encode("utf-8", "surrogateescape")).hexdigest()[:32]


def move(move: Move, report: Callable[[Line], None], each_s: float, environ: Mapping[str, str]) -> Done:
    """Move the files. `report` gets the program's lines, with progress each `each_s`. Raises TransferFailed,
    FileTooLarge.

    Ctrl-C ends the program. What has moved is not moved again.
    """
    memory = transfers_dir(environ)
    forget_old(memory, time.time())
    return _run(move, memory / move.name, report, each_s)


def list_store(access: Access, prefix: str, report: Callable[[Line], None]) -> Done:
    """Report each object below the prefix as an Entry. Raises TransferFailed."""
    with tempfile.TemporaryDirectory() as directory:
        asked = Move(Direction.IN, access, prefix, Path(directory))
        return _run(asked, Path(directory) / "state", report, KEPT_S, "--list")


def transfers_dir(environ: Mapping[str, str]) -> Path:
    """Return the directory in which transfers are remembered."""
    return Path(base_directory(environ, "XDG_CACHE_HOME", ".cache"), "ffdl", "transfers")


def forget_old(memory: Path, now: float) -> None:
    """Remove journals that have not been used for KEPT_S."""
    with suppress(OSError):
        for path in memory.iterdir():
            used = max((file.stat().st_mtime for file in path.glob("journal.sqlite*")), default=path.stat().st_mtime)
            if now - used > KEPT_S:
                shutil.rmtree(path, ignore_errors=True)


def _run(move: Move, state: Path, report: Callable[[Line], None], each_s: float, *options: str) -> Done:
    try:
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        lack = explain_disk(error)
        kind, exit_code = (FaultClass.FULL, ExitCode.TRY_AGAIN) if lack else (FaultClass.REFUSED, ExitCode.FAILED)
        message = lack or f"{state} cannot be made: {error.strerror}"
        raise _failed(fault_code(kind, move.direction), message, exit_code) from error
    transfer = Transfer(move.access.address, move.prefix, str(move.local), move.only, roots=move.roots)
    with _in_memory(json.dumps(dict(move.access.values))) as secrets:
        task = StageTask(
            move.direction,
            (transfer,),
            str(state),
            f"/dev/fd/{secrets}",
            parallel=move.parallel,
            rate_line_s=each_s,
            replaces=move.replaces,
            most_file_bytes=move.most_file_bytes,
        )
        with _in_memory(encode_task(task)) as written:
            # Imports must not depend on the current directory or, in our own commands, on PYTHONPATH.
            flags = ["-P", *(["-E"] if sys.flags.ignore_environment else [])]
            argv = [sys.executable, *flags, "-m", "ffdl_batch.staging", f"/dev/fd/{written}", *options]
            with subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, pass_fds=(secrets, written), text=True
            ) as process:
                return _follow(process, report, move.direction, has_credentials=bool(move.access.values))


def _follow(
    process: subprocess.Popen[str], report: Callable[[Line], None], direction: Direction, *, has_credentials: bool
) -> Done:
    assert process.stdout is not None
    last: Line | None = None
    try:
        for text in process.stdout:
            line = read_line(text)
            if isinstance(line, (Done, Failed)):
                last = line
            elif line is not None:
                report(line)
        status = process.wait()
    except BaseException:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_ENDS_WITHIN_S)
        process.kill()
        raise
    if isinstance(last, Done):
        return last
    if isinstance(last, Failed):
        if last.class_ is FaultClass.TOO_LARGE:
            raise FileTooLarge(Problem(last.code, last.message, int(ExitCode.FAILED)))
        cure = "" if has_credentials or last.class_ is not FaultClass.CREDENTIALS else _WITHOUT
        raise _failed(last.code, last.message, _EXIT.get(last.class_, ExitCode.FAILED), cure)
    code = fault_code(FaultClass.INTERNAL, direction)
    raise _failed(code, f"the staging program exited with status {status} without a message", ExitCode.FAILED)


def _failed(code: str, message: str, exit_code: ExitCode, cure: str = "") -> TransferFailed:
    return TransferFailed(Problem(code, message, int(exit_code), cure))


@contextmanager
def _in_memory(text: str) -> Iterator[int]:
    """Yield a descriptor of a file that is in no directory."""
    descriptor = os.memfd_create("ffdl", os.MFD_CLOEXEC)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", closefd=False) as writer:
            writer.write(text)
        yield descriptor
    finally:
        os.close(descriptor)
