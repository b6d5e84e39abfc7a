"""Exit codes of all commands; those of sysexits.h if it has one."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes that scripts can rely on."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NO_INPUT = 66
    UNAVAILABLE = 69
    TRY_AGAIN = 75
    NOT_ALLOWED = 77
    BAD_MANIFEST = 78
    TIMEOUT = 124
    INTERRUPTED = 130
