"""Takes over the jobs of a user's personal daemon when the user's site daemon starts for the first time.

The personal daemon is stopped, and its database is copied. Its job directories stay where they are, because the
controllers of running jobs write there. A mark in the personal state directory prevents personal daemons from using the
old database. It is written first, so that the next start completes a start that was killed.
"""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

from ffdl_batch.attempt.file_writer import write_text
from ffdl_batch.client.connection.daemon_process import find_holder, stop_daemon
from ffdl_batch.client.errors import DaemonUnreachable
from ffdl_batch.config.daemon_location import Holder, PlaceRefused, this_machine
from ffdl_batch.config.load import TAKEN_OVER
from ffdl_batch.config.settings import database_file
from ffdl_batch.services.daemon_lock import AlreadyServed, HeldElsewhere, acquire, own_record
from ffdl_batch.store import StoreError
from ffdl_batch.store.sqlite_files import copy_database


def take_over_personal_jobs(state_dir: Path, personal: Path) -> bool:
    """Copy the database of the state directory `personal` into `state_dir`, which has none.

    Return whether that was done. It is not done if there is no personal database, or if a personal daemon may run on
    another host, which keeps its jobs. Raises PlaceRefused if the personal daemon does not end, or the copy fails.
    """
    own, theirs, mark = database_file(str(state_dir)), database_file(str(personal)), personal / TAKEN_OVER
    machine = this_machine()
    try:
        if not theirs.is_file():
            return False
    except PermissionError:  # a home directory that this daemon cannot enter
        return False
    try:
        found = find_holder(personal, machine)
        if found is not None and found[1] is Holder.ELSEWHERE:
            return False
        write_text(mark, f"{own}\n")
        stop_daemon(personal)
        hold = acquire(personal, own_record(machine), machine)
        try:
            with contextlib.closing(sqlite3.connect(theirs, isolation_level=None)) as source:
                source.execute("BEGIN").close()
                source.execute("SELECT count(*) FROM sqlite_schema").close()
                state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
                copy_database(source, own)
        finally:
            hold.release()
    except (DaemonUnreachable, PlaceRefused, HeldElsewhere, AlreadyServed, StoreError, OSError, sqlite3.Error) as error:
        why = f"the jobs of your personal daemon in {personal} cannot be taken over: {error}"
        raise PlaceRefused(why, "check the database with `ffdl-admin db check`; then try again") from error
    return True
