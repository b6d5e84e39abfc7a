"""Checks the key of a host against known_hosts, always.

An unknown key is refused with the command that adds it. A changed key is refused with a prominent warning. No setting
turns this off, not even StrictHostKeyChecking. Keys that are signed by a CA (@cert-authority) are not supported and are
ignored. Revoked keys are refused.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import shlex
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.ssh.errors import SshFailed
from ffdl_batch.ssh.host_config import HostConfig

REVOKED, AUTHORITY = "@revoked", "@cert-authority"


@dataclass(frozen=True, slots=True)
class HostKey:
    """A public key: its kind, such as ``ssh-ed25519``, and its blob in the protocol."""

    kind: str
    blob: bytes

    @property
    def fingerprint(self) -> str:
        """The fingerprint in the format of ssh-keygen -l."""
        digest = base64.b64encode(hashlib.sha256(self.blob).digest()).decode("ascii").rstrip("=")
        return f"{self.short_kind.upper()} SHA256:{digest}"

    @property
    def short_kind(self) -> str:
        """The kind in the format of ssh-keyscan -t."""
        return "ecdsa" if self.kind.startswith("ecdsa-") else self.kind.removeprefix("ssh-")


@dataclass(frozen=True, slots=True)
class KnownKey:
    """A line of known_hosts that is about a host."""

    key: HostKey
    file: str
    line: int
    marker: str = ""


def known_keys(config: HostConfig) -> list[KnownKey]:
    """Return the lines about the host; missing files have none. Raises SshFailed for a file that cannot be read."""
    found: list[KnownKey] = []
    for name in config.known_hosts:
        try:
            text = Path(name).read_text(encoding="utf-8", errors="replace")
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise SshFailed(
                f"{name} cannot be read: {error.strerror}", "make it readable", ExitCode.NOT_ALLOWED
            ) from error
        found += read_lines(text, name, config.key_name)
    return [known for known in found if known.marker != AUTHORITY]


def read_lines(text: str, file: str, host: str) -> Iterator[KnownKey]:
    """Yield the lines about `host`. Pure."""
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        marker = words.pop(0) if words and words[0].startswith("@") else ""
        if len(words) < 3 or words[0].startswith("#") or not _is_about(words[0], host):
            continue
        try:
            blob = base64.b64decode(words[2], validate=True)
        except (binascii.Error, ValueError):
            continue
        yield KnownKey(HostKey(words[1], blob), file, number, marker)


def _is_about(patterns: str, host: str) -> bool:
    if patterns.startswith("|1|"):
        return _is_hash_of(patterns, host)
    wanted, found = host.lower(), False
    for pattern in patterns.lower().split(","):
        if _fits(pattern.removeprefix("!"), wanted):
            if pattern.startswith("!"):
                return False
            found = True
    return found


def _fits(pattern: str, host: str) -> bool:
    """Match a pattern. Only ``*`` and ``?`` are special; brackets are part of a name with a port."""
    return fnmatchcase(host, pattern.replace("[", "[[]"))


def _is_hash_of(hashed: str, host: str) -> bool:
    try:
        salt, digest = (base64.b64decode(part) for part in hashed.removeprefix("|1|").split("|"))
    except (binascii.Error, ValueError):
        return False
    return hmac.compare_digest(hmac.new(salt, host.encode(), hashlib.sha1).digest(), digest)


def check_host_key(config: HostConfig, offered: HostKey, known: Sequence[KnownKey], *, is_behind: bool = False) -> None:
    """Raise SshFailed (exit 77) unless the offered key is known. Pure.

    `is_behind`: the host is reached through others, so that ssh-keyscan cannot reach it.
    """
    for one in known:
        if one.key.blob == offered.blob and one.marker == REVOKED:
            raise SshFailed(
                f"the host key of {config.name} is revoked ({one.file}, line {one.line}): {offered.fingerprint}",
                "do not log in; inform the site",
                ExitCode.NOT_ALLOWED,
            )
    living = [one for one in known if one.marker != REVOKED]
    if any(one.key.blob == offered.blob for one in living):
        return
    if living:
        raise _changed(config, offered, living)
    raise SshFailed(
        f"the host key of {config.name} is not known: {offered.fingerprint}",
        f"compare it with the key that the site publishes; then: {_accepting(config, offered, is_behind=is_behind)}",
        ExitCode.NOT_ALLOWED,
    )


def _accepting(config: HostConfig, offered: HostKey, *, is_behind: bool) -> str:
    file = shlex.quote(config.known_hosts[0]) if config.known_hosts else "~/.ssh/known_hosts"
    if is_behind or config.host_key_alias:
        line = f"{config.key_name} {offered.kind} {base64.b64encode(offered.blob).decode('ascii')}"
        return f"echo {shlex.quote(line)} >> {file}"
    port = f"-p {config.port} " if config.port != 22 else ""
    return f"ssh-keyscan {port}-t {offered.short_kind} {shlex.quote(config.hostname)} >> {file}"


def _changed(config: HostConfig, offered: HostKey, known: Sequence[KnownKey]) -> SshFailed:
    places = ", ".join(f"{one.key.fingerprint} ({one.file}, line {one.line})" for one in known)
    file = shlex.quote(known[0].file)
    return SshFailed(
        f"THE HOST KEY OF {config.name} HAS CHANGED. Somebody may be listening in, or the host has a new key. "
        f"Nothing was sent. It shows {offered.fingerprint}; known is {places}",
        f"ask the site; only if its key did change: ssh-keygen -R {shlex.quote(config.key_name)} -f {file}",
        ExitCode.NOT_ALLOWED,
    )
