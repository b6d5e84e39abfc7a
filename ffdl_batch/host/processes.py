"""What /proc says about processes on this machine (proc(5))."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from dataclasses import dataclass
from typing import Collection, Dict, List, Mapping, Optional, Union

from ffdl_batch.host.boot import boot_id

NAME = "ffdl-controller"
"""The name of controllers in process lists; the kernel keeps 15 bytes."""


@dataclass(frozen=True)
class Process:
    """One line of /proc/PID/stat: parent, process group, session, start time in ticks since boot."""

    pid: int
    state: str
    parent: int
    group: int
    session: int
    start_ticks: int


def name_process() -> None:
    """Give this process :data:`NAME` in place of the interpreter's: a learner that ends all
    processes called ``python3`` ends no controller."""
    with open("/proc/self/comm", "w", encoding="ascii") as file:
        file.write(NAME)


def name_of(pid: int) -> str:
    """Return the name of a process; "" if it is gone."""
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
            return file.read().rstrip("\n")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def read_process(pid: int) -> Optional[Process]:
    """The process, or None where it is gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            text = file.read()
    except (FileNotFoundError, ProcessLookupError):
        return None
    rest = text[text.rindex(")") + 2 :].split()
    return Process(pid, rest[0], int(rest[1]), int(rest[2]), int(rest[3]), int(rest[19]))


def all_processes() -> Dict[int, Process]:
    """Every process that lives (zombies left out)."""
    found = (read_process(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return {p.pid: p for p in found if p is not None and p.state not in "ZX"}


def descendants(root: int, table: Mapping[int, Process]) -> List[int]:
    """`root` and everything below it, parents first."""
    children: Dict[int, List[int]] = {}
    for process in table.values():
        children.setdefault(process.parent, []).append(process.pid)
    found = [root] if root in table else []
    for pid in found:
        found.extend(sorted(children.get(pid, ())))
    return found


def session_members(session: int, table: Mapping[int, Process]) -> List[int]:
    """Processes of a session, and what their descendants made elsewhere; parents before their children.

    Killed in this order, none sees the end of its child: a shell that did could begin to note it on a file system that
    hangs, and nothing ends who waits there.
    """
    members = {p.pid for p in table.values() if p.session == session}
    for pid in list(members):
        members.update(descendants(pid, table))
    tops = [pid for pid in sorted(members) if table[pid].parent not in members]
    return [pid for top in tops for pid in descendants(top, table)]


def status_field(pid: int, name: str) -> str:
    """One field of /proc/PID/status; "" where the process is gone."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith(name + ":"):
                    return line.split(":", 1)[1].strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return ""


def catches(pid: int, number: int) -> bool:
    """Whether the process has a handler for the signal (SigCgt)."""
    mask = status_field(pid, "SigCgt")
    return bool(mask) and bool(int(mask, 16) >> (number - 1) & 1)


def send(pid: int, number: int) -> bool:
    """Send a signal; False where the process is gone already."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def send_group(group: int, number: int) -> bool:
    """Send a signal to a process group; False where it is gone already."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    return True


def adopt_orphans() -> None:
    """Become the parent of whatever descendants lose theirs (prctl(2), PR_SET_CHILD_SUBREAPER, Linux 3.4)."""
    ctypes.CDLL(None, use_errno=True).prctl(36, 1, 0, 0, 0)


def end_strays(spared: Collection[int] = ()) -> None:
    """Kill the descendants of this process that are left, but for those `spared`, which are ours: they left their
    learner's session to live on."""
    end = time.monotonic() + 5.0  # a process stuck in the kernel must not hold up the job's last words
    while time.monotonic() < end:
        strays = [p for p in descendants(os.getpid(), all_processes()) if p != os.getpid() and p not in spared]
        if not sum(send(pid, signal.SIGKILL) for pid in strays):
            return
        time.sleep(0.01)


def identity(pid: int) -> Dict[str, Union[bool, int, float, str, None]]:
    """What names a process for ever: host, boot, pid and start time."""
    process = read_process(pid)
    return {
        "host": os.uname().nodename,
        "pid": pid,
        "boot_id": boot_id(),
        "start_ticks": process.start_ticks if process else 0,
    }


def lives_here(fields: Mapping[str, object]) -> bool:
    """Whether the process that :func:`identity` described still lives on this machine."""
    pid = fields.get("pid")
    if not isinstance(pid, int) or fields.get("host") != os.uname().nodename or fields.get("boot_id") != boot_id():
        return False
    process = read_process(pid)
    return process is not None and process.state not in "ZX" and process.start_ticks == fields.get("start_ticks")
