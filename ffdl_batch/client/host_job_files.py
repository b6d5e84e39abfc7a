"""Jobs on a host that has no ffdl: each is a directory there, with its model, its script, and all that it leaves.

Files go by a stream that the host's tar unpacks, and come back by SFTP. ``by-id`` has a link for each job that the
scheduler accepted. What is done with jobs is the scheduler's own commands' (:mod:`ffdl_batch.ports.remote_scheduler`).
"""

from __future__ import annotations

import re
import secrets
import shlex
import stat
import tarfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from ffdl_batch.attempt.model_archive import ModelArchive
from ffdl_batch.client.connection.host_relay import unreachable
from ffdl_batch.client.errors import DaemonUnreachable, UnknownJob
from ffdl_batch.client.submissions.model_archive import open_model
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.job.views import Problem
from ffdl_batch.ssh.channels import lost_errors
from ffdl_batch.ssh.errors import SshFailed
from ffdl_batch.ssh.login_shell import at_login

if TYPE_CHECKING:
    import paramiko

    from ffdl_batch.ssh.connection import Connector

SCRIPT, SECRETS, MODEL = "job.sbatch", "secrets.sh", "model"
_BY_ID = "by-id"
_RUN = "training-"
"""How a run's directory begins; then the scheduler's id."""
_SILENT_S = 120.0
_BLOCK = 1 << 18
_UNPACK = 'umask 077; mkdir -p -- "$1" && cd -- "$1" && exec tar -xf -'
_ID = re.compile(r"[0-9]+(?:_[0-9]+)?", re.ASCII)


class HostJobs:
    """The directory of jobs on one host; `place` is the configuration's, below the home unless it is absolute."""

    def __init__(self, host: str, connector: Connector, place: str) -> None:
        self.host = host
        self._connector, self._place = connector, place.removeprefix("~/")
        self._known: str | None = None
        self._sftp: Any = None

    @property
    def base(self) -> str:
        """Absolute."""
        if self._known is None:
            with self._asked() as files:
                self._known = str(PurePosixPath(files.normalize("."), self._place))
        return self._known

    @property
    def index(self) -> str:
        """Where the links are."""
        return f"{self.base}/{_BY_ID}"

    def new_directory(self, name: str) -> str:
        """A name for one that is not there yet."""
        plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip(".-")[:40] or "job"
        return f"{self.base}/{plain}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"

    def send(self, directory: str, model: Path, files: Mapping[str, str]) -> None:
        """Model and `files`, by name, into a new directory; others can read none of it."""
        with open_model(model) as archive:
            channel = self._session()
            try:
                channel.settimeout(_SILENT_S)
                channel.exec_command(at_login(["/bin/sh", "-c", _UNPACK, "sh", directory]))
                lost = ""
                try:
                    with tarfile.open(fileobj=_Stream(channel), mode="w|", bufsize=_BLOCK) as packed:  # type: ignore[call-overload]
                        _pack(packed, archive.file, files)
                    channel.shutdown_write()
                except lost_errors() as error:  # tar's own word, if it has one, says more
                    lost = str(error) or type(error).__name__
                code, said = _end(channel)
            except lost_errors() as error:
                raise self._gone(error) from error
            finally:
                channel.close()
        if code or lost:
            raise DaemonUnreachable(
                f"the files could not be written to {directory} on {self.host}: {said or lost or f'exit code {code}'}",
                "is there space, and may you write there? host_dir in the configuration (FFDL_HOST_DIR) says where",
                ExitCode.FAILED if code > 0 else ExitCode.TRY_AGAIN,
            )

    def ids(self) -> list[str]:
        """Of all jobs that were submitted so, the newest first."""
        found = [name for name in self._names(self.index) if name.isdecimal()]
        return sorted(found, key=int, reverse=True)

    def directory_of(self, job_id: str) -> str:
        """Of a job, or of the array of a task. Raises UnknownJob."""
        if _ID.fullmatch(job_id):
            try:
                with self._asked() as files:
                    if target := files.readlink(f"{self.index}/{job_id.partition('_')[0]}"):
                        return str(target)
            except FileNotFoundError:
                pass  # said below
        raise UnknownJob(
            Problem(
                "S100",
                f"{self.host}: no job {job_id[:80]} was submitted from outside into {self.base}",
                int(ExitCode.NO_INPUT),
                "ffdl list shows them",
            )
        )

    def runs(self, job_id: str) -> dict[str, str]:
        """The directories of a job, or of an array's tasks, by their ids; none before it has begun."""
        directory = self.directory_of(job_id)
        ids = (name.removeprefix(_RUN) for name in self._names(directory) if name.startswith(_RUN))
        found = [one for one in ids if one == job_id or one.partition("_")[0] == job_id]
        return {one: f"{directory}/{_RUN}{one}" for one in sorted(found, key=lambda one: (len(one), one))}

    def logs(self, run: str) -> dict[int, str]:
        """The logs of a run's learners, by number."""
        found = [re.fullmatch(r"learner-([0-9]+)", name) for name in self._names(f"{run}/logs")]
        numbers = sorted(int(one[1]) for one in found if one)
        return {number: f"{run}/logs/learner-{number}/training-log.txt" for number in numbers}

    def outputs(self, job_id: str) -> list[str]:
        """What the script itself printed."""
        directory, own = self.directory_of(job_id), f"slurm-{job_id}"
        names = [name for name in self._names(directory) if name == f"{own}.out" or name.startswith(f"{own}_")]
        return [f"{directory}/{name}" for name in sorted(names)]

    def read(self, path: str, offset: int) -> bytes:
        """What stands there from `offset` on; nothing where there is no such file yet."""
        try:
            with self._asked() as files, files.open(path, "rb") as reader:
                reader.seek(offset)
                data: bytes = reader.read(_BLOCK)
        except FileNotFoundError:
            return b""
        return data

    def exists(self, path: str) -> bool:
        """Whether the host has such a file."""
        try:
            with self._asked() as files:
                files.stat(path)
        except FileNotFoundError:
            return False
        return True

    def fetch(self, path: str, target: Path) -> int:
        """Copy the tree below `path`, and count its files. Links and what is no file stay there."""
        count = 0
        waiting = [(path, target)]
        while waiting:
            there, here = waiting.pop()
            for name, mode in self._entries(there):
                if stat.S_ISDIR(mode):
                    waiting.append((f"{there}/{name}", here / name))
                elif stat.S_ISREG(mode):
                    here.mkdir(parents=True, exist_ok=True)
                    with self._asked() as files:
                        files.get(f"{there}/{name}", str(here / name))
                    count += 1
        return count

    def _names(self, path: str) -> list[str]:
        return [name for name, _ in self._entries(path)]

    def _entries(self, path: str) -> list[tuple[str, int]]:
        """Nothing where there is no such directory. A name that leads elsewhere is no name."""
        try:
            with self._asked() as files:
                found = files.listdir_attr(path)
        except FileNotFoundError:
            return []
        return [(one.filename, one.st_mode or 0) for one in found if "/" not in one.filename and one.filename != ".."]

    @contextmanager
    def _asked(self) -> Iterator[Any]:
        """SFTP, one for all questions. Raises DaemonUnreachable; FileNotFoundError is the asker's."""
        try:
            yield self._files()
        except FileNotFoundError:
            raise
        except PermissionError as error:
            message = f"{self.host}: {self._place}: {error.strerror or error}"
            raise DaemonUnreachable(message, "", ExitCode.NOT_ALLOWED) from error
        except lost_errors() as error:
            raise self._gone(error) from error

    def _files(self) -> Any:
        """Anew where the connection broke since it was last used."""
        if self._sftp is None or self._sftp.get_channel().closed:
            try:
                self._sftp = self._connector.transport().open_sftp_client()
            except SshFailed as error:
                raise unreachable(error) from error
            except lost_errors() as error:
                raise DaemonUnreachable(f"{self.host} takes no SFTP: {error}", "", ExitCode.UNAVAILABLE) from error
            self._sftp.get_channel().settimeout(_SILENT_S)
        return self._sftp

    def _session(self) -> paramiko.Channel:
        try:
            return self._connector.session()
        except SshFailed as error:
            raise unreachable(error) from error

    def _gone(self, error: Exception) -> DaemonUnreachable:
        why = str(error) or type(error).__name__
        return DaemonUnreachable(f"the connection to {self.host} was lost: {why}", "try again; jobs go on")


