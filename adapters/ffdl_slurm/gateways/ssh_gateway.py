"""Slurm by its command line on a login node, over SSH: for a machine that has no Slurm and sees the cluster's files.

The commands and their parsers are those of the command line. Job directories are not copied: the tree must be the same
file system, by the same name, here, on the login node and on the compute nodes, and where it is not, no job is
accepted. One connection is kept; each command is a channel of it. A daemon has nobody to ask: keys come from files
without a passphrase, or from an agent.
"""

from __future__ import annotations

import os
import secrets
import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING

from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.ports.scheduler import (
    InvalidRequest,
    NotNow,
    SchedulerMissing,
    SchedulerUnreachable,
    SubmissionUncertain,
)
from ffdl_batch.ssh.channels import lost_errors
from ffdl_batch.ssh.connection import Connector
from ffdl_batch.ssh.errors import SshFailed
from ffdl_batch.ssh.login_shell import at_login
from ffdl_slurm import commands
from ffdl_slurm.gateways import error_mapping, submission_files
from ffdl_slurm.gateways.cli_gateway import CommandLineGateway
from ffdl_slurm.gateways.command_runner import KEPT, OPTION_VARIABLES, CommandResult, CommandTimeout, umask_text
from ffdl_slurm.gateways.trial_output import in_local_time
from ffdl_slurm.output_text import LONG, shorten

if TYPE_CHECKING:
    import paramiko

_BLOCK = 1 << 16
_NOT_FOUND = 127
_MARK = "ffdl-begins-"
_QUERY = "LC_ALL=C SLURM_TIME_FORMAT=%s SLURM_BITSTR_LEN=0; export LC_ALL SLURM_TIME_FORMAT SLURM_BITSTR_LEN"
_SUBMIT = "LC_ALL=C; export LC_ALL"
_TRIAL = "LC_ALL=C SLURM_TIME_FORMAT=%s; export LC_ALL SLURM_TIME_FORMAT"
"""The login node may be in another time zone."""
_REPLIED = (
    'd={directory}; e=$(mktemp "$d/complaint.XXXXXX") || exit 75; o=$({command} 2>"$e"); c=$?; '
    'printf "%s\\n" "$o" >>"$d/{reply}"; cat "$e" >>"$d/{complaint}"; '
    'printf "%s\\n" "$o"; cat "$e" >&2; rm -f "$e"; exit $c'
)
"""The reply is in its file before it is sent: who loses the connection finds it there."""


