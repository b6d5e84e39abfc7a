"""Runs commands on a host. All of them share one connection, which the first one makes.

The system's ssh carries it if there is one, else paramiko. FFDL_SSH names another ssh program, or is ``paramiko``.
"""

from __future__ import annotations

import secrets
import selectors
import shutil
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, Protocol

from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.ssh.errors import CommandLost, ProgramMissing, SshFailed
from ffdl_batch.ssh.framing import FrameMissing, at_login, framed, read_frame
from ffdl_batch.ssh.host_config import PARAMIKO, read_destination, read_host

START_S = 100.0
"""Maximum time for a login shell, and for Python from a network file system."""
END_S = 10.0
_BLOCK = 1 << 16


class Process(Protocol):
    """A command line that runs on the host. `connection` is its standard input and output, `errors` its standard
    error."""

    connection: socket.socket
    errors: socket.socket

    def wait(self, timeout_s: float | None) -> int:
        """Return the exit status; 255 after a signal. Raises CommandLost, TimeoutError."""
        ...

    def close(self) -> None:
        """Close its streams, and end it here. On the host it reads the end of its input."""
        ...


class Transport(Protocol):
    """Carries command lines to one host. Several threads may use it. All methods raise SshFailed."""

    def start(self, line: str) -> Process:
        """Start the line in the user's shell there; connect first if necessary."""
        ...

    def run_on_terminal(self, line: str) -> int:
        """Run the line on the terminal of this process and return the exit status."""
        ...

    def close(self) -> None:
        """End the connection; the next command makes another."""
        ...


@dataclass(frozen=True, slots=True)
class Completed:
    """What a command printed, and its exit status."""

    code: int
    out: bytes
    err: bytes

    @property
    def complaint(self) -> str:
        """The last line that it printed on standard error, else on standard output, else its exit status."""
        lines = [line.strip() for line in (self.out + b"\n" + self.err).decode("utf-8", "replace").splitlines()]
        return next((line for line in reversed(lines) if line), f"exit status {self.code}")


class RemoteCommand:
    """A running command on the host. `number` is its process id there."""

    login: None = None
    """It is no connection to a hub; see :class:`ffdl_batch.client.connection.http_client.Channel`."""

    def __init__(self, process: Process, number: int) -> None:
        self._process, self.number = process, number
        self.connection, self.errors = process.connection, process.errors

    def wait(self, timeout_s: float | None = None) -> int:
        """See :class:`Process`."""
        return self._process.wait(timeout_s)

    def close(self) -> None:
        """See :class:`Process`."""
        self._process.close()

    def read_to_end(self, deadline: float) -> Completed:
        """Read both streams to their ends. Raises TimeoutError, CommandLost."""
        read = {self.connection: bytearray(), self.errors: bytearray()}
        with selectors.DefaultSelector() as waiting:
            for source in read:
                waiting.register(source, selectors.EVENT_READ)
            while waiting.get_map():
                ready = waiting.select(max(0.0, deadline - time.monotonic()))
                if not ready:
                    raise TimeoutError
                for key, _ in ready:
                    assert isinstance(key.fileobj, socket.socket)
                    more = _receive(key.fileobj)
                    read[key.fileobj] += more
                    if not more:
                        waiting.unregister(key.fileobj)
        code = self.wait(max(0.1, deadline - time.monotonic()))
        return Completed(code, bytes(read[self.connection]), bytes(read[self.errors]))


class Connector:
    """Runs commands on one host. Several threads may use it.

    `may_ask`: ask for passphrases and second factors on the terminal of this process, if it has one.
    """

    def __init__(self, host: str, environ: Mapping[str, str], *, may_ask: bool = True) -> None:
        self.host = host
        self._environ, self._may_ask = environ, may_ask
        self._lock = threading.Lock()
        self._known: Transport | None = None

    def start(self, words: Sequence[str]) -> RemoteCommand:
        """Start a command as after a login. Raises ProgramMissing, SshFailed."""
        mark = f"ffdl-{secrets.token_hex(8)}"
        process = self._transport().start(framed(words, mark))
        try:
            deadline = time.monotonic() + START_S
            number = read_frame(process.connection, mark, deadline)
            read_frame(process.errors, mark, deadline)
            if number:
                return RemoteCommand(process, number)
            raise ProgramMissing(
                f"{self.host} has no {words[0]} in the PATH of a login shell", "install it there", ExitCode.UNAVAILABLE
            )
        except TimeoutError:
            process.close()
            raise SshFailed(
                f"the login shell of {self.host} ran no command within {START_S:g} s", "try again"
            ) from None
        except FrameMissing as error:
            printed = self._explain_start(process, error)
            process.close()
            raise SshFailed(printed, "check what your shell does at login there") from None
        except BaseException:
            process.close()
            raise

    def _explain_start(self, process: Process, missing: FrameMissing) -> str:
        if not missing.is_over:
            return f"{self.host} prints too much at login"
        ended = RemoteCommand(process, 0).read_to_end(time.monotonic() + END_S)
        return f"the login shell of {self.host} ran no command: {(missing.lines or [ended.complaint])[-1]}"

    def run(self, words: Sequence[str], timeout_s: float, data: IO[bytes] | None = None) -> Completed:
        """Run a command, whose input is `data`, to its end. Raises as :meth:`start`, and CommandLost."""
        with self._running(words) as command:
            threading.Thread(target=_send, args=(command.connection, data), daemon=True).start()
            try:
                return command.read_to_end(time.monotonic() + timeout_s)
            except TimeoutError:
                message = f"{words[0]} on {self.host} did not end within {timeout_s:g} s"
                raise CommandLost(message, "try again") from None

    @contextmanager
    def _running(self, words: Sequence[str]) -> Iterator[RemoteCommand]:
        command = self.start(words)
        try:
            yield command
        finally:
            command.close()

    def interrupt(self, command: RemoteCommand) -> None:
        """Send SIGINT to the command and to what it started. Raises SshFailed."""
        script = 'kill -INT -- "-$1" 2>/dev/null || kill -INT "$1"'
        self.run(["/bin/sh", "-c", script, "sh", str(command.number)], START_S)

    def run_on_terminal(self, words: Sequence[str]) -> int:
        """Run a command on the terminal of this process and return its exit status. Raises SshFailed."""
        return self._transport().run_on_terminal(at_login(words))

    def close(self) -> None:
        """End the connection; the next command makes another."""
        with self._lock:
            if self._known is not None:
                self._known.close()

    def _transport(self) -> Transport:
        with self._lock:
            if self._known is None:
                self._known = self._choose()
            return self._known

    def _choose(self) -> Transport:
        config = read_host(read_destination(self.host), self._environ)
        name = self._environ.get("FFDL_SSH") or "ssh"
        program = None if name == PARAMIKO else shutil.which(name, path=self._environ.get("PATH"))
        if program is not None:
            from ffdl_batch.ssh.system_ssh import SystemSsh

            return SystemSsh(program, config, self._environ, may_ask=self._may_ask)
        from ffdl_batch.ssh.paramiko_connection import ParamikoConnection

        return ParamikoConnection(config, self._environ, may_ask=self._may_ask)


def _receive(source: socket.socket) -> bytes:
    try:
        return source.recv(_BLOCK)
    except ConnectionError:  # the other end closed without reading all input
        return b""


def _send(target: socket.socket, data: IO[bytes] | None) -> None:
    try:
        while data is not None and (block := data.read(_BLOCK)):
            target.sendall(block)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        return  # the command has ended; its status and its output show why
