"""Start a process that has only the loopback network, on hosts without a container runtime.

It gets new user and network namespaces (user_namespaces(7), Linux 3.8+, if the site allows them to users) with the same
uid and gid, and the loopback device is up. All capabilities are dropped and cannot be regained. Then it becomes the
learner's program.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import socket
import struct
import sys

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000  # <linux/sched.h>
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 0x1  # <linux/sockios.h>, <net/if.h>
PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 24, 38, 47, 4  # <linux/prctl.h>
CAPABILITY_VERSION_3 = 0x20080522  # <linux/capability.h>
LAST_CAPABILITY = 63
NOT_ISOLATED = 125
"""Exit code if the namespaces cannot be created. The learner's program was not started."""


def main(arguments: list[str]) -> int:
    """Become the command after ``--`` inside the namespaces. Return only if that fails."""
    argv = arguments[1:]
    try:
        enter()
    except OSError as error:
        sys.stderr.write(f"ffdl-controller: no network namespace for the learner: {error}; use network: host\n")
        return NOT_ISOLATED
    try:
        os.execvp(argv[0], argv)  # noqa: S606 - the argv of the launch file, no shell wanted
    except OSError as error:
        sys.stderr.write(f"ffdl-controller: cannot start {argv[0]!r}: {error}\n")
        return 127


def enter() -> None:
    """Move this process into namespaces of its own. Raises OSError with the step that failed."""
    libc = ctypes.CDLL(None, use_errno=True)
    uid, gid = os.geteuid(), os.getegid()
    _check(libc.unshare(CLONE_NEWUSER | CLONE_NEWNET), "unshare(CLONE_NEWUSER | CLONE_NEWNET)")
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(text)
    _raise_loopback()
    _drop_capabilities(libc)


def _raise_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = struct.pack("16sH14x", b"lo", 0)
        flags = struct.unpack("16sH14x", fcntl.ioctl(probe, SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(probe, SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", flags | IFF_UP))


def _drop_capabilities(libc: ctypes.CDLL) -> None:
    """Empty the ambient, bounding, permitted, effective and inheritable sets (capabilities(7))."""
    libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    for number in range(LAST_CAPABILITY + 1):
        libc.prctl(PR_CAPBSET_DROP, number, 0, 0, 0)  # EINVAL beyond the kernel's last one
    header = struct.pack("Ii", CAPABILITY_VERSION_3, 0)
    _check(libc.capset(header, struct.pack("6I", 0, 0, 0, 0, 0, 0)), "capset")
    _check(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl(PR_SET_NO_NEW_PRIVS)")


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def probe() -> str:
    """Return why this kernel does not let users isolate a learner; "" if it does. A child process tries it."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read_end)
        try:
            enter()
        except OSError as error:
            os.write(write_end, str(error).encode("utf-8", "replace"))
        finally:
            os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as answer:
        reason = answer.read().decode("utf-8", "replace")
    status = os.waitpid(pid, 0)[1]
    if os.WIFSIGNALED(status):
        return f"the trial process was killed by {signal.Signals(os.WTERMSIG(status)).name}"
    return reason
