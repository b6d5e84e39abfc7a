"""Connects to a daemon on another host over SSH: ``ffdl daemon relay`` there joins its streams to the daemon's socket.

The relay is a command of that host, so it finds or starts the daemon as other commands do. Its first line, the
greeting, has its release and its warnings. The bytes of the daemon's socket follow.
"""

from __future__ import annotations

import atexit
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ffdl_batch import __version__
from ffdl_batch.client.connection.daemon_location import PROGRAM, HostPlace
from ffdl_batch.client.connection.http_client import Channel
from ffdl_batch.client.errors import DaemonUnreachable
from ffdl_batch.config.daemon_location import DaemonLock
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.host.descriptors import write_all
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.ssh.connection import END_S, START_S, Completed, Connector, RemoteCommand
from ffdl_batch.ssh.errors import CommandLost, ProgramMissing, SshFailed
from ffdl_batch.ssh.framing import read_through

GREETING = "ffdl-relay"
"""The first word of the greeting; then the format, and an object of JSON."""
FORMAT = 1
_MAX_GREETING_BYTES = 1 << 16
_NOT_FOUND, _NOT_EXECUTABLE = 127, 126
_CONNECTORS: dict[tuple[str, bool], Connector] = {}
_CONNECTORS_LOCK = threading.Lock()


def connector_of(host: str, environ: Mapping[str, str], *, may_ask: bool = True) -> Connector:
    """Return the connection to a host. This process uses one connection for everything on that host."""
    with _CONNECTORS_LOCK:
        found = _CONNECTORS.get((host, may_ask))
        if found is None:
            found = _CONNECTORS[host, may_ask] = Connector(host, environ, may_ask=may_ask)
            atexit.register(found.close)  # the connection is a process of its own, with ssh or with a proxy
        return found


class ProgramNotFound(DaemonUnreachable):
    """The host was reached, and its login shell finds no ffdl."""

    def __init__(self, place: HostPlace) -> None:
        super().__init__(
            f"{place.host} has no {place.program} in the PATH of a login shell",
            f"install it: ffdl setup {place.host}; or set its path: FFDL_HOST_PROGRAM, or host_program in the "
            "configuration",
            ExitCode.UNAVAILABLE,
        )


def dial_login_node(lock: DaemonLock, environ: Mapping[str, str], state_dir: Path) -> RemoteCommand:
    """Connect to the daemon of the same state directory on `lock.host`. Does not prompt on the terminal.

    Raises DaemonUnreachable. Login nodes share their homes, so our own installation is tried first.
    """
    connector = connector_of(lock.host, environ, may_ask=False)
    own = Path(sys.executable).parent / PROGRAM
    failure: DaemonUnreachable | None = None
    for program in [str(own), PROGRAM] if own.exists() else [PROGRAM]:
        place = HostPlace(lock.host, program, str(state_dir))
        try:
            return dial_relay(place, connector, lambda _: None, ["--no-forward"])
        except DaemonUnreachable as error:
            failure = error
            if not isinstance(error, ProgramNotFound):
                break
    assert failure is not None
    raise DaemonUnreachable(
        f"your daemon runs on {lock.host} (process {lock.pid}) and cannot be reached from here over SSH: "
        f"{failure.problem.message}",
        f"run this command on {lock.host}, or make `ssh -o BatchMode=yes {lock.host} true` work; "
        f"if {lock.host} is gone for good: ffdl-submitd --force-take-over-from {lock.host}",
    ) from failure


def dial_relay(
    place: HostPlace, connector: Connector, warn: Callable[[str], None], options: list[str] | None = None
) -> RemoteCommand:
    """Connect to the daemon of `place`. Raises DaemonUnreachable. `warn` gets the warnings of the relay."""
    try:
        command = connector.start(place.words("daemon", "relay", *(options or [])))
    except ProgramMissing as error:
        raise ProgramNotFound(place) from error
    except SshFailed as error:
        raise DaemonUnreachable.because(error) from error
    try:
        greeting = _read_greeting(place, command)
    except BaseException:
        command.close()
        raise
    for warning in greeting.warnings:
        warn(f"{place.host}: {warning}")
    if greeting.release != __version__:
        warn(
            f"ffdl on {place.host} is release {greeting.release}, this program is {__version__}: install the same "
            "release on both if something fails"
        )
    return command


