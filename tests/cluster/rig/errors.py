"""The one error of the test cluster: a sentence for a person, and the exit status that goes with it."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """Exit statuses of the command line, from sysexits.h where it has a fitting one."""

    FAILURE = 1
    UNAVAILABLE = 69  # this machine cannot run the cluster: not root, not Debian, no mirror
    TEMPORARY = 75  # another cluster is in the way; later it may work


class RigError(Exception):
    """Something that no code can mend. The text says what was tried, what came back and what the reader can do."""

    def __init__(self, text: str, status: Exit = Exit.FAILURE) -> None:
        super().__init__(text)
        self.status = status
