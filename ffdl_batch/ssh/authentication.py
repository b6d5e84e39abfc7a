"""Logs in at a host with keys of the agent, keys in files, and answers of the person at the terminal.

The order is that of ssh: the agent's keys, files without a passphrase, files with one, and then answers. A host may
require several in a row (a key and a one-time code). After each success the next method is tried.
"""

from __future__ import annotations

import base64
import os
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.ssh.errors import SshFailed
from ffdl_batch.ssh.host_config import HostConfig
from ffdl_batch.ssh.host_keys import HostKey
from ffdl_batch.ssh.terminal_prompt import Terminal

if TYPE_CHECKING:
    import paramiko

_KEY, _ANSWERS, _PASSWORD = "publickey", "keyboard-interactive", "password"
_PUBLIC = ("ssh-", "ecdsa-", "sk-")
_AGENT = "SSH_AUTH_SOCK"
_TRIES = 3
_PERSON_S = 300.0
"""Maximum time for a person to enter a code."""
_HOST_S = 60.0
_AGENT_S = 10.0
_LIST_KEYS = b"\0\0\0\1\x0b"
"""SSH_AGENTC_REQUEST_IDENTITIES of the agent's protocol (draft-miller-ssh-agent), with its length before it."""


class Login:
    """One login at one host."""

    def __init__(self, transport: paramiko.Transport, config: HostConfig, terminal: Terminal | None) -> None:
        self._transport, self._config = transport, config
        self._terminal = None if config.batch_mode else terminal
        self._tried: list[str] = []
        self._offered: set[bytes] = set()
        self._allowed: Sequence[str] = ()

    def perform(self) -> None:
        """Log in. Raises SshFailed (exit 77) if the host accepts none of our methods."""
        import paramiko

        self._transport.auth_timeout = _HOST_S
        try:
            if self._is_open_to_all():
                return
            ways = (self._by_keys, self._by_answers, self._by_password)
            while any(way() for way in ways):
                if self._transport.is_authenticated():
                    return
        except (paramiko.SSHException, EOFError, OSError) as error:
            raise self._refused(
                f"; then the host ended the connection: {str(error) or type(error).__name__}"
            ) from error
        raise self._refused()

    def _is_open_to_all(self) -> bool:
        """Try to log in without credentials. A refusal lists the methods that the host accepts."""
        import paramiko

        try:
            self._transport.auth_none(self._config.user)
        except paramiko.BadAuthenticationType as refusal:
            self._allowed = refusal.allowed_types
            return False
        return True

    def _note(self, more: Sequence[str]) -> bool:
        """Note the further methods that the host requires after a success."""
        self._allowed = more
        return True

    def _by_keys(self) -> bool:
        import paramiko

        if _KEY not in self._allowed:
            return False
        for name, key in self._keys():
            if key.asbytes() in self._offered and key.public_blob is None:
                continue
            self._offered.add(key.asbytes())
            self._tried.append(name)
            try:
                return self._note(self._transport.auth_publickey(self._config.user, key))
            except paramiko.BadAuthenticationType as refusal:
                self._allowed = refusal.allowed_types
                return False
            except paramiko.AuthenticationException:
                if not self._transport.is_active():
                    raise
        return False

    def _keys(self) -> Iterator[tuple[str, paramiko.PKey]]:
        named = [Path(name) for name in self._config.identity_files]
        yield from self._of_agent(named)
        files = [file for file in named if file.is_file() and not _blob_in(file)]
        locked: list[Path] = []
        for file in files:
            key = self._read(file, None)
            if key is None:
                locked.append(file)
            elif isinstance(key, str):
                self._tried.append(f"{file} ({key})")
            else:
                yield str(file), key
        for file in locked:
            if _public_blob(file) not in self._offered:  # otherwise the host has rejected the agent's copy
                yield from self._unlocked(file)

    def _of_agent(self, files: Sequence[Path]) -> Iterator[tuple[str, paramiko.PKey]]:
        """Yield the agent's keys, those named in the configuration first; with IdentitiesOnly, no others."""
        named = {blob for file in files if (blob := _public_blob(file))}
        try:
            _knock(self._config.agent)
        except TimeoutError:
            self._tried.append(f"the agent at {self._config.agent} (no answer within {_AGENT_S:g} s)")
            return
        except OSError:  # no agent
            return
        keys = _agent_keys(self._config.agent)
        for key in sorted(keys, key=lambda one: one.asbytes() not in named):
            if key.asbytes() in named or not self._config.identities_only:
                yield f"a key of the agent ({HostKey(key.get_name(), key.asbytes()).fingerprint})", key

    def _unlocked(self, file: Path) -> Iterator[tuple[str, paramiko.PKey]]:
        if self._terminal is None:
            self._tried.append(f"{file} (has a passphrase, and there is no terminal to ask for it)")
            return
        for _ in range(_TRIES):
            key = self._read(file, self._terminal.ask(f"Passphrase of {file}: "))
            if key is not None and not isinstance(key, str):
                yield str(file), key
                return
        self._tried.append(f"{file} (wrong passphrase)")

    @staticmethod
    def _read(file: Path, passphrase: str | None) -> paramiko.PKey | str | None:
        """Return the key; None if it needs a (different) passphrase; or the reason why it cannot be used."""
        import paramiko

        kinds = (paramiko.Ed25519Key, paramiko.ECDSAKey, paramiko.RSAKey)
        why = "unknown kind of key"
        for kind in kinds:
            try:
                key: paramiko.PKey = kind.from_private_key_file(str(file), passphrase)
            except paramiko.PasswordRequiredException:
                return None
            except OSError as error:
                return error.strerror or "cannot be read"
            except (paramiko.SSHException, ValueError, TypeError, IndexError):
                continue
            certificate = Path(f"{file}-cert.pub")
            if certificate.is_file():
                key.load_certificate(str(certificate))
            return key
        return None if passphrase is not None else why

    def _by_answers(self) -> bool:
        """Log in by keyboard-interactive: a person answers the host's questions."""
        import paramiko

        if _ANSWERS not in self._allowed or self._terminal is None:
            return False
        self._transport.auth_timeout = _PERSON_S
        for _ in range(_TRIES):
            self._tried.append("answers")
            try:
                return self._note(self._transport.auth_interactive(self._config.user, self._answer))
            except paramiko.BadAuthenticationType as refusal:
                self._allowed = refusal.allowed_types
                return False
            except paramiko.AuthenticationException:
                if not self._transport.is_active():
                    raise
        return False

    def _answer(self, title: str, instructions: str, prompts: Sequence[tuple[str, bool]]) -> list[str]:
        assert self._terminal is not None
        for text in (title, instructions):
            if text.strip():
                self._terminal.show(text)
        return [self._terminal.ask(f"({self._config.name}) {prompt}", shown=shown) for prompt, shown in prompts]

    def _by_password(self) -> bool:
        import paramiko

        if _PASSWORD not in self._allowed or self._terminal is None:
            return False
        for _ in range(_TRIES):
            self._tried.append("a password")
            word = self._terminal.ask(f"Password of {self._config.name}: ")
            try:
                return self._note(self._transport.auth_password(self._config.user, word, fallback=False))
            except paramiko.BadAuthenticationType as refusal:
                self._allowed = refusal.allowed_types
                return False
            except paramiko.AuthenticationException:
                if not self._transport.is_active():
                    raise
        return False

    def _refused(self, then: str = "") -> SshFailed:
        tried = f"tried: {', '.join(dict.fromkeys(self._tried))}" if self._tried else "no key was found"
        accepted = ", ".join(self._allowed) or "no method that it names"
        alone = "" if self._terminal else "; nothing could be entered, because there is no terminal or BatchMode is set"
        return SshFailed(
            f"{self._config.name} refused the login: it accepts {accepted}; {tried}{then}{alone}",
            f"try: {self._config.command}; keys with a passphrase are best in an agent (ssh-add)",
            ExitCode.NOT_ALLOWED,
        )


