"""Reads who a user is. A container may run with a user id that is in no password database."""

from __future__ import annotations

import os
import pwd
from typing import Mapping


def user_name(uid: int) -> str:
    """Return the name of a user, or the number of one that the password database does not have."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def home_of_caller(environ: Mapping[str, str]) -> str:
    """Return the home directory of the caller: HOME, else from the password database (cron sets no HOME for some
    shells). Raises FileNotFoundError, with a cure in its text, if neither has one."""
    try:
        return environ.get("HOME") or pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        raise FileNotFoundError(
            f"HOME is not set, and user {os.getuid()} is not in the password database; set HOME"
        ) from None
