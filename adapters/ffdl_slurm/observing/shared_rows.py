"""Parse the listing of all users' jobs that the hub of a site shares with the daemons. Pure.

The hub separates the rows by the uid that squeue prints. A daemon parses its rows like those of its own squeue.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from ffdl_slurm.commands import SEPARATOR, SHARED_FIELDS
from ffdl_slurm.observing.parsers import Garbled, JobRecord, parse_queue_row
from ffdl_slurm.output_text import begin

MAX_ROW_CHARS = 16 * 1024
"""The longest column is a list of nodes. Longer rows are left out."""
_UID = re.compile(r"-?[0-9]{1,10}", re.ASCII)
_UIDS = 1 << 32
"""squeue prints uids of 2^31 and above as negative numbers (`_print_job_user_id` in src/squeue/print.c)."""
_TITLES = (("USER", "UID"), "JOBID", "STATE")


def split_by_user(lines: Iterable[str]) -> dict[int, list[str]]:
    """Return the rows of each user, without the uid, from the output of
    :func:`ffdl_slurm.commands.shared_squeue_argv`. Rows that cannot be read are left out, because a daemon asks for a
    missing job itself. Raises Garbled if the output has no header or ends in the middle of a line."""
    found: dict[int, list[str]] = {}
    has_header, first, line = False, "", "\n"
    for line in lines:
        first = first or line
        fields = line.rstrip("\n").split(SEPARATOR)
        if not has_header:
            has_header = _is_header(fields)
        elif len(fields) == len(SHARED_FIELDS) and len(line) <= MAX_ROW_CHARS and _UID.fullmatch(fields[0]):
            found.setdefault(int(fields[0]) % _UIDS, []).append(SEPARATOR.join(fields[1:]))
    if not has_header:
        raise Garbled(f"squeue printed no header but {begin(first)!r}")
    if not line.endswith("\n"):
        raise Garbled("squeue ended in the middle of a line")
    return found


def _is_header(fields: Sequence[str]) -> bool:
    """Return whether the fields are the header: squeue prints USER or UID, depending on the release."""
    user, job, state = _TITLES
    return len(fields) == len(SHARED_FIELDS) and fields[0].endswith(user) and fields[1:3] == [job, state]


def read_shared(rows: Iterable[str]) -> list[JobRecord]:
    """Return the records of a user's rows; their names are empty. Rows that cannot be read are left out."""
    found: list[JobRecord] = []
    for row in rows:
        try:
            found.append(parse_queue_row(row + SEPARATOR))
        except Garbled:
            continue
    return found
