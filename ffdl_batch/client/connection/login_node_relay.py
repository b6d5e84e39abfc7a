"""Talks to a daemon on another login node through ``ssh HOST ffdl-submitd dial``.

`dial` copies bytes between its standard streams and the daemon's socket, so what arrives here is an ordinary
connected socket. Nothing is ever asked on the terminal: without keys or a ticket the attempt fails.
"""

from __future__ import annotations

import shlex
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from typing import IO

from ffdl_batch.client.connection.http_client import connection_over
from ffdl_batch.client.errors import DaemonUnreachable
from ffdl_batch.config.daemon_location import DaemonLock

_OPTIONS = ("-o", "BatchMode=yes", "-o", "ConnectTimeout=10")
_NOT_FOUND = 127
"""Exit code of a shell that does not know the command (POSIX, 2.8.2)."""
_ENDS_WITHIN_S = 5.0
_FIRST_ANSWER_S = 80.0
"""ssh may take its ConnectTimeout, then log in, then start Python from a network file system."""


class Relay:
    """One ssh process and our end of the socket pair that is its standard input and output."""

    def __init__(self, process: subprocess.Popen[bytes], connection: socket.socket, errors: IO[bytes]) -> None:
        self._process = process
        self._errors = errors
        self.connection = connection

    def close(self) -> None:
        """End the relay; ssh ends by itself when its input closes."""
        self.connection.close()
        try:
            self._process.wait(_ENDS_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()

    def failure(self) -> tuple[int, str]:
        """Exit code and last words of a relay that closed before it answered. Call once; closes everything."""
        self.connection.close()
        try:
            code = self._process.wait(_ENDS_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        self._errors.seek(0)
        text = self._errors.read(4096).decode("utf-8", "replace").strip()
        self._errors.close()
        return code, text.splitlines()[-1] if text else ""


def open_relay(host: str, program: str, environ: Mapping[str, str]) -> Relay:
    """Start ssh to `host`; raises :class:`DaemonUnreachable` where there is no ssh program."""
    ssh = environ.get("FFDL_SSH") or "ssh"
    ours, theirs = socket.socketpair()
    errors = tempfile.TemporaryFile()  # noqa: SIM115  (closed by the Relay)
    try:
        process = subprocess.Popen(
            [ssh, *_OPTIONS, host, *_remote_command(program, environ)],
            stdin=theirs.fileno(),
            stdout=theirs.fileno(),
            stderr=errors,
            start_new_session=True,  # Ctrl-C is for us: it must not break the connection under a running request
        )
    except OSError as error:
        ours.close()
        errors.close()
        raise DaemonUnreachable(
            f"your daemon runs on {host} and {ssh} cannot be started: {error.strerror}",
            f"run this command on {host}, or set FFDL_SSH to an ssh program",
        ) from error
    finally:
        theirs.close()
    return Relay(process, ours, errors)


def remote_programs() -> tuple[str, ...]:
    """What to call on the other node: our own installation (homes are shared), else what its PATH has."""
    own = Path(sys.executable).parent / "ffdl-submitd"
    return (str(own), "ffdl-submitd") if own.exists() else ("ffdl-submitd",)


def _remote_command(program: str, environ: Mapping[str, str]) -> list[str]:
    """The words that the other node's shell reads; ssh passes no environment, so the state directory is named."""
    words = [shlex.quote(program), "dial"]
    state_dir = environ.get("FFDL_STATE_DIR")
    return ["env", shlex.quote(f"FFDL_STATE_DIR={state_dir}"), *words] if state_dir else words


def dial_host(lock: DaemonLock, environ: Mapping[str, str]) -> Relay:
    """A relay to the daemon on `lock.host` that has answered a request; raises :class:`DaemonUnreachable`."""
    code, words = 0, ""
    for program in remote_programs():
        relay = open_relay(lock.host, program, environ)
        if _answers(relay.connection):
            return relay
        code, words = relay.failure()
        if code != _NOT_FOUND:
            break
    raise DaemonUnreachable(
        f"your daemon runs on {lock.host} (process {lock.pid}) and cannot be reached from here over SSH: "
        f"{words or f'ssh ended with code {code}'}",
        f"run this command on {lock.host}, or make `ssh -o BatchMode=yes {lock.host} true` work; "
        f"if {lock.host} is gone for good: ffdl-submitd --force-take-over-from {lock.host}",
    )


def _answers(connection: socket.socket) -> bool:
    """Whether a daemon is at the other end: the relay itself says nothing until it is asked."""
    http = connection_over(connection)
    connection.settimeout(_FIRST_ANSWER_S)
    try:
        http.request("GET", "/api/v1/health")
        with http.getresponse() as response:
            response.read()
            return response.status == HTTPStatus.OK
    except (OSError, HTTPException):
        return False
