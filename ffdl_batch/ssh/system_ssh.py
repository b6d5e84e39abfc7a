"""Runs commands with the system's ssh program, and so with its configuration, agents, tickets, certificates and keys.

All commands share one connection (ControlMaster): that of the user's ssh if it keeps one, else one that ends with this
process. It is made by a separate ssh process that can ask on the terminal, and that later Ctrl-C does not reach.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import IO

from ffdl_batch.domain.terminal_text import printable
from ffdl_batch.ssh.errors import CommandLost, SshFailed
from ffdl_batch.ssh.host_config import HostConfig, check_jumps, read_destination, read_host
from ffdl_batch.ssh.ssh_messages import explain, is_final, is_host_key_unknown

_KEPT_S = 600
"""How long a connection remains after its process was killed."""
_ENDS_WITHIN_S = 5.0
_TMP = "/tmp"  # noqa: S108  (the directory in it is new, and of mode 0700)
_DIAGNOSIS_S = 60.0
_FAILED = 255
"""ssh's own failure, ssh(1). A command may exit with it, too."""


class _Client:
    """See :class:`ffdl_batch.ssh.connection.Process`."""

    def __init__(self, owner: SystemSsh, argv: Sequence[str], environ: Mapping[str, str]) -> None:
        self._owner = owner
        self.connection, theirs = socket.socketpair()
        self.errors, their_errors = socket.socketpair()
        try:
            self._process = subprocess.Popen(
                argv,
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=their_errors.fileno(),
                env=dict(environ),
                start_new_session=True,
            )
        except OSError as error:
            self.connection.close()
            self.errors.close()
            raise SshFailed(f"{argv[0]} cannot be started: {error.strerror}") from error
        finally:
            theirs.close()
            their_errors.close()

    def wait(self, timeout_s: float | None) -> int:
        """See the protocol."""
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise TimeoutError from None
        if code == _FAILED and not self._owner.is_connected():
            raise CommandLost(f"the connection to {self._owner.name} was lost", "try again; jobs are not affected")
        return code if code >= 0 else _FAILED

    def close(self) -> None:
        """See the protocol."""
        self.connection.close()
        self.errors.close()
        self._process.terminate()
        try:
            self._process.wait(_ENDS_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class SystemSsh:
    """See :class:`ffdl_batch.ssh.connection.Transport`. `via`: hosts to pass instead of those of the configuration."""

    def __init__(
        self,
        program: str,
        config: HostConfig,
        environ: Mapping[str, str],
        *,
        may_ask: bool,
        via: Sequence[str] = (),
    ) -> None:
        self._program, self._environ = program, environ
        self._config = replace(config, proxy_jump=tuple(via)) if via else config
        self._asks = may_ask and not config.batch_mode and _has_terminal(environ)
        self._via = via
        self._lock = threading.Lock()
        self._directory: str | None = None

    @property
    def name(self) -> str:
        """The name of the host in messages."""
        return self._config.asked

    def start(self, line: str) -> _Client:
        """See the protocol."""
        self._connect()
        return _Client(
            self,
            self._argv(*self._shared(), "-o", "LogLevel=ERROR", "-o", "BatchMode=yes", "-T", command=line),
            self._environ,
        )

    def run_on_terminal(self, line: str) -> int:
        """See the protocol."""
        self._connect()
        argv = self._argv(*self._shared(), "-o", "LogLevel=ERROR", "-tt", "-e", "none", command=line)
        code = subprocess.run(argv, check=False, env=dict(self._environ)).returncode
        if code == _FAILED and not self.is_connected():
            raise CommandLost(f"the connection to {self.name} was lost", "try again; jobs are not affected")
        return code if code >= 0 else _FAILED

    def is_connected(self) -> bool:
        """Return whether the shared connection is open."""
        return _is_served(self._socket())

    def close(self) -> None:
        """See the protocol. The connection of the user's ssh is left."""
        with self._lock:
            if self._directory is not None:
                self._run(self._argv(*self._shared(), "-O", "exit"))
                shutil.rmtree(self._directory, ignore_errors=True)
                self._directory = None

    def _socket(self) -> str:
        """Return the path of the connection's socket: ssh's own if it has or keeps one, else one of this process."""
        path = self._config.control_path
        if path and (self._config.keeps_connection or _is_served(path)):
            return path
        if self._directory is None:
            self._directory = _make_directory(self._environ.get("XDG_RUNTIME_DIR") or _TMP)
        return f"{self._directory}/s"

    def _shared(self) -> tuple[str, ...]:
        return ("-o", "ControlMaster=no", "-o", f"ControlPath={self._socket()}")

    def _argv(self, *more: str, command: str = "") -> list[str]:
        """Return a command line of ssh. ssh uses the first value of an option, so the configuration cannot change
        these."""
        config = self._config
        options = [
            "StrictHostKeyChecking=yes",
            f"ConnectTimeout={config.connect_timeout_s:.0f}",
            f"ServerAliveInterval={config.alive_interval_s}",
            f"ServerAliveCountMax={config.alive_count}",
            "ClearAllForwardings=yes",
            "ForwardX11=no",
            "PermitLocalCommand=no",
            *([] if self._asks else ["BatchMode=yes"]),
            *(["RemoteCommand=none"] if config.has_remote_command else []),
        ]
        file = ["-F", config.config_file] if config.config_file else []
        jumps = ["-J", ",".join(self._via)] if self._via else []
        options_of_ssh = [word for option in options for word in ("-o", option)]
        host = ["-l", config.user, "-p", str(config.port), config.asked]
        return [self._program, *file, *options_of_ssh, *jumps, *more, *host, *([command] if command else [])]

    def _connect(self) -> None:
        with self._lock:
            if self.is_connected():
                return
            check_jumps(self._config, self._environ)
            is_own = self._socket() != self._config.control_path
            own = ("-M", "-o", f"ControlPath={self._socket()}", "-o", f"ControlPersist={_KEPT_S}") if is_own else ()
            code, lines = self._run_and_show(self._argv("-o", "LogLevel=INFO", *own, "-f", "-N"))
            if code != 0:
                raise self._explain(code, lines)

    def _run_and_show(self, argv: Sequence[str]) -> tuple[int, list[str]]:
        """Run ssh, which may ask, and return its exit status and what it printed. A person sees that at once."""
        lines: list[str] = []
        try:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env=dict(self._environ),
                start_new_session=not self._asks,
            )
        except OSError as error:
            raise SshFailed(f"{argv[0]} cannot be started: {error.strerror}") from error
        assert process.stderr is not None
        reader = threading.Thread(target=self._collect, args=(process.stderr, lines), daemon=True)
        reader.start()
        try:
            code = process.wait()
        except BaseException:
            process.terminate()  # it restores the terminal
            process.wait()
            raise
        if code != 0:  # otherwise the connection is open, and its process may hold the pipe
            reader.join(_ENDS_WITHIN_S)
        return code, lines

    def _collect(self, source: IO[bytes], lines: list[str]) -> None:
        with source:
            for data in source:
                line = printable(data.decode("utf-8", "replace").strip())
                lines.append(line)
                if self._asks and line and not is_final(line):
                    sys.stderr.write(f"{line}\n")
                    sys.stderr.flush()

    def _explain(self, code: int, lines: Sequence[str]) -> SshFailed:
        """Find out why there is no connection. A jump host is tried by itself, because ssh hides what it printed."""
        for number, jump in enumerate(self._config.proxy_jump):
            config = read_host(read_destination(jump), self._environ)
            via = self._config.proxy_jump[:number]
            hop = SystemSsh(self._program, config, self._environ, may_ask=False, via=via)
            try:
                hop._connect()
            except SshFailed as error:
                return error
            finally:
                hop.close()
        details = ""
        if is_host_key_unknown(lines):
            details = self._run(self._argv("-o", "LogLevel=DEBUG1", "-o", "BatchMode=yes", command="true"))
        return explain(self._config, code, lines, details, asks=self._asks)

    def _run(self, argv: Sequence[str]) -> str:
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            done = subprocess.run(
                argv,
                check=False,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_DIAGNOSIS_S,
                env=dict(self._environ),
                start_new_session=True,
            )
            return done.stderr.decode("utf-8", "replace")
        return ""


def _make_directory(place: str) -> str:
    """Make a directory for the socket, in /tmp if not in `place`. A socket's path must be short. Raises SshFailed."""
    try:
        return tempfile.mkdtemp(prefix="ffdl-ssh-", dir=place)
    except OSError as error:
        if place != _TMP:
            return _make_directory(_TMP)
        raise SshFailed(f"{place} cannot be written to: {error.strerror}", "free some space there") from error


def _is_served(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except OSError:
            return False
    return True


def _has_terminal(environ: Mapping[str, str]) -> bool:
    """Return whether ssh can ask a person: on the terminal, or by SSH_ASKPASS."""
    if environ.get("SSH_ASKPASS"):
        return True
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True