class _Stream:
    """A channel's input, as a file."""

    def __init__(self, channel: paramiko.Channel) -> None:
        self._channel = channel

    def write(self, data: bytes) -> int:
        """All of it."""
        self._channel.sendall(data)
        return len(data)


def _end(channel: paramiko.Channel) -> tuple[int, str]:
    """Exit code, and the last line of its complaints."""
    said = b""
    while data := channel.recv_stderr(_BLOCK):
        said += data
    lines = [line.strip() for line in said.decode("utf-8", "replace").splitlines() if line.strip()]
    return int(channel.recv_exit_status()), lines[-1] if lines else ""


def _pack(packed: tarfile.TarFile, archive: Any, files: Mapping[str, str]) -> None:
    model = ModelArchive(archive, "the model")
    packed.addfile(_directory(MODEL))
    for member in model.members:
        name = "/".join((MODEL, *member.parts))
        if member.is_directory:
            packed.addfile(_directory(name))
            continue
        entry = tarfile.TarInfo(name)
        entry.size, entry.mtime = member.info.file_size, int(time.time())
        entry.mode = 0o755 if member.mode & 0o111 else 0o644
        with model.open(member) as reader:
            packed.addfile(entry, reader)
    for name, text in files.items():
        data = text.encode()
        entry = tarfile.TarInfo(name)
        entry.size, entry.mode, entry.mtime = len(data), 0o600, int(time.time())
        packed.addfile(entry, BytesIO(data))


def _directory(name: str) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode, entry.mtime = tarfile.DIRTYPE, 0o755, int(time.time())
    return entry


def export_lines(values: Mapping[str, str]) -> str:
    """The text of a file that exports variables, for any shell."""
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in values.items())