@dataclass(frozen=True, slots=True)
class _Greeting:
    release: str
    warnings: tuple[str, ...]


def _read_greeting(place: HostPlace, command: RemoteCommand) -> _Greeting:
    deadline = time.monotonic() + START_S
    line = b""
    try:
        while not line.endswith(b"\n") and len(line) < _MAX_GREETING_BYTES:
            more = read_through(command.connection, b"\n", deadline)
            line += more
            if not more:
                ended = command.read_to_end(time.monotonic() + END_S)
                raise _explain(place, Completed(ended.code, line, ended.err))
    except TimeoutError as error:
        message = f"ffdl on {place.host} sent no greeting within {START_S:g} s"
        raise DaemonUnreachable(message, f"try: ssh {place.host} ffdl daemon status") from error
    except CommandLost as error:
        raise DaemonUnreachable.because(error) from error
    return _parse_greeting(place, line)


def _parse_greeting(place: HostPlace, line: bytes) -> _Greeting:
    word, _, rest = line.decode("utf-8", "replace").strip().partition(" ")
    number, _, text = rest.partition(" ")
    try:
        plain: dict[str, Any] = json.loads(text) if (word, number) == (GREETING, str(FORMAT)) else {}
        return _Greeting(str(plain["release"]), tuple(str(one) for one in plain["warnings"]))
    except (ValueError, KeyError, TypeError) as error:
        raise DaemonUnreachable(
            f"this program (release {__version__}) cannot read the greeting of ffdl on {place.host}",
            "install the same release on both",
            ExitCode.UNAVAILABLE,
        ) from error


def _explain(place: HostPlace, ended: Completed) -> DaemonUnreachable:
    """Return the error for a relay that ended before its greeting."""
    if ended.code in (_NOT_FOUND, _NOT_EXECUTABLE):
        return ProgramNotFound(place)
    lines = [line.strip() for line in ended.err.decode("utf-8", "replace").splitlines() if line.strip()]
    own = [line.removeprefix("ffdl: ") for line in lines if line.startswith("ffdl: ")]
    last = own[-1] if own else ended.complaint
    if ended.code == ExitCode.USAGE and any("no such" in line.lower() for line in lines):
        return DaemonUnreachable(
            f"the release of ffdl on {place.host} does not have this relay: {last}",
            f"install {__version__} or later there",
            ExitCode.UNAVAILABLE,
        )
    known = ended.code if ended.code in set(ExitCode) and ended.code else ExitCode.TRY_AGAIN
    return DaemonUnreachable(f"{place.host}: {last}", "", known)


_CHUNK = 1 << 16
_STDIN, _STDOUT = 0, 1


def serve_relay(channel: Channel, warnings: Sequence[str]) -> None:
    """On the daemon's host, send the greeting, and join the standard streams of this process with the daemon's socket
    until the daemon closes it. The end of the input is passed on as a half-close, so that the rest of the answer
    arrives."""
    greeting = f"{GREETING} {FORMAT} {json.dumps({'release': __version__, 'warnings': list(warnings)})}\n"
    connection = channel.connection
    connection.settimeout(None)
    try:
        write_all(_STDOUT, greeting.encode())
        threading.Thread(target=_copy_up, args=(channel,), daemon=True).start()
        while data := connection.recv(_CHUNK):
            write_all(_STDOUT, data)
    except (BrokenPipeError, ConnectionResetError):
        return  # the client is gone, or the daemon was killed
    finally:
        channel.close()


def _copy_up(channel: Channel) -> None:
    connection = channel.connection
    try:
        while data := os.read(_STDIN, _CHUNK):
            connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
    except OSError:
        return  # the daemon has closed the connection, which ends the other direction
