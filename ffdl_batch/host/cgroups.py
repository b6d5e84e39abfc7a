"""Find the control groups of this process, and read numbers from their files (cgroups(7), versions 1 and 2)."""

from __future__ import annotations

import os
from typing import Dict, Optional, Tuple


def group_paths(proc: str) -> Tuple[Dict[str, str], Optional[str]]:
    """Return the path of this process's group for the controllers of each version 1 hierarchy, and in version 2."""
    v1: Dict[str, str] = {}
    v2 = None
    try:
        with open(os.path.join(proc, "self/cgroup"), encoding="utf-8", errors="replace") as file:
            for line in file:
                number, names, path = line.rstrip("\n").split(":", 2)
                if number == "0" and not names:
                    v2 = path
                elif names:
                    v1[names] = path
    except (OSError, ValueError):  # a kernel without control groups, or with another format
        return {}, None
    return v1, v2


def read_number(path: str) -> Optional[int]:
    """Return the number that is all of the file; None if the file does not exist or holds a word ("max")."""
    try:
        with open(path, encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        return None


def read_field(path: str, name: str) -> Optional[int]:
    """Return the number after `name` in a file of lines; None if the file or the line does not exist."""
    try:
        with open(path, encoding="ascii") as file:
            for line in file:
                key, _, value = line.partition(" ")
                if key == name:
                    return int(value)
    except (OSError, ValueError):
        return None
    return None
