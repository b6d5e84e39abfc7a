"""Define the format number of the files that daemon and controllers exchange. Runs on Python 3.9.

A job can outlive an upgrade: a daemon reads files of older controllers, and a new run of an attempt may have newer
controllers than the run before. So ``launch.json``, ``control.json``, ``final.json``, ``owner.json``, ``stop.json``,
``uploaded.json``, and each line of an event file have a number, `format`:

* A file or line without one has format 1.
* A new key that older readers can ignore does not change the number. Readers ignore unknown keys, and take the default
  of a missing one. The number is raised if older readers would go wrong.
* A reader accepts every format up to its own. It refuses a newer one, says what to do, and concludes nothing from it.
"""

from __future__ import annotations

import errno
from typing import Any, Mapping

FORMAT = 1


class NewerFormat(OSError):
    """The file has a newer format than this release reads.

    It is an OSError because callers handle it like a file that cannot be read for another reason: they try again."""

    def __init__(self, what: str, found: object, writer: str = "") -> None:
        by = f"by {writer} " if writer else ""
        super().__init__(
            errno.ENOTSUP,
            f"{what} was written {by}in format {found}, and this release reads format {FORMAT} and older; nothing is "
            "concluded from it: use a release at least as new as its writer",
        )

    def __str__(self) -> str:
        """The sentence alone."""
        return str(self.strerror)


def require_known(body: Mapping[str, Any], what: str, writer: str = "") -> None:
    """Raise :class:`NewerFormat` if `body`, the content of the file `what`, has a newer format than :data:`FORMAT`.

    `writer` is the release that wrote it.
    """
    found = body.get("format", 1)
    if isinstance(found, int) and found > FORMAT:
        raise NewerFormat(what, found, writer)
