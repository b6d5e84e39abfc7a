"""A daemon on another host, over SSH: ``ffdl daemon relay`` there joins a channel with the socket of the user's daemon.

The relay is one of that host's own commands: it finds or starts the daemon as they do. Its first line says that it got
there, and of which release it is. What arrives here is an ordinary connected socket.
"""

from __future__ import annotations

import atexit
import contextlib
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from ffdl_batch import __version__
from ffdl_batch.client.connection.remote_host import HostPlace
from ffdl_batch.client.errors import DaemonUnreachable
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.ssh.channels import lost_errors
from ffdl_batch.ssh.connection import Connector
from ffdl_batch.ssh.errors import SshFailed

if TYPE_CHECKING:
    import paramiko

GREETING = "ffdl-relay"
"""First word of the relay's first line; then the format, the release and the host's name."""
FORMAT = 1
_FIRST_WORD_S = 100.0
"""A shell's login, Python from a network file system, and a daemon that starts."""
_ENDS_WITHIN_S = 10.0
_MOST_BANNER = 1 << 16
_BLOCK = 1 << 16
_WORDS_BYTES = 1 << 13
_NOT_FOUND, _NOT_EXECUTABLE = 127, 126
_CONNECTORS: dict[str, Connector] = {}
_CONNECTORS_LOCK = threading.Lock()


def connector_of(host: str, environ: Mapping[str, str]) -> Connector:
    """The connection to a host, one for all that this process asks there."""
    with _CONNECTORS_LOCK:
        found = _CONNECTORS.get(host)
        if found is None:
            found = _CONNECTORS[host] = Connector(host, environ)
            atexit.register(found.close)  # what carries it is a process, with a proxy
        return found


def unreachable(error: SshFailed) -> DaemonUnreachable:
    """The client's own error."""
    return DaemonUnreachable(error.message, error.cure, error.exit_code)


class HostChannel:
    """A relay's channel, and our end of the socket pair that stands for it."""

    def __init__(self, channel: paramiko.Channel, connection: socket.socket) -> None:
        self._channel = channel
        self.connection = connection

    def close(self) -> None:
        """End the relay: its input closes."""
        self.connection.close()
        self._channel.close()


def dial_relay(place: HostPlace, connector: Connector, told: Callable[[str], None]) -> HostChannel:
    """A connection to the daemon there. Raises DaemonUnreachable. `told` hears its warnings."""
    try:
        channel = connector.session()
    except SshFailed as error:
        raise unreachable(error) from error
    greeted = _Greeting(place, channel)
    try:
        first = greeted.read()
    except BaseException:
        channel.close()
        raise
    for warning in greeted.warnings():
        told(f"{place.host}: {warning}")
    if greeted.release != __version__:
        told(
            f"ffdl on {place.host} is of release {greeted.release}, this program of {__version__}: install the same on "
            "both where something is not understood"
        )
    ours, theirs = socket.socketpair()
    theirs.sendall(first)
    for name, target in (("ssh up", _copy_up), ("ssh down", _copy_down)):
        threading.Thread(target=target, args=(channel, theirs), name=name, daemon=True).start()
    return HostChannel(channel, ours)


