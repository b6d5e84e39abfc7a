"""A connection to a host, kept: each command gets a channel of it. Made when it is needed, and anew when it broke.

The host's key is checked before anything else is said. A connection that is silent is asked for a sign of life, and
given up when none comes: then every channel of it ends, and whoever waits hears so.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.ssh.authentication import Login
from ffdl_batch.ssh.destination import read_destination
from ffdl_batch.ssh.errors import SshFailed
from ffdl_batch.ssh.host_config import HostConfig, read_host
from ffdl_batch.ssh.host_keys import HostKey, check_host_key, known_keys
from ffdl_batch.ssh.terminal_prompt import Person, find_person
from ffdl_batch.ssh.ways import ProxyProcess, connect_straight

if TYPE_CHECKING:
    import paramiko

_BANNER_S = 30.0
_CHANNEL_S = 60.0
_MOST_JUMPS = 8
_NOWHERE = logging.NullHandler()
"""Where nobody has set a log up, the library's lines, tracebacks among them, would go to standard error."""


class Connector:
    """Makes and keeps the connection to one host. Several threads may use it.

    `person` answers what must be asked; None: whoever is at the terminal, found when somebody is needed.
    """

    def __init__(self, host: str, environ: Mapping[str, str], person: Person | None = None) -> None:
        self.host = host
        self._environ, self._person = environ, person
        self._lock = threading.Lock()
        self._chain: _Chain | None = None

    def session(self) -> paramiko.Channel:
        """A channel on which nothing runs yet. Raises SshFailed."""
        load_library()
        import paramiko

        for is_last in (False, True):
            transport = self.transport()
            try:
                return transport.open_session(timeout=_CHANNEL_S)
            except (paramiko.SSHException, EOFError, OSError) as error:
                if is_last or transport.is_active():
                    raise SshFailed(f"{self.host} opens no further session: {error}", "try again") from error
        raise AssertionError("unreachable: the last try returns or raises")

    def transport(self) -> paramiko.Transport:
        """The live connection. Raises SshFailed."""
        with self._lock:
            if self._chain is None or not self._chain.transport.is_active():
                self._drop()
                self._chain = _open_chain(self.host, self._environ, self._person or find_person())
            return self._chain.transport

    def close(self) -> None:
        """End it; the next question makes another."""
        with self._lock:
            self._drop()

    def _drop(self) -> None:
        chain, self._chain = self._chain, None
        if chain is not None:
            chain.close()


class _Chain:
    """The connection and what carries it, the last one first."""

    def __init__(self) -> None:
        self._ends = contextlib.ExitStack()
        self.over = threading.Event()
        self._ends.callback(self.over.set)
        self.transport: Any = None

    def carry(self, end: Any) -> None:
        """Close it with the chain."""
        self._ends.callback(end.close)

    def close(self) -> None:
        """Close all."""
        self._ends.close()


def load_library() -> None:
    """Raises SshFailed (exit 69) where paramiko is not installed."""
    try:
        import paramiko  # noqa: F401
    except ImportError as error:
        raise SshFailed(
            f"SSH needs a library that is not there: {error}", "pip install 'ffdl-batch[ssh]'", ExitCode.UNAVAILABLE
        ) from error
    logging.getLogger("paramiko").addHandler(_NOWHERE)


def _open_chain(host: str, environ: Mapping[str, str], person: Person | None) -> _Chain:
    load_library()
    chain = _Chain()
    try:
        config = read_host(read_destination(host), environ)
        chain.transport = _reach(chain, config, environ, person, set())
    except BaseException:
        chain.close()
        raise
    threading.Thread(target=_watch, args=(chain, config), name="ssh alive", daemon=True).start()
    return chain


def _reach(
    chain: _Chain, config: HostConfig, environ: Mapping[str, str], person: Person | None, passed: set[str]
) -> paramiko.Transport:
    """Through the jumps of its configuration, each by its own; a host that is passed twice is a circle."""
    if config.name in passed or len(passed) >= _MOST_JUMPS:
        raise SshFailed(f"ProxyJump goes in a circle at {config.name}", "see ssh_config(5)", ExitCode.BAD_MANIFEST)
    passed.add(config.name)
    connected: Any
    if config.proxy_jump:
        connected = _through(chain, config, environ, person, passed)
    elif config.proxy_command:
        proxy = ProxyProcess(config, environ)
        chain.carry(proxy)
        connected = proxy.connection
    else:
        connected = connect_straight(config)
    return _log_in(chain, connected, config, person, is_behind=bool(config.proxy_jump or config.proxy_command))


def _through(
    chain: _Chain, config: HostConfig, environ: Mapping[str, str], person: Person | None, passed: set[str]
) -> paramiko.Channel:
    before: paramiko.Transport | None = None
    last = ""
    for jump in config.proxy_jump:
        hop = read_host(read_destination(jump), environ)
        if before is None:
            before = _reach(chain, hop, environ, person, passed)
        else:
            before = _log_in(chain, _tunnel(before, last, hop), hop, person, is_behind=True)
        last = jump
    assert before is not None
    return _tunnel(before, last, config)


def _tunnel(before: paramiko.Transport, jump: str, to: HostConfig) -> paramiko.Channel:
    """Raises SshFailed."""
    import paramiko

    try:
        return before.open_channel(
            "direct-tcpip", (to.hostname, to.port), ("127.0.0.1", 0), timeout=to.connect_timeout_s + _BANNER_S
        )
    except (paramiko.SSHException, EOFError, OSError) as error:
        why = str(error) or type(error).__name__
        raise SshFailed(f"{jump} does not reach {to.hostname}, port {to.port}: {why}", "try again") from error


def _log_in(
    chain: _Chain, connected: Any, config: HostConfig, person: Person | None, *, is_behind: bool
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
            f"try again later, or see what ssh itself says: {config.command} -v",
        ) from error
    check_host_key(config, HostKey(offered.get_name(), offered.asbytes()), known, is_behind=is_behind)
    Login(transport, config, person).perform()
    return transport


def _prefer(transport: paramiko.Transport, kinds: Sequence[str]) -> None:
    """A host has several keys: it is to show one of a kind that we know, as to ssh."""
    options = transport.get_security_options()
    wanted = [name for kind in kinds for name in (_RSA if kind == "ssh-rsa" else (kind,))]
    options.key_types = sorted(options.key_types, key=lambda one: one not in wanted)


_RSA = ("rsa-sha2-512", "rsa-sha2-256", "ssh-rsa")


def _watch(chain: _Chain, config: HostConfig) -> None:
    """ServerAliveInterval and ServerAliveCountMax of ssh_config(5): no sign of life in time, and it is given up."""
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
