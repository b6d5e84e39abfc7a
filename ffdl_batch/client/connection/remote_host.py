"""Whether commands go to another host, and to which: ``--host``, FFDL_HOST, or ``host`` of the configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ffdl_batch.ssh.login_shell import at_login

if TYPE_CHECKING:
    from ffdl_batch.config import Settings

PROGRAM = "ffdl"
"""What it is called where nobody says otherwise."""
HERE = "--host="
"""What every command over there is given: a configuration of that host may name a host, too, and it stays there."""


@dataclass(frozen=True, slots=True)
class HostPlace:
    """A host, and what ffdl is called there."""

    host: str
    program: str = PROGRAM

    def command(self, *words: str) -> str:
        """The line for its shell that runs one of its commands."""
        return at_login([self.program, HERE, *words])


def choose_place(given: str | None, environ: Mapping[str, str], settings: Settings) -> HostPlace | None:
    """The host; None for this machine, also where "" is given. Pure."""
    host = given if given is not None else environ.get("FFDL_HOST") or settings.host
    return HostPlace(host, environ.get("FFDL_HOST_PROGRAM") or settings.host_program) if host else None
