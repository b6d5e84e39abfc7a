"""Decides to which host commands go: ``--host``, FFDL_HOST, or ``host`` of the configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ffdl_batch.config import Settings

PROGRAM = "ffdl"
"""The name of the program unless the configuration has another."""
HERE = "--host="
"""The first option of every command there: it stays there even if the host's own configuration names a host."""


@dataclass(frozen=True, slots=True)
class HostPlace:
    """A host, and the name of ffdl there. `state_dir` "" = that of its own configuration."""

    host: str
    program: str = PROGRAM
    state_dir: str = ""

    def words(self, *words: str) -> list[str]:
        """Return the argument list that runs one of its commands."""
        environ = ["env", f"FFDL_STATE_DIR={self.state_dir}"] if self.state_dir else []
        return [*environ, self.program, HERE, *words]


def choose_place(given: str | None, environ: Mapping[str, str], settings: Settings) -> HostPlace | None:
    """Return the host; None for this machine, also if "" is given. Pure."""
    host = given if given is not None else environ.get("FFDL_HOST") or settings.host
    return HostPlace(host, environ.get("FFDL_HOST_PROGRAM") or settings.host_program) if host else None
