"""Connects sockets to a host for paramiko: directly, or through a ProxyCommand."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Mapping

from ffdl_batch.ssh.errors import SshFailed
from ffdl_batch.ssh.host_config import HostConfig

_ENDS_WITHIN_S = 2.0


def connect_directly(config: HostConfig) -> socket.socket:
    """Open a TCP connection. Raises SshFailed (exit 75)."""
    try:
        connected = socket.create_connection((config.hostname, config.port), config.connect_timeout_s)
    except socket.gaierror as error:
        raise SshFailed(
            f"the host {config.hostname} is not known: {error.strerror}", "check the name, and that you are online"
        ) from error
    except OSError as error:
        why = "no answer in time" if isinstance(error, TimeoutError) else error.strerror or str(error)
        raise SshFailed(
            f"{config.hostname}, port {config.port}, cannot be reached: {why}", "are you online, or in the site's VPN?"
        ) from error
    connected.settimeout(None)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connected


class ProxyProcess:
    """A process of ProxyCommand in ssh_config(5), run by the user's shell. It cannot ask on the terminal."""

    def __init__(self, config: HostConfig, environ: Mapping[str, str]) -> None:
        """Start it. Raises SshFailed if it cannot be started."""
        ours, theirs = socket.socketpair()
        shell = environ.get("SHELL") or "/bin/sh"
        try:
            self._process = subprocess.Popen(
                [shell, "-c", f"exec {config.proxy_command}"],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                env=dict(environ),
                start_new_session=True,  # Ctrl-C must not break the connection during a request
            )
        except OSError as error:
            ours.close()
            raise SshFailed(f"{shell} could not be started for ProxyCommand: {error.strerror}") from error
        finally:
            theirs.close()
        self.connection = ours

    def close(self) -> None:
        """End it."""
        self.connection.close()
        self._process.terminate()
        try:
            self._process.wait(_ENDS_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
