"""Read about processes of this machine in /proc (proc(5)), signal and end them."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from typing import Collection, Dict, List, Mapping, Optional, Union

from ffdl_batch.host.fast_dataclass import dataclass

NAME = "ffdl-controller"
"""The name of controllers in process lists; the kernel keeps 15 bytes."""
_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_STAT_BYTES = 4096
"""/proc/PID/stat is a line of 52 numbers and a short name."""
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # <linux/prctl.h>


def boot_id() -> str:
    """Return the id that Linux draws at each boot (proc(5)); "" on another system."""
    try:
        with open(_BOOT_ID, encoding="ascii") as file:
            return file.read().strip()
    except FileNotFoundError:
        return ""


@dataclass(frozen=True)
class Process:
    """A process, from /proc/PID/stat."""

    pid: int
    state: str
    parent: int
    group: int
    session: int
    start_ticks: int
    """When it started, in clock ticks since the boot."""

    @property
    def is_alive(self) -> bool:
        """Return whether it has not ended. A zombie has ended."""
        return self.state not in "ZX"


def name_process() -> None:
    """Name this process :data:`NAME`, so that a learner that kills all processes called ``python3`` spares it."""
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
    """Return the process, which may be a zombie; None if it does not exist."""
    try:
        # Without a file object, which takes as long as the reading: callers look at all processes of the machine.
        descriptor = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
        try:
            text = os.read(descriptor, _STAT_BYTES)
        finally:
            os.close(descriptor)
    except (FileNotFoundError, ProcessLookupError):
        return None
    rest = text[text.rindex(b")") + 2 :].split()
    return Process(pid, rest[0].decode(), int(rest[1]), int(rest[2]), int(rest[3]), int(rest[19]))


def read_living(pid: int) -> Optional[Process]:
    """Return the process; None if it does not exist or has ended."""
    process = read_process(pid)
    return process if process is not None and process.is_alive else None


def all_processes() -> Dict[int, Process]:
    """Return every living process by its id."""
    found = (read_living(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return {process.pid: process for process in found if process is not None}


def descendants(root: int, table: Mapping[int, Process]) -> List[int]:
    """Return `root` and all its descendants, parents first."""
    children: Dict[int, List[int]] = {}
    for process in table.values():
        children.setdefault(process.parent, []).append(process.pid)
    found = [root] if root in table else []
    for pid in found:
        found.extend(sorted(children.get(pid, ())))
    return found


def session_members(session: int, table: Mapping[int, Process]) -> List[int]:
    """Return the processes of a session and their descendants in other sessions, parents first.

    If they are killed in this order, no process sees the end of its child. A shell that does might write to a file
    system that hangs, and then cannot be killed.
    """
    members = {p.pid for p in table.values() if p.session == session}
    for pid in list(members):
        members.update(descendants(pid, table))
    tops = [pid for pid in sorted(members) if table[pid].parent not in members]
    return [pid for top in tops for pid in descendants(top, table)]


def status_field(pid: int, name: str) -> str:
    """Return a field of /proc/PID/status; "" if the process does not exist."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith(name + ":"):
                    return line.split(":", 1)[1].strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return ""


def catches(pid: int, number: int) -> bool:
    """Return whether the process has a handler for the signal (SigCgt)."""
    mask = status_field(pid, "SigCgt")
    return bool(mask) and bool(int(mask, 16) >> (number - 1) & 1)


def send(pid: int, number: int) -> bool:
    """Send a signal. Return False if the process does not exist."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def send_group(group: int, number: int) -> bool:
    """Send a signal to a process group. Return False if it does not exist."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    return True


def adopt_orphans() -> None:
    """Become the parent of descendants that lose theirs (prctl(2), PR_SET_CHILD_SUBREAPER, Linux 3.4)."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def end_with_parent(number: int) -> None:
    """Have the kernel send this process a signal when its parent ends (prctl(2), PR_SET_PDEATHSIG)."""
    _prctl(_PR_SET_PDEATHSIG, number)


def _prctl(option: int, value: int) -> None:
    import ctypes  # most programs that import this module do not need it

    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def end_child(process: "subprocess.Popen[bytes]", patience_s: float) -> None:
    """Send TERM to a child that has not ended, and KILL after `patience_s` seconds. Wait for its end."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(patience_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def end_strays(spared: Collection[int] = ()) -> None:
    """Kill the remaining descendants of this process except `spared`. They left their learner's session, or it would
    have ended them."""
    end = time.monotonic() + 5.0  # a process that is stuck in the kernel must not delay the job's final record
    while time.monotonic() < end:
        strays = [p for p in descendants(os.getpid(), all_processes()) if p != os.getpid() and p not in spared]
        if not sum(send(pid, signal.SIGKILL) for pid in strays):
            return
        time.sleep(0.01)


def identity(pid: int) -> Dict[str, Union[bool, int, float, str, None]]:
    """Return what identifies a process for ever: host, boot, process id and start time."""
    process = read_process(pid)
    return {
        "host": os.uname().nodename,
        "pid": pid,
        "boot_id": boot_id(),
        "start_ticks": process.start_ticks if process else 0,
    }


def lives_here(fields: Mapping[str, object]) -> bool:
    """Return whether the process that :func:`identity` described is alive on this machine."""
    pid = fields.get("pid")
    if not isinstance(pid, int) or fields.get("host") != os.uname().nodename or fields.get("boot_id") != boot_id():
        return False
    process = read_living(pid)
    return process is not None and process.start_ticks == fields.get("start_ticks")
