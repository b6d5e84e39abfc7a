"""Turns messages of the ssh program about failed connections into SshFailed. Pure.

The sentences are those of OpenSSH 7.4 to 10.0 (sshconnect.c, sshconnect2.c, kex.c), which are never translated.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.ssh.errors import SshFailed
from ffdl_batch.ssh.host_config import HostConfig

_DENIED = re.compile(r": Permission denied \(([^)]*)\)\.?$", re.MULTILINE)
_UNRESOLVED = re.compile(r"Could not resolve hostname (\S+): (.*)")
_REFUSED = re.compile(r"connect to host (\S+) port (\d+): (.*)")
_OFFENDING = re.compile(r"Offending (\S+) key in (\S+):(\d+)")
_SERVER_KEY = re.compile(r"Server host key: (\S+) (SHA256:\S+)")
_SENT = re.compile(r"^(SHA256:[A-Za-z0-9+/]+)\.?$")
_UNKNOWN, _CHANGED, _REVOKED = "host key is known for", "IDENTIFICATION HAS CHANGED", "is marked as revoked"
_KEY_FAILED = "Host key verification failed"


def is_final(line: str) -> bool:
    """Return whether the line ends the attempt to connect, so that SshFailed reports it."""
    return bool(_DENIED.search(line) or _UNRESOLVED.search(line) or _REFUSED.search(line) or _KEY_FAILED in line)


def is_host_key_unknown(lines: Sequence[str]) -> bool:
    """Return whether ssh refused the host because no known_hosts file has its key."""
    return any(_UNKNOWN in line for line in lines)


def explain(config: HostConfig, code: int, lines: Sequence[str], details: str, *, asks: bool) -> SshFailed:
    """Return the error for `lines`; `details` is ssh's debugging output if the host key is not known. `asks`: there was
    a person to ask."""
    text = "\n".join(lines)
    if _REVOKED in text or _CHANGED in text or _KEY_FAILED in text:
        return _explain_host_key(config, lines, details)
    if denied := _DENIED.search(text):
        return _explain_denial(config, denied[1], asks=asks)
    if unknown := _UNRESOLVED.search(text):
        return SshFailed(f"the host {unknown[1]} is not known: {unknown[2]}", "check the name, and that you are online")
    if refused := _REFUSED.search(text):
        message = f"{refused[1]}, port {refused[2]}, cannot be reached: {refused[3]}"
        return SshFailed(message, "are you online, or in the site's VPN?")
    if config.proxy_jump and "Connection closed" in text:
        return SshFailed(f"{config.proxy_jump[-1]} does not reach {config.hostname}, port {config.port}", "try again")
    last = next((line for line in reversed(lines) if line), f"ssh exited with status {code}")
    return SshFailed(
        f"no SSH connection to {config.name}: {last}", f"try again later, or see what ssh prints: {config.command} -v"
    )


def _explain_host_key(config: HostConfig, lines: Sequence[str], details: str) -> SshFailed:
    text = "\n".join(lines)
    if _CHANGED in text:
        return _explain_change(config, lines)
    message, cure = f"the host key of {config.name} was not accepted", f"see what ssh prints: {config.command}"
    if _REVOKED in text:
        message, cure = f"the host key of {config.name} is revoked", "do not log in; inform the site"
    elif is_host_key_unknown(lines):
        key = _SERVER_KEY.search(details)
        shown = f": {key[1].removeprefix('ssh-').upper()} {key[2]}" if key else ""
        accept = config.command.replace("ssh ", "ssh -o StrictHostKeyChecking=accept-new ", 1)
        message = f"the host key of {config.name} is not known{shown}"
        cure = f"compare that with what the site publishes; then: {accept} true"
    return SshFailed(message, cure, ExitCode.NOT_ALLOWED)


def _explain_change(config: HostConfig, lines: Sequence[str]) -> SshFailed:
    known = next((found for line in lines if (found := _OFFENDING.search(line))), None)
    sent = next((f" It shows {found[1]}." for line in lines if (found := _SENT.search(line))), "")
    place = f" Known is the {known[1]} key of {known[2]}, line {known[3]}." if known else ""
    file = shlex.quote(known[2] if known else config.known_hosts[0] if config.known_hosts else "~/.ssh/known_hosts")
    return SshFailed(
        f"THE HOST KEY OF {config.name} HAS CHANGED. Somebody may be listening in, or the host has a new key. "
        f"Nothing was sent.{sent}{place}",
        f"ask the site; only if its key did change: ssh-keygen -R {shlex.quote(config.key_name)} -f {file}",
        ExitCode.NOT_ALLOWED,
    )


def _explain_denial(config: HostConfig, methods: str, *, asks: bool) -> SshFailed:
    keys = ", ".join(config.identity_files)
    alone = "" if asks else "; nothing could be entered, because there is no terminal or BatchMode is set"
    return SshFailed(
        f"{config.name} refused the login: it accepts {methods.replace(',', ', ')}; keys are read from the agent and "
        f"{keys}{alone}",
        f"try: {config.command}; keys with a passphrase are best in an agent (ssh-add)",
        ExitCode.NOT_ALLOWED,
    )