class _Greeting:
    """What comes before the relay relays: banners of shells, its own complaints, and its first line."""

    def __init__(self, place: HostPlace, channel: paramiko.Channel) -> None:
        self._place, self._channel = place, channel
        self._errors = b""
        self.release = ""

    def read(self) -> bytes:
        """Start it and wait for its first line; what came after that. Raises DaemonUnreachable."""
        end = time.monotonic() + _FIRST_WORD_S
        data = b""
        try:
            self._channel.exec_command(self._place.command("daemon", "relay"))
            while True:
                self._channel.settimeout(max(0.1, end - time.monotonic()))
                more = self._channel.recv(_BLOCK)
                data += more
                before, found, rest = data.partition(f"{GREETING} ".encode())
                line, ended, after = rest.partition(b"\n")
                if found and ended:
                    self._understand(line)
                    self._channel.settimeout(None)
                    return bytes(after)
                if not more or len(before) > _MOST_BANNER:
                    raise self._why(data)
        except TimeoutError as error:
            message = f"ffdl on {self._place.host} said nothing within {_FIRST_WORD_S:g} s"
            raise DaemonUnreachable(message, f"try: ssh {self._place.host} ffdl daemon status") from error
        except lost_errors() as error:
            raise _lost(self._place.host, error) from error

    def _understand(self, line: bytes) -> None:
        words = line.decode("utf-8", "replace").split()
        if len(words) < 3 or words[0] != str(FORMAT):
            raise DaemonUnreachable(
                f"ffdl on {self._place.host} speaks otherwise over SSH than this program, which is of {__version__}",
                "install the same release on both",
                ExitCode.UNAVAILABLE,
            )
        self.release = words[1]

    def warnings(self) -> list[str]:
        """What the relay's command warned of."""
        marks = "ffdl: warning: "
        return [line.removeprefix(marks) for line in self._said() if line.startswith(marks)]

    def _said(self) -> list[str]:
        while self._channel.recv_stderr_ready() and len(self._errors) < _WORDS_BYTES:
            self._errors += self._channel.recv_stderr(_WORDS_BYTES)
        return [line.strip() for line in self._errors.decode("utf-8", "replace").splitlines() if line.strip()]

    def _why(self, data: bytes) -> DaemonUnreachable:
        """Of a command that ended before its first line, or that is none of ours."""
        place = self._place
        transport = self._channel.get_transport()
        if transport is None or not transport.is_active():
            return _lost(place.host, EOFError("the connection ended"))
        if not self._channel.closed and not self._channel.eof_received:
            return DaemonUnreachable(f"what {place.host} prints at login hides ffdl's answer", "see your shell's start")
        code = self._channel.recv_exit_status() if self._channel.status_event.wait(_ENDS_WITHIN_S) else -1
        said = self._said() or [line for line in data.decode("utf-8", "replace").splitlines() if line.strip()]
        own = [line.removeprefix("ffdl: ") for line in said if line.startswith("ffdl: ")]
        last = (own or said or [f"exit code {code}"])[-1]
        if code in (_NOT_FOUND, _NOT_EXECUTABLE):
            return no_program(place, last)
        if code == ExitCode.USAGE and any("no such" in line.lower() for line in said):
            return DaemonUnreachable(
                f"ffdl on {place.host} is of a release that knows no relay: {last}",
                f"install {__version__} or later there",
                ExitCode.UNAVAILABLE,
            )
        known = code if code in set(ExitCode) and code else ExitCode.TRY_AGAIN
        return DaemonUnreachable(f"{place.host}: {last}", "", known)


def no_program(place: HostPlace, last: str) -> DaemonUnreachable:
    """Describe a host whose login shell finds no ffdl."""
    return DaemonUnreachable(
        f"{place.host} has no {place.program} after a login: {last}",
        "install ffdl_batch there; or say where it is: FFDL_HOST_PROGRAM, host_program in the configuration",
        ExitCode.UNAVAILABLE,
    )


def _lost(host: str, error: Exception) -> DaemonUnreachable:
    return DaemonUnreachable(
        f"the connection to {host} was lost: {str(error) or type(error).__name__}",
        "try again; what was accepted goes on",
    )


def _copy_up(channel: paramiko.Channel, source: socket.socket) -> None:
    try:
        while data := source.recv(_BLOCK):
            channel.sendall(data)
        channel.shutdown_write()
    except lost_errors():
        return  # the other direction ends as well, and says so to whoever waits


def _copy_down(channel: paramiko.Channel, target: socket.socket) -> None:
    try:
        while data := channel.recv(_BLOCK):
            target.sendall(data)
    except lost_errors():
        pass  # nobody reads any more, or nothing comes: an end either way, and an answer that is not whole is none
    finally:
        channel.close()
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_RDWR)  # closing alone ends nothing while the other thread reads from it
        target.close()
