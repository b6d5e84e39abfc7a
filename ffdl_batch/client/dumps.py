"""No memory image of a process of a person's that has values of secrets (core(5))."""

from __future__ import annotations

import resource


def leave_no_dump() -> None:
    """This process and what it starts leave no core dump from now on; each may ask for one again."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
