"""Runs one of ffdl's commands on a host over SSH, with the standard streams or the terminal of this process."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ffdl_batch.client.connection.daemon_location import HostPlace
from ffdl_batch.client.connection.host_relay import ProgramNotFound
from ffdl_batch.client.errors import DaemonUnreachable
from ffdl_batch.host.descriptors import write_all
from ffdl_batch.ssh.connection import Connector, RemoteCommand
from ffdl_batch.ssh.errors import ProgramMissing, SshFailed

_BLOCK = 1 << 15
_NOT_FOUND = 127
_ASK_S = 60.0
_STDIN, _STDOUT, _STDERR = 0, 1, 2


def run_remotely(place: HostPlace, connector: Connector, words: Sequence[str], *, with_terminal: bool) -> int:
    """Run the command and return its exit status. Raises DaemonUnreachable if it could not be run to its end.

    With a terminal, each key goes to the host. Without one, the first Ctrl-C is sent to the host as a signal; the
    second one abandons the command (KeyboardInterrupt).
    """
    with _client_errors(place):
        if not with_terminal:
            return _run_on_streams(connector, connector.start(place.words(*words)))
        code = connector.run_on_terminal(place.words(*words))
        if code == _NOT_FOUND:  # of the command, or of the shell that has no such program
            connector.run(place.words("--version"), _ASK_S)
        return code


def ask_remotely(place: HostPlace, connector: Connector, words: Sequence[str]) -> str:
    """Return the output of a command that needs no input. Raises DaemonUnreachable if it does not exit with 0."""
    with _client_errors(place):
        ended = connector.run(place.words(*words), _ASK_S)
    if ended.code:
        command = " ".join((place.program, *words))
        raise DaemonUnreachable(f"{place.host}: {command} exited with status {ended.code}: {ended.complaint}")
    return ended.out.decode("utf-8", "replace")


@contextmanager
def _client_errors(place: HostPlace) -> Iterator[None]:
    try:
        yield
    except ProgramMissing as error:
        raise ProgramNotFound(place) from error
    except SshFailed as error:
        raise DaemonUnreachable.because(error) from error


def _run_on_streams(connector: Connector, command: RemoteCommand) -> int:
    try:
        with _passing_interrupts(connector, command):
            errors = threading.Thread(target=_copy, args=(command.errors, _STDERR), daemon=True)
            errors.start()
            threading.Thread(target=_send, args=(command.connection,), daemon=True).start()
            _copy(command.connection, _STDOUT)
            errors.join()
            return command.wait()
    finally:
        command.close()


@contextmanager
def _passing_interrupts(connector: Connector, command: RemoteCommand) -> Iterator[None]:
    is_passed = False

    def interrupt() -> None:
        with contextlib.suppress(SshFailed):  # the connection is lost; the main thread sees that, too
            connector.interrupt(command)

    def note(_number: int, _frame: object) -> None:
        nonlocal is_passed
        if is_passed:
            raise KeyboardInterrupt
        is_passed = True
        threading.Thread(target=interrupt, daemon=True).start()

    before = signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _copy(source: socket.socket, target: int) -> None:
    """Raises BrokenPipeError if the target is closed, as for every command."""
    with contextlib.suppress(ConnectionError):
        while data := source.recv(_BLOCK):
            write_all(target, data)


def _send(target: socket.socket) -> None:
    try:
        while data := os.read(_STDIN, _BLOCK):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        return  # the command has ended, or standard input is closed