def _public_blob(file: Path) -> bytes:
    """Return the public key beside a key's file, or in the file itself; b"" if there is none."""
    return _blob_in(Path(f"{file}.pub")) or _blob_in(file)


def _blob_in(file: Path) -> bytes:
    """Return the key in a file with a public key; b"" for other files."""
    try:
        kind, blob = file.read_text(encoding="utf-8").split()[:2]
        return base64.b64decode(blob) if kind.startswith(_PUBLIC) else b""
    except (OSError, ValueError):
        return b""


def _knock(socket_path: str) -> None:
    """Ask the agent for its keys and wait for the first byte, because the library would wait without a limit. Raises
    TimeoutError, OSError."""
    if not socket_path:
        return
    with socket.socket(socket.AF_UNIX) as asking:
        asking.settimeout(_AGENT_S)
        asking.connect(socket_path)
        asking.sendall(_LIST_KEYS)
        asking.recv(1)


def _agent_keys(socket_path: str) -> Sequence[paramiko.PKey]:
    """Return the keys of the agent; none if there is no agent."""
    if not socket_path:
        return ()
    import paramiko

    before = os.environ.get(_AGENT)
    os.environ[_AGENT] = socket_path  # the library reads only this variable
    try:
        return tuple(paramiko.Agent().get_keys())
    except (OSError, paramiko.SSHException):
        return ()
    finally:
        if before is None:
            del os.environ[_AGENT]
        else:
            os.environ[_AGENT] = before
