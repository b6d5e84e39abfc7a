"""Mounts of ours in this node's table (proc(5), mountinfo), and how a user ends them.

Nothing here looks into a mount: a store that does not answer would keep it waiting.
"""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from typing import Collection, List

from ffdl_batch.domain.data.mounts import MountOwner, read_source
from ffdl_batch.host.processes import read_process

FUSERMOUNT = ("fusermount3", "fusermount")
UNMOUNT_S = 10.0
TABLE = "/proc/self/mountinfo"
_ESCAPE = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True)
class Mounted:
    """One line of the table. `user` is whose it is, as the kernel says."""

    point: str
    owner: MountOwner
    user: int


def own_mounts() -> List[Mounted]:
    """Those that programs of ours made for this user, the last one first: so they come off each other."""
    with open(TABLE, encoding="utf-8", errors="surrogateescape") as file:
        found = [_read(line.rstrip("\n")) for line in file]
    return [one for one in reversed(found) if one is not None and one.user == os.getuid()]


def _read(line: str) -> "Mounted | None":
    place, _, rest = line.partition(" - ")
    fields, words = place.split(" "), rest.split(" ")
    if len(fields) < 5 or len(words) < 3 or not words[0].startswith("fuse"):
        return None
    owner = read_source(words[1])
    users = [option[len("user_id=") :] for option in words[2].split(",") if option.startswith("user_id=")]
    if owner is None or not users:
        return None
    point = _ESCAPE.sub(lambda match: chr(int(match[1], 8)), fields[4])
    return Mounted(point, owner, int(users[0]))


def unmount(point: str) -> str:
    """Take the mount away, from new look-ups at least: who has something open in it keeps that. What went wrong, "" =
    nothing."""
    said = "neither fusermount3 nor fusermount is on this node"
    for program in FUSERMOUNT:
        try:
            done = subprocess.run(
                [program, "-u", "-z", "--", point],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=UNMOUNT_S,
                check=False,
            )
        except FileNotFoundError:
            continue
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"{program} does not unmount {point}: {error}"
        text = done.stdout.decode("utf-8", "replace").strip()
        return "" if done.returncode == 0 else f"{program} does not unmount {point}: {text}"
    return said


def clear_dead(holders: Collection[int] = ()) -> List[str]:
    """Take away this user's mounts whose holder lives no more, of whatever job: who looks into one is told that its
    transport endpoint is not connected. `holders`: only theirs. What went wrong with each."""
    dead = [one for one in own_mounts() if not _lives(one.owner) and (not holders or one.owner.pid in holders)]
    return [said for said in (unmount(one.point) for one in dead) if said]


def _lives(owner: MountOwner) -> bool:
    process = read_process(owner.pid)
    return process is not None and process.state not in "ZX" and process.start_ticks == owner.start_ticks
