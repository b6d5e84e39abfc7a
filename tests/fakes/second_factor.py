"""A login node's door that wants a key and then a one-time code, as sites with PAM ask for them; nothing is behind it.

paramiko's server: a real sshd asks such questions by PAM alone, which is the machine's own.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from pathlib import Path
from types import TracebackType
from typing import Any

import paramiko

from tests.fakes.ssh_server import SshServer, make_key


class SecondFactorServer:
    """Listens while its block lasts. `passed` are the ways that were taken, in order."""

    def __init__(self, directory: Path, key: Path, code: str) -> None:
        directory.mkdir()
        make_key(directory / "host_key")
        self.passed: list[str] = []
        self._directory, self._key, self._code = directory, key, code
        self._host_key = paramiko.Ed25519Key.from_private_key_file(str(directory / "host_key"))
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._port = int(self._socket.getsockname()[1])
        self._transports: list[paramiko.Transport] = []

    def config(self, name: str) -> str:
        """Its lines of ssh_config."""
        known = self._directory / "known_hosts"
        SshServer.write_known_hosts(known, self._directory / "host_key.pub", self._port)
        return (
            f"Host {name}\n  HostName 127.0.0.1\n  Port {self._port}\n  User ada\n  IdentityFile {self._key}\n"
            f"  UserKnownHostsFile {known}\n  IdentityAgent none\n"
        )

    def __enter__(self) -> SecondFactorServer:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        for transport in self._transports:
            transport.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connected, _ = self._socket.accept()
                transport = paramiko.Transport(connected)
                self._transports.append(transport)
                transport.add_server_key(self._host_key)
                with contextlib.suppress(paramiko.SSHException, EOFError):
                    transport.start_server(server=_Door(self.passed, self._key, self._code))


class _Door(paramiko.ServerInterface):  # type: ignore[misc]  # the library has no types
    def __init__(self, passed: list[str], key: Path, code: str) -> None:
        self._passed, self._code = passed, code
        self._blob = paramiko.Ed25519Key.from_private_key_file(str(key)).asbytes()
        self._has_key = False

    def get_allowed_auths(self, username: str) -> str:
        return "keyboard-interactive" if self._has_key else "publickey"

    def check_auth_publickey(self, username: str, key: Any) -> int:
        if key.asbytes() != self._blob:
            return int(paramiko.AUTH_FAILED)
        self._has_key = True
        if "publickey" not in self._passed:
            self._passed.append("publickey")
        return int(paramiko.AUTH_PARTIALLY_SUCCESSFUL)

    def check_auth_interactive(self, username: str, submethods: str) -> Any:
        return paramiko.InteractiveQuery("Your token", "\x1b[31mred", ("Verification code: ", False))

    def check_auth_interactive_response(self, responses: list[str]) -> int:
        if responses != [self._code]:
            return int(paramiko.AUTH_FAILED)
        self._passed.append("keyboard-interactive")
        return int(paramiko.AUTH_SUCCESSFUL)

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return int(paramiko.OPEN_FAILED_ADMINISTRATIVELY_PROHIBITED)
