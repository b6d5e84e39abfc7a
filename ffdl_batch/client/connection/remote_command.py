"""Runs one of ffdl's commands on a host over SSH, with the standard streams of this process, or with its terminal."""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import threading
import tty
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ffdl_batch.client.connection.host_relay import no_program, unreachable
from ffdl_batch.client.connection.remote_host import HostPlace
from ffdl_batch.client.errors import DaemonUnreachable
from ffdl_batch.ssh.channels import interrupt, lost_errors
from ffdl_batch.ssh.connection import Connector
from ffdl_batch.ssh.errors import SshFailed
from ffdl_batch.ssh.login_shell import at_login

if TYPE_CHECKING:
    import paramiko

_BLOCK = 1 << 15
_NOT_FOUND = 127
_ASK_S = 60.0
_STDIN, _STDOUT, _STDERR = 0, 1, 2


def run_there(place: HostPlace, connector: Connector, words: Sequence[str], *, with_terminal: bool) -> int:
    """The command's exit code. Raises DaemonUnreachable where it could not be run to its end.

    With a terminal each key goes there; without one INT does, and a second one gives it up (KeyboardInterrupt).
    """
    try:
        channel = connector.session()
    except SshFailed as error:
        raise unreachable(error) from error
    try:
        if with_terminal:
            rows, columns = _window()
            channel.get_pty(os.environ.get("TERM", "dumb"), columns, rows)
        channel.exec_command(place.command(*words))
        with _raw(with_terminal), _Sending(channel, with_terminal=with_terminal):
            errors = threading.Thread(target=_copy, args=(channel.recv_stderr, _STDERR), daemon=True)
            errors.start()
            _copy(channel.recv, _STDOUT)
            errors.join()
        code = _end(place, channel)
    except BrokenPipeError:
        raise
    except lost_errors() as error:
        raise DaemonUnreachable(f"the connection to {place.host} was lost: {error}", "try again") from error
    finally:
        channel.close()
    if code == _NOT_FOUND and not _finds_program(place, connector):  # else it is the command's own
        raise no_program(place, "the shell says so")
    return code


def _finds_program(place: HostPlace, connector: Connector) -> bool:
    """Whether the host's user has ffdl after a login."""
    look = at_login(["/bin/sh", "-c", 'command -v "$1"', "sh", place.program])
    try:
        with connector.session() as channel:
            channel.settimeout(_ASK_S)
            channel.exec_command(look)
            channel.shutdown_write()
            while channel.recv(_BLOCK):
                continue
            return _end(place, channel) == 0
    except SshFailed as error:
        raise unreachable(error) from error
    except lost_errors() as error:
        raise DaemonUnreachable(f"the connection to {place.host} was lost: {error}", "try again") from error


def ask_there(place: HostPlace, connector: Connector, words: Sequence[str]) -> str:
    """What a command prints that needs no input. Raises DaemonUnreachable where it does not end with 0."""
    try:
        channel = connector.session()
        channel.settimeout(_ASK_S)
        channel.exec_command(place.command(*words))
        channel.shutdown_write()
        answer = b""
        while data := channel.recv(_BLOCK):
            answer += data
        code = _end(place, channel)
    except SshFailed as error:
        raise unreachable(error) from error
    except lost_errors() as error:
        raise DaemonUnreachable(f"the connection to {place.host} was lost: {error}", "try again") from error
    if code == _NOT_FOUND:
        raise no_program(place, "the shell says so")
    if code:
        last = channel.recv_stderr(_BLOCK).decode("utf-8", "replace").strip().splitlines()
        said = last[-1] if last else "it said nothing"
        raise DaemonUnreachable(f"{place.host}: {' '.join((place.program, *words))} ended with {code}: {said}")
    return answer.decode("utf-8", "replace")


def _end(place: HostPlace, channel: paramiko.Channel) -> int:
    transport = channel.get_transport()
    code = int(channel.recv_exit_status())
    if code < 0 and not transport.is_active():
        raise DaemonUnreachable(f"the connection to {place.host} was lost", "try again; jobs go on")
    return code if code >= 0 else 1


def _copy(read: Any, target: int) -> None:
    """Raises BrokenPipeError where nobody takes it, as for every command."""
    while data := read(_BLOCK):
        while data:
            data = data[os.write(target, data) :]


class _Sending:
    """Input and signals on their way there; a thread, for what comes back must not wait for it."""

    def __init__(self, channel: paramiko.Channel, *, with_terminal: bool) -> None:
        self._channel, self._with_terminal = channel, with_terminal
        self._wake, self._write = os.pipe()
        for descriptor in (self._wake, self._write):
            os.set_blocking(descriptor, False)
        self._interrupts = 0
        self._thread = threading.Thread(target=self._send, daemon=True)

    def __enter__(self) -> None:
        number = signal.SIGWINCH if self._with_terminal else signal.SIGINT
        self._before = (number, signal.signal(number, self._note))
        self._old = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(self._old)
        signal.signal(*self._before)
        os.write(self._write, b"\0")
        self._thread.join(1.0)
        if not self._thread.is_alive():
            os.close(self._wake)
            os.close(self._write)

    def _note(self, number: int, _frame: object) -> None:
        """The second INT ends us wherever we are: nothing may be taken at the other end."""
        if number == signal.SIGINT:
            self._interrupts += 1
            if self._interrupts > 1:
                raise KeyboardInterrupt

    def _send(self) -> None:
        sources = [_STDIN, self._wake]
        try:
            while True:
                ready = select.select(sources, [], [])[0]
                if self._wake in ready and not self._handle(os.read(self._wake, 64)):
                    return
                if _STDIN in ready:
                    data = _read_input()
                    if data:
                        self._channel.sendall(data)
                    else:
                        sources.remove(_STDIN)
                        self._channel.shutdown_write()
        except lost_errors():
            return  # the command has ended, or the connection: whoever reads its output hears so

    def _handle(self, numbers: bytes) -> bool:
        """Pass signals on; False when it is over."""
        for number in numbers:
            if number == signal.SIGINT:
                interrupt(self._channel)
            elif number == signal.SIGWINCH:
                rows, columns = _window()
                self._channel.resize_pty(columns, rows)
        return 0 not in numbers


def _read_input() -> bytes:
    try:
        return os.read(_STDIN, _BLOCK)
    except OSError:  # closed, or a terminal that is gone
        return b""


def _window() -> tuple[int, int]:
    columns, rows = os.get_terminal_size(sys.stdin.fileno())
    return rows, columns


@contextmanager
def _raw(with_terminal: bool) -> Iterator[None]:
    """Every key goes to the other side; the terminal is as before afterwards."""
    if not with_terminal:
        yield
        return
    before = termios.tcgetattr(_STDIN)
    tty.setraw(_STDIN, termios.TCSADRAIN)
    try:
        yield
    finally:
        termios.tcsetattr(_STDIN, termios.TCSADRAIN, before)
