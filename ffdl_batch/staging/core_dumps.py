"""No memory image of what holds credentials."""

from __future__ import annotations

import resource


def leave_no_dump(*, for_good: bool = False) -> None:
    """This process, and what it starts, leaves no core dump; `for_good`: nor can it ask for one.

    A limit of 0 stops no core that goes to a program (core_pattern with ``|``, core(5)). One byte does: Linux takes
    that limit for its own mark of a dump that must not be (fs/coredump.c), and no file of a core fits into it.
    """
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    least = 0 if hard == 0 else 1
    resource.setrlimit(resource.RLIMIT_CORE, (least, least if for_good else hard))
