"""Where a connection goes: ``[USER@]HOST[:PORT]`` or ``ssh://[USER@]HOST[:PORT]``, as on ssh's command line. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.ssh.errors import SshFailed

_SHELLS = r"\x00-\x1f\x7f'\"`$\\;&<>|(){}"
"""What no user's name has (as ssh's own `valid_ruser`): a ProxyCommand with %r is a line for a shell."""
_FORM = re.compile(
    rf"(?:ssh://)?(?:(?P<user>[^@\s:/\[\]{_SHELLS}-][^\s/{_SHELLS}]*)@)?"
    r"(?:\[(?P<six>[0-9A-Fa-f:.%]+)\]|(?P<host>[A-Za-z0-9_][A-Za-z0-9_.-]*))(?::(?P<port>[0-9]{1,5}))?/?",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class Destination:
    """The parts of a destination. `user` "" and `port` 0: as in the configuration."""

    host: str
    user: str = ""
    port: int = 0


def read_destination(text: str) -> Destination:
    """Raises SshFailed (exit 2) for what is none; no text becomes an option of a program."""
    found = _FORM.fullmatch(text)
    port = int(found["port"] or 0) if found else 0
    if found is None or port > 65535:
        raise SshFailed(
            f"{text[:100]!r} is no host", "write HOST, USER@HOST or USER@HOST:PORT", exit_code=ExitCode.USAGE
        )
    return Destination(found["six"] or found["host"], found["user"] or "", port)
