"""The format number of the files by which platform and controllers talk. Runs on Python 3.9.

Jobs outlive upgrades: a daemon meets controllers of releases before its own, and a run's controllers may be newer than
those of the run before. So ``launch.json``, ``control.json``, ``final.json``, ``owner.json``, ``stop.json``,
``paid.json``, and each line of an event file have a number, `format`:

* A file or line without one is of format 1.
* A key that readers of the older format may ignore changes no number; they do, and take the default of one that is
  missing. The number rises when they would go wrong.
* A reader takes every format up to its own. About a newer one it says what to do, and concludes nothing from it.
* Who writes for controllers that are at work writes the format of their launch file; so do these controllers.
"""

from __future__ import annotations

import errno
from typing import Any, Mapping

FORMAT = 1
LAUNCH_FORMAT = 2
"""The newest of ``launch.json``: 2 where a table of seats or another thing stands in it that readers of format 1 would
pass over, or not understand. Only such files have it."""


class NewerFormat(OSError):
    """For this release the file cannot be read. An OSError, because nothing can be concluded from it, as from a file
    that cannot be read for another reason: it is looked at again."""

    def __init__(self, what: str, found: object, writer: str = "", newest: int = FORMAT) -> None:
        by = f"by {writer} " if writer else ""
        super().__init__(
            errno.ENOTSUP,
            f"{what} was written {by}in format {found}, and this release reads format {newest} and older; nothing is "
            "concluded from it: use a release at least as new as its writer",
        )

    def __str__(self) -> str:
        """The sentence alone."""
        return str(self.strerror)


def require_known(body: Mapping[str, Any], what: str, writer: str = "", newest: int = FORMAT) -> None:
    """Raise :class:`NewerFormat` where `body` is of a newer format than `newest`; `what` is its name, `writer` the
    release."""
    found = body.get("format", 1)
    if isinstance(found, int) and found > newest:
        raise NewerFormat(what, found, writer, newest)
