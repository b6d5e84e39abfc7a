"""What differs between the Debian suites that a cluster is made of: one row a suite, and nothing else anywhere.

What differs between releases of Slurm, for every site and not for tests alone, is in slurm-configs/overlays.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from enum import StrEnum

from .errors import Exit, RigError

DONOR = "sid"
"""The suite that gives what another one lacks."""
APPTAINER_VARIABLE = "FFDL_TEST_APPTAINER_SUITE"
"""Names the suite whose package of Apptainer is installed instead of what the table says; `none`: none is."""


class Supply(StrEnum):
    """Where a suite gets something from that is not Slurm."""

    OWN = "own"  # its own package
    PACKAGE = "package"  # the donor's package, which installs there
    CARRIED = "carried"  # the donor's files with the donor's libraries, see carried.py
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Suite:
    """One suite. `python` is that of the project's venv; nodes keep the suite's own as /usr/bin/python3."""

    name: str
    slurm: str
    python: Supply
    apptainer: Supply
    slurm_lines: tuple[str, ...] = ()

    @property
    def carries(self) -> bool:
        """Whether files of the donor are laid over its root file system."""
        return Supply.CARRIED in (self.python, self.apptainer)


# Until requeue_delay came with 25.11, a requeued job waited for as long as a credential lives: 120 s unless told.
_SHORT_CREDENTIALS = "AuthInfo=cred_expire=20"

SUITES = {
    row.name: row
    for row in (
        Suite("sid", "26.05", Supply.OWN, Supply.OWN),
        Suite("trixie", "24.11", Supply.OWN, Supply.PACKAGE, (_SHORT_CREDENTIALS,)),
        Suite("bookworm", "22.05", Supply.OWN, Supply.CARRIED, (_SHORT_CREDENTIALS,)),
        # Debian 11: Python 3.9 runs controllers, but the daemon and the tests need 3.11.
        Suite("bullseye", "20.11", Supply.CARRIED, Supply.CARRIED, (_SHORT_CREDENTIALS,)),
    )
}


def suite_named(name: str) -> Suite:
    """The row of a suite, with FFDL_TEST_APPTAINER_SUITE heeded; RigError lists the suites that there are."""
    if name not in SUITES:
        raise RigError(f"unknown suite {name!r}; known: {', '.join(SUITES)}", Exit.UNAVAILABLE)
    named = os.environ.get(APPTAINER_VARIABLE)
    if not named or named == name:
        return SUITES[name]
    return replace(SUITES[name], apptainer=Supply.NONE if named == "none" else Supply.PACKAGE)
