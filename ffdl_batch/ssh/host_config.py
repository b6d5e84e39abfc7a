"""Reads how a host is reached from the user's and the site's configuration of ssh.

``ssh -G`` prints it, so that Include, Match and tokens mean what they mean to ssh. Without an ssh program paramiko
reads ``~/.ssh/config``; it refuses a file that has an Include. FFDL_SSH names another ssh program, FFDL_SSH_CONFIG
another file of configuration.
"""

from __future__ import annotations

import getpass
import os
import re
import shlex
import shutil
import socket
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.ssh.errors import SshFailed

ALIVE_INTERVAL_S, ALIVE_COUNT = 15, 3
"""Unless the configuration sets them (ssh's own default: never): a command must not hang on a lost connection."""
CONNECT_S = 15.0
PARAMIKO = "paramiko"
"""The value of FFDL_SSH for paramiko instead of an ssh program."""
_MOST_JUMPS = 8
_ASK_S = 20.0
_KEYS = ("id_ed25519", "id_ecdsa", "id_rsa")
Options = Mapping[str, Sequence[str]]

_SHELLS = r"\x00-\x1f\x7f'\"`$\\;&<>|(){}"
"""Characters that a user name must not have (ssh's `valid_ruser`), because a ProxyCommand with %r is run by a shell."""
_FORM = re.compile(
    rf"(?:ssh://)?(?:(?P<user>[^@\s:/\[\]{_SHELLS}-][^\s/{_SHELLS}]*)@)?"
    r"(?:\[(?P<six>[0-9A-Fa-f:.%]+)\]|(?P<host>[A-Za-z0-9_][A-Za-z0-9_.-]*))(?::(?P<port>[0-9]{1,5}))?/?",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class Destination:
    """The parts of a destination."""

    host: str
    user: str = ""
    """The user; "" for that of the configuration."""
    port: int = 0
    """The port; 0 for that of the configuration."""


def read_destination(text: str) -> Destination:
    """Read ``[USER@]HOST[:PORT]`` or ``ssh://[USER@]HOST[:PORT]``. Raises SshFailed (exit 2), also for a text that a
    program would read as an option."""
    found = _FORM.fullmatch(text)
    port = int(found["port"] or 0) if found else 0
    if found is None or port > 65535:
        raise SshFailed(
            f"{text[:100]!r} is not a host", "use HOST, USER@HOST or USER@HOST:PORT", exit_code=ExitCode.USAGE
        )
    return Destination(found["six"] or found["host"], found["user"] or "", port)


@dataclass(frozen=True, slots=True)
class HostConfig:
    """The options of ssh for one host."""

    asked: str
    hostname: str
    user: str
    port: int = 22
    identity_files: tuple[str, ...] = ()
    identities_only: bool = False
    agent: str = ""
    """The agent's socket; "" = none."""
    known_hosts: tuple[str, ...] = ()
    """The first one is the user's own, into which a new key goes."""
    host_key_alias: str = ""
    proxy_jump: tuple[str, ...] = ()
    """The jump hosts, in order."""
    proxy_command: str = ""
    batch_mode: bool = False
    connect_timeout_s: float = CONNECT_S
    alive_interval_s: int = ALIVE_INTERVAL_S
    alive_count: int = ALIVE_COUNT
    config_file: str = ""
    """The file that was named instead of ssh's own; "" = none."""
    control_path: str = ""
    """The socket of ssh's shared connection (ControlPath); "" = none."""
    keeps_connection: bool = False
    """ssh itself makes that connection and keeps it (ControlMaster and ControlPersist)."""
    has_remote_command: bool = False

    @property
    def command(self) -> str:
        """The command line of ssh for a person."""
        file = f"-F {shlex.quote(self.config_file)} " if self.config_file else ""
        port = f"-p {self.port} " if self.port != 22 else ""
        return f"ssh {file}{port}{shlex.quote(f'{self.user}@{self.asked}')}"

    @property
    def name(self) -> str:
        """The name of the host in messages."""
        return f"{self.user}@{self.asked}" + (f":{self.port}" if self.port != 22 else "")

    @property
    def key_name(self) -> str:
        """The name of its key in known_hosts (sshd(8), SSH_KNOWN_HOSTS FILE FORMAT)."""
        host = self.host_key_alias or self.hostname
        return host if self.port == 22 or self.host_key_alias else f"[{host}]:{self.port}"


def read_host(where: Destination, environ: Mapping[str, str]) -> HostConfig:
    """Return the options that ssh would use. Raises SshFailed for a configuration that cannot be read."""
    named = environ.get("FFDL_SSH") or "ssh"
    ssh = shutil.which("ssh" if named == PARAMIKO else named, path=environ.get("PATH"))
    options = _by_ssh(ssh, where, environ) if ssh else _by_paramiko(where, environ)
    return interpret(where, options, environ, is_for_ssh=ssh is not None and named != PARAMIKO)


def check_jumps(config: HostConfig, environ: Mapping[str, str], passed: tuple[str, ...] = ()) -> None:
    """Raise SshFailed if ProxyJump leads back to a host: ssh would start itself without end."""
    if config.name in passed or len(passed) >= _MOST_JUMPS:
        raise SshFailed(f"ProxyJump goes in a circle at {config.name}", "see ssh_config(5)", ExitCode.BAD_MANIFEST)
    for jump in config.proxy_jump[:1]:  # ssh passes the others itself, without their own ProxyJump
        check_jumps(read_host(read_destination(jump), environ), environ, (*passed, config.name))


def _by_ssh(ssh: str, where: Destination, environ: Mapping[str, str]) -> Options:
    argv = [ssh, "-G"]
    argv += ["-F", environ["FFDL_SSH_CONFIG"]] if environ.get("FFDL_SSH_CONFIG") else []
    argv += ["-l", where.user] if where.user else []
    argv += ["-p", str(where.port)] if where.port else []
    try:
        done = subprocess.run(
            [*argv, where.host],
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_ASK_S,
            env=dict(environ),
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _unusable(f"{ssh} -G {where.host} failed: {error}") from error
    if done.returncode != 0:
        printed = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise _unusable(f"{ssh} -G {where.host}: {printed[-1] if printed else f'exit code {done.returncode}'}")
    return parse_options(done.stdout.decode("utf-8", "surrogateescape"))


def parse_options(text: str) -> Options:
    """Parse the output of ``ssh -G``: lines with a keyword and its value. Pure."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        keyword, _, value = line.strip().partition(" ")
        found.setdefault(keyword.lower(), []).append(value)
    return found


def _by_paramiko(where: Destination, environ: Mapping[str, str]) -> Options:
    import paramiko

    path = Path(environ.get("FFDL_SSH_CONFIG") or _home(environ) / ".ssh" / "config")
    if not path.is_file():
        return _named({}, where)
    try:
        found = paramiko.SSHConfig.from_path(str(path)).lookup(where.host)
    except (OSError, paramiko.SSHException, ImportError, ValueError) as error:
        raise _unusable(f"{path}: {error}") from error
    if "include" in found:
        raise _unusable(f"{path} has an Include, which only ssh itself can read")
    return _named({key: [value] if isinstance(value, str) else list(value) for key, value in found.items()}, where)


def _named(options: dict[str, list[str]], where: Destination) -> Options:
    options |= {"user": [where.user]} if where.user else {}
    return options | ({"port": [str(where.port)]} if where.port else {})


def _unusable(message: str) -> SshFailed:
    cure = "see ssh_config(5); ssh itself must be able to read it: ssh -G HOST; or set FFDL_SSH=paramiko"
    return SshFailed(f"the configuration of ssh cannot be used: {message}", cure, ExitCode.BAD_MANIFEST)


def interpret(
    where: Destination, options: Options, environ: Mapping[str, str], *, is_for_ssh: bool = False
) -> HostConfig:
    """Return the options as values, with the defaults of ssh_config(5). Pure but for names of this machine.

    `is_for_ssh`: ssh makes the connection, so tokens that are not known here are left as they are.
    """

    def first(key: str, default: str = "") -> str:
        return next((value for value in options.get(key, ()) if value), default)

    home = _home(environ)
    hostname = first("hostname", where.host)
    user, port = first("user") or getpass.getuser(), int(first("port", "22"))
    words = _Words(where.host, hostname, user, port, home, environ, is_for_ssh)
    control_path = first("controlpath", "none")
    jumps = first("proxyjump", "none")
    command = first("proxycommand", "none")
    interval = int(first("serveraliveinterval", "0")) or ALIVE_INTERVAL_S
    known = [*_split(options.get("userknownhostsfile", ())), *_split(options.get("globalknownhostsfile", ()))]
    default = (f"{home}/.ssh/known_hosts", "/etc/ssh/ssh_known_hosts")
    return HostConfig(
        asked=where.host,
        hostname=hostname,
        user=user,
        port=port,
        identity_files=tuple(map(words.path, options.get("identityfile") or _default_keys(home))),
        identities_only=first("identitiesonly") == "yes",
        agent=_agent(first("identityagent", "SSH_AUTH_SOCK"), words, environ),
        known_hosts=tuple(words.path(one) for one in known or default if one != "none"),
        host_key_alias=first("hostkeyalias"),
        proxy_jump=() if jumps == "none" else tuple(part.strip() for part in jumps.split(",") if part.strip()),
        proxy_command="" if command == "none" or jumps != "none" else words.fill(command),
        batch_mode=first("batchmode") == "yes",
        connect_timeout_s=_seconds(first("connecttimeout", "none")),
        alive_interval_s=interval,
        config_file=environ.get("FFDL_SSH_CONFIG", ""),
        alive_count=int(first("serveralivecountmax", str(ALIVE_COUNT))) or ALIVE_COUNT,
        control_path="" if control_path == "none" else control_path,
        keeps_connection=first("controlmaster") in ("auto", "yes", "true")
        and first("controlpersist", "no") not in ("no", "false"),
        has_remote_command=first("remotecommand", "none") != "none",
    )


@dataclass(frozen=True, slots=True)
class _Words:
    """The values of the tokens of ssh_config(5)."""

    asked: str
    hostname: str
    user: str
    port: int
    home: Path
    environ: Mapping[str, str]
    leaves_unknown: bool

    def fill(self, text: str) -> str:
        """Replace the tokens. Raises SshFailed for an unknown one, unless those are left as they are."""
        here = socket.gethostname()
        known = {
            "%": "%",
            "h": self.hostname,
            "n": self.asked,
            "p": str(self.port),
            "r": self.user,
            "d": str(self.home),
        }
        known |= {
            "l": here,
            "L": here.partition(".")[0],
            "u": getpass.getuser(),
            "i": str(os.getuid()),
            "k": self.asked,
        }

        def word(found: re.Match[str]) -> str:
            if found[1] not in known and self.leaves_unknown:
                return found[0]
            if found[1] not in known:
                raise _unusable(f"the token %{found[1]} in {text!r} is not supported")
            return known[found[1]]

        return re.sub(r"%(.)", word, text)

    def path(self, text: str) -> str:
        """Replace ``~``, ``${NAME}`` and tokens in the name of a file."""
        named = re.sub(r"\$\{(\w+)\}", lambda found: self.environ.get(found[1], ""), text.strip('"'))
        return self.fill(str(self.home) + named[1:] if named.startswith("~/") or named == "~" else named)


def _agent(value: str, words: _Words, environ: Mapping[str, str]) -> str:
    if value == "none":
        return ""
    if value == "SSH_AUTH_SOCK":
        return environ.get("SSH_AUTH_SOCK", "")
    return environ.get(value[1:], "") if re.fullmatch(r"\$\w+", value) else words.path(value)


def _split(values: Iterable[str]) -> list[str]:
    return [part for value in values for part in value.split()]


def _default_keys(home: Path) -> list[str]:
    return [f"{home}/.ssh/{name}" for name in _KEYS]


def _seconds(text: str) -> float:
    return float(text) if text.isdecimal() and int(text) else CONNECT_S


def _home(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("HOME") or Path.home())
