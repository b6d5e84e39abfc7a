"""Runs commands with paramiko: one connection, with a channel for each command.

The host's key is checked before anything else is sent. A silent connection gets keepalive requests. Without an answer,
it is closed, and all its channels end.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.host.descriptors import write_all
from ffdl_batch.host.terminal import raw_mode
from ffdl_batch.ssh.authentication import Login
from ffdl_batch.ssh.errors import CommandLost, SshFailed
from ffdl_batch.ssh.host_config import HostConfig, check_jumps, read_destination, read_host
from ffdl_batch.ssh.host_keys import HostKey, check_host_key, known_keys
from ffdl_batch.ssh.host_sockets import ProxyProcess, connect_directly
from ffdl_batch.ssh.terminal_prompt import Terminal, find_terminal

if TYPE_CHECKING:
    import paramiko

_BANNER_S = 30.0
_CHANNEL_S = 60.0
_BLOCK = 1 << 16
_SIGNALLED = 255
_NOWHERE = logging.NullHandler()
"""Without a handler, log lines and tracebacks of the library would be printed on standard error."""


class _Command:
    """See :class:`ffdl_batch.ssh.connection.Process`. Threads copy between the channel and the sockets."""

    def __init__(self, host: str, channel: paramiko.Channel, line: str) -> None:
        self._host, self._channel = host, channel
        channel.exec_command(line)
        self.connection, theirs = socket.socketpair()
        self.errors, their_errors = socket.socketpair()
        for copy in (
            lambda: _copy_up(channel, theirs),
            lambda: _copy_down(channel.recv, theirs),
            lambda: _copy_down(channel.recv_stderr, their_errors),
        ):
            threading.Thread(target=copy, name="ssh copy", daemon=True).start()

    def wait(self, timeout_s: float | None) -> int:
        """See the protocol."""
        return exit_status(self._host, self._channel, timeout_s)

    def close(self) -> None:
        """See the protocol."""
        self.connection.close()
        self.errors.close()
        self._channel.close()


def exit_status(host: str, channel: paramiko.Channel, timeout_s: float | None) -> int:
    """Return the exit status; 255 after a signal. Raises CommandLost, TimeoutError."""
    transport = channel.get_transport()
    if not channel.status_event.wait(timeout_s):
        raise TimeoutError
    code = int(channel.recv_exit_status())
    if code < 0 and not transport.is_active():
        raise CommandLost(f"the connection to {host} was lost", "try again; jobs are not affected")
    return code if code >= 0 else _SIGNALLED


def _copy_up(channel: paramiko.Channel, source: socket.socket) -> None:
    try:
        while data := source.recv(_BLOCK):
            channel.sendall(data)
        channel.shutdown_write()
    except lost_errors():
        return  # the other direction ends as well, and its reader sees the end


def _copy_down(receive: Callable[[int], bytes], target: socket.socket) -> None:
    try:
        while data := receive(_BLOCK):
            target.sendall(data)
    except lost_errors():
        pass  # the reader has closed its end, or the connection is lost
    finally:
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)


def lost_errors() -> tuple[type[Exception], ...]:
    """Return the errors that are raised when a channel or its connection ends early."""
    import paramiko

    return (paramiko.SSHException, EOFError, OSError)


class ParamikoConnection:
    """See :class:`ffdl_batch.ssh.connection.Transport`."""

    def __init__(self, config: HostConfig, environ: Mapping[str, str], *, may_ask: bool) -> None:
        self._config, self._environ, self._may_ask = config, environ, may_ask
        self._lock = threading.Lock()
        self._chain: _Chain | None = None

    def start(self, line: str) -> _Command:
        """See the protocol."""
        channel = self._open()
        try:
            return _Command(self._config.asked, channel, line)
        except lost_errors() as error:
            channel.close()
            raise self._lost(error) from error

    def run_on_terminal(self, line: str) -> int:
        """See the protocol."""
        channel = self._open()
        try:
            _attach_terminal(channel, line)
            return exit_status(self._config.asked, channel, None)
        except lost_errors() as error:
            raise self._lost(error) from error
        finally:
            channel.close()

    def close(self) -> None:
        """See the protocol."""
        with self._lock:
            self._drop()

    def _lost(self, error: Exception) -> CommandLost:
        why = str(error) or type(error).__name__
        return CommandLost(f"the connection to {self._config.asked} was lost: {why}", "try again")

    def _open(self) -> paramiko.Channel:
        """Open a channel on which nothing runs yet."""
        _load_library()
        import paramiko

        for is_last in (False, True):
            transport = self._transport()
            try:
                return transport.open_session(timeout=_CHANNEL_S)
            except (paramiko.SSHException, EOFError, OSError) as error:
                if is_last or transport.is_active():
                    message = f"{self._config.asked} opens no further session: {error}"
                    raise SshFailed(message, "try again") from error
        raise AssertionError("unreachable: the last try returns or raises")

    def _transport(self) -> paramiko.Transport:
        with self._lock:
            if self._chain is None or not self._chain.transport.is_active():
                self._drop()
                terminal = find_terminal() if self._may_ask else None
                self._chain = _open_chain(self._config, self._environ, terminal)
            return self._chain.transport

    def _drop(self) -> None:
        if self._chain is not None:
            self._chain.close()
            self._chain = None


class _Chain:
    """The connection and the connections below it, the last one first."""

    def __init__(self) -> None:
        self._ends = contextlib.ExitStack()
        self.over = threading.Event()
        self._ends.callback(self.over.set)
        self.transport: Any = None

    def carry(self, end: Any) -> None:
        """Close `end` with the chain."""
        self._ends.callback(end.close)

    def close(self) -> None:
        """Close all."""
        self._ends.close()


def _load_library() -> None:
    """Import paramiko. Raises SshFailed (exit 69) if it is not installed."""
    try:
        import paramiko  # noqa: F401
    except ImportError as error:
        raise SshFailed(
            f"SSH needs a library that is not installed: {error}", "pip install 'ffdl-batch[ssh]'", ExitCode.UNAVAILABLE
        ) from error
    logging.getLogger("paramiko").addHandler(_NOWHERE)


def _open_chain(config: HostConfig, environ: Mapping[str, str], terminal: Terminal | None) -> _Chain:
    chain = _Chain()
    try:
        check_jumps(config, environ)
        chain.transport = _reach(chain, config, environ, terminal)
    except BaseException:
        chain.close()
        raise
    threading.Thread(target=_watch, args=(chain, config), name="ssh alive", daemon=True).start()
    return chain


def _reach(
    chain: _Chain, config: HostConfig, environ: Mapping[str, str], terminal: Terminal | None
) -> paramiko.Transport:
    """Connect through the jumps of the configuration."""
    connected: Any
    if config.proxy_jump:
        connected = _through(chain, config, environ, terminal)
    elif config.proxy_command:
        proxy = ProxyProcess(config, environ)
        chain.carry(proxy)
        connected = proxy.connection
    else:
        connected = connect_directly(config)
    return _log_in(chain, connected, config, terminal, is_behind=bool(config.proxy_jump or config.proxy_command))


def _through(
    chain: _Chain, config: HostConfig, environ: Mapping[str, str], terminal: Terminal | None
) -> paramiko.Channel:
    before: paramiko.Transport | None = None
    last = ""
    for jump in config.proxy_jump:
        hop = read_host(read_destination(jump), environ)
        if before is None:
            before = _reach(chain, hop, environ, terminal)
        else:
            before = _log_in(chain, _tunnel(before, last, hop), hop, terminal, is_behind=True)
        last = jump
    assert before is not None
    return _tunnel(before, last, config)


def _tunnel(before: paramiko.Transport, jump: str, to: HostConfig) -> paramiko.Channel:
    """Open a channel through a jump host. Raises SshFailed."""
    import paramiko

    try:
        return before.open_channel(
            "direct-tcpip", (to.hostname, to.port), ("127.0.0.1", 0), timeout=to.connect_timeout_s + _BANNER_S
        )
    except (paramiko.SSHException, EOFError, OSError) as error:
        why = str(error) or type(error).__name__
        raise SshFailed(f"{jump} does not reach {to.hostname}, port {to.port}: {why}", "try again") from error


def _log_in(
    chain: _Chain, connected: Any, config: HostConfig, terminal: Terminal | None, *, is_behind: bool
) -> paramiko.Transport:
    import paramiko

    known = known_keys(config)
    transport = paramiko.Transport(connected)
    chain.carry(transport)
    transport.banner_timeout = _BANNER_S
    _prefer(transport, [one.key.kind for one in known if not one.marker])
    try:
        transport.start_client(timeout=_BANNER_S)
        offered = transport.get_remote_server_key()
    except (paramiko.SSHException, EOFError, OSError) as error:
        raise SshFailed(
            f"no SSH connection to {config.name}: {str(error) or 'the host closed it'}",
            f"try again later, or see what ssh prints: {config.command} -v",
        ) from error
    check_host_key(config, HostKey(offered.get_name(), offered.asbytes()), known, is_behind=is_behind)
    Login(transport, config, terminal).perform()
    return transport


def _prefer(transport: paramiko.Transport, kinds: Sequence[str]) -> None:
    """Prefer kinds of host keys that are in known_hosts, as ssh does, because a host has several keys."""
    options = transport.get_security_options()
    wanted = [name for kind in kinds for name in (_RSA if kind == "ssh-rsa" else (kind,))]
    options.key_types = sorted(options.key_types, key=lambda one: one not in wanted)


_RSA = ("rsa-sha2-512", "rsa-sha2-256", "ssh-rsa")


def _watch(chain: _Chain, config: HostConfig) -> None:
    """Close the connection if keepalive requests are not answered: ServerAliveInterval and ServerAliveCountMax."""
    transport = chain.transport
    while not chain.over.wait(config.alive_interval_s) and transport.is_active():
        patience = threading.Timer(config.alive_interval_s * config.alive_count, transport.close)
        patience.daemon = True
        patience.start()
        try:
            transport.global_request("keepalive@openssh.com", wait=True)
        except (OSError, EOFError):
            return
        finally:
            patience.cancel()


_STDIN, _STDOUT = 0, 1


def _attach_terminal(channel: paramiko.Channel, line: str) -> None:
    """Run the line in a terminal on the host until it ends. Raises the errors of the channel."""

    def resize(*_: object) -> None:
        channel.resize_pty(*os.get_terminal_size(_STDIN))

    channel.get_pty(os.environ.get("TERM", "dumb"), *os.get_terminal_size(_STDIN))
    channel.exec_command(line)
    before = signal.signal(signal.SIGWINCH, resize)
    try:
        with raw_mode(_STDIN):
            _copy_terminal(channel)
    finally:
        signal.signal(signal.SIGWINCH, before)


def _copy_terminal(channel: paramiko.Channel) -> None:
    sources: list[int] = [_STDIN, channel.fileno()]
    while True:
        ready = select.select(sources, [], [])[0]
        if channel.fileno() in ready:
            data = channel.recv(_BLOCK)
            if not data:
                return
            write_all(_STDOUT, data)
        if _STDIN in ready:
            typed = os.read(_STDIN, _BLOCK)
            if typed:
                channel.sendall(typed)
            else:
                sources.remove(_STDIN)
                channel.shutdown_write()