class SshGateway(CommandLineGateway):
    """See :class:`ffdl_slurm.gateways.gateway.SlurmGateway`."""

    def __init__(self, timeout_s: float, host: str, connector: Connector | None = None) -> None:
        """Connects when something is asked."""
        super().__init__(timeout_s, host)
        self._connector = connector or Connector(host, os.environ)
        self._login = host
        self._known_uid: int | None = None

    def submit(self, attempt: AttemptDir, umask: int) -> str:
        """See the port. The lock keeps this machine's other daemons away; those of another are kept away by the lock of
        the state directory."""
        argv = commands.sbatch_argv(attempt.script)
        with submission_files.hold_submission(attempt), submission_files.open_replies(attempt) as files:
            submission_files.begin_reply(files)
            script = _REPLIED.format(
                directory=shlex.quote(attempt.submit),
                command=shlex.join(argv),
                reply=submission_files.REPLY,
                complaint=submission_files.COMPLAINT,
            )
            channel = self._open()
            try:
                begin = f"{_SUBMIT}; export SLURM_UMASK={umask_text(umask)}"
                ended = self._run_script(channel, argv, f"{begin}; {script}", self._timeout_s)
            except (CommandTimeout, _Lost) as error:
                raise SubmissionUncertain(f"{error}; the job is looked for before it is submitted again") from error
            end = os.fstat(files[0]).st_size
        if ended.returncode > 0:
            with submission_files.open_replies(attempt) as files:
                submission_files.disown_reply(attempt, files, end)
        return error_mapping.read_submission(ended, self._login)

    def test_only(self, attempt: AttemptDir, script: str) -> str:
        """See the port. The script lies in the tree for that long: there the login node sees it."""
        place = Path(attempt.path)
        while not place.is_dir():
            place = place.parent
        try:
            with NamedTemporaryFile("w", dir=place, prefix=".test-only-", suffix=".sh", encoding="utf-8") as file:
                file.write(script)
                file.flush()
                argv = commands.test_only_argv(file.name)
                try:
                    result = self._run_script(self._open(), argv, f"{_TRIAL}; exec {shlex.join(argv)}", self._timeout_s)
                except (CommandTimeout, _Lost) as error:
                    raise SchedulerUnreachable(str(error)) from error
        except OSError as error:
            raise NotNow(f"{place} cannot be written: {error.strerror}; it is tried again") from error
        error_mapping.check_trial(result)
        return in_local_time(shorten(result.text, LONG)).removeprefix("sbatch: ")

    def check_tree(self, root: str) -> None:
        """Whether the login node sees our tree, by a file that nobody can guess. Raises InvalidRequest, NotNow."""
        word = secrets.token_hex(16)
        try:
            with NamedTemporaryFile("w", dir=root, prefix=".seen-", encoding="ascii") as file:
                file.write(word)
                file.flush()
                os.fsync(file.fileno())
                seen = self.run(["cat", file.name], self._timeout_s).stdout.strip()
        except OSError as error:
            raise NotNow(f"{root} cannot be written: {error.strerror}; it is tried again") from error
        except CommandTimeout as error:
            raise SchedulerUnreachable(str(error)) from error
        if seen != word:
            raise InvalidRequest(
                f"{self._login} does not see {root}, where this machine's daemon keeps its jobs; set jobs_dir to a "
                "directory that is the same here, there and on the nodes, or work with its own daemon: ffdl --host "
                f"{self._login}"
            )

    def close(self) -> None:
        """See the port."""
        self._connector.close()

    def run(self, argv: Sequence[str], timeout_s: float) -> CommandResult:
        """One command that asks. Raises CommandTimeout, SchedulerMissing, SchedulerUnreachable."""
        try:
            result = self._run_script(self._open(), argv, f"{_QUERY}; exec {shlex.join(argv)}", timeout_s)
        except _Lost as error:
            raise SchedulerUnreachable(str(error)) from error
        if result.returncode == _NOT_FOUND:
            raise SchedulerMissing(f"{argv[0]} is not there on {self._login} after a login: {result.said}")
        return result

    def _uid(self) -> int:
        """Over there: it may be another one than here."""
        if self._known_uid is None:
            said = self._run(["id", "-u"]).stdout.strip()
            if not said.isdecimal():
                raise SchedulerUnreachable(f"{self._login} does not say who we are there: {shorten(said)}")
            self._known_uid = int(said)
        return self._known_uid

    def _run(self, argv: list[str]) -> CommandResult:
        try:
            return self.run(argv, self._timeout_s)
        except CommandTimeout as error:
            raise SchedulerUnreachable(str(error)) from error

    def _open(self) -> paramiko.Channel:
        """Nothing was sent where this raises SchedulerUnreachable."""
        try:
            return self._connector.session()
        except SshFailed as error:
            cure = f" ({error.cure})" if error.cure else ""
            raise SchedulerUnreachable(f"{error.message}{cure}") from error

    def _run_script(
        self, channel: paramiko.Channel, argv: Sequence[str], script: str, timeout_s: float
    ) -> CommandResult:
        """The words of a shell, after a mark on both streams: what a login prints stands before it."""
        mark = _MARK + secrets.token_hex(8)
        begun = f"printf '\\n%s\\n' {mark}; printf '\\n%s\\n' {mark} >&2; {_clean()}; {script}"
        try:
            with channel:
                channel.exec_command(at_login(["/bin/sh", "-c", begun]))
                channel.shutdown_write()
                out, err = _read(channel, timeout_s)
                code = int(channel.recv_exit_status())
                lost = code < 0 and not channel.get_transport().is_active()
        except TimeoutError:
            raise CommandTimeout(f"{argv[0]} on {self._login} did not answer within {timeout_s:g} s") from None
        except lost_errors() as error:
            raise _Lost(f"the connection to {self._login} was lost while {argv[0]} ran: {error}") from error
        if lost:
            raise _Lost(f"the connection to {self._login} was lost while {argv[0]} ran")
        return CommandResult(tuple(argv), code, _after(out, mark), _after(err, mark))


class _Lost(Exception):
    """Nobody knows how far the command got."""


def ssh_argv(host: str, words: Sequence[str]) -> list[str]:
    """The same over there, for a person's own ssh."""
    return ["ssh", "-o", "BatchMode=yes", host, at_login(words)]


def _clean() -> str:
    """Option variables of Slurm that a profile over there may set, but for those that name the cluster."""
    names = " ".join(f"-e 's/^\\({prefix}[A-Z0-9_]*\\)=.*/\\1/p'" for prefix in OPTION_VARIABLES)
    kept = "|".join(sorted(KEPT))
    return f'for n in $(env | sed -n {names}); do case "$n" in {kept}) ;; *) unset "$n";; esac; done'


def _after(data: bytes, mark: str) -> str:
    return data.decode("utf-8", "replace").partition(f"{mark}\n")[2]


def _read(channel: paramiko.Channel, timeout_s: float) -> tuple[bytes, bytes]:
    """Both streams to their end. Raises TimeoutError."""
    end = time.monotonic() + timeout_s
    out, err = bytearray(), bytearray()
    pause = 0.001
    while True:
        got = False
        while channel.recv_ready():
            out += channel.recv(_BLOCK)
            got = True
        while channel.recv_stderr_ready():
            err += channel.recv_stderr(_BLOCK)
            got = True
        if not got and channel.exit_status_ready() and channel.eof_received:
            break
        if not got and channel.closed:
            break
        if time.monotonic() > end:
            raise TimeoutError
        if not got:
            time.sleep(pause)
            pause = min(pause * 2, 0.05)
    while channel.recv_ready():
        out += channel.recv(_BLOCK)
    while channel.recv_stderr_ready():
        err += channel.recv_stderr(_BLOCK)
    return bytes(out), bytes(err)
