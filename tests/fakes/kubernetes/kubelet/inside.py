"""What a process does before it is a container's: namespaces, a root of its own, a user. Standard library alone.

The root is an overlay over the machine's own, with what is written to it in memory; of the machine's directories only
those that an image has are seen. All mounts are in a namespace that goes with the last process in it.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
from typing import Any

NEWNS, NEWUTS, NEWPID, NEWNET = 0x00020000, 0x04000000, 0x20000000, 0x40000000
_RDONLY, _NOSUID, _NODEV, _NOEXEC, _REMOUNT, _BIND, _REC, _PRIVATE = 1, 2, 4, 8, 32, 4096, 16384, 1 << 18
_DETACH = 2
_PDEATHSIG, _CAPBSET_DROP, _NO_NEW_PRIVS = 1, 24, 38
_SIGKILL = 9
_LAST_CAPABILITY = 40
_SET_FLAGS, _UP = 0x8914, 1
"""SIOCSIFFLAGS and IFF_UP (<linux/sockios.h>, <linux/if.h>)."""
_OF_AN_IMAGE = {"bin", "boot", "etc", "lib", "lib32", "lib64", "libx32", "opt", "sbin", "usr", "var"}
_MODES = {"tmp": 0o1777, "root": 0o711}
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}[os.uname().machine]
"""The call's number: the C library has no name for it."""

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def unshare(flags: int) -> None:
    _check(_libc.unshare(flags), "unshare")


def enter(path: str, kind: int) -> None:
    """Be in the namespace that a file of /proc names."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _check(_libc.setns(descriptor, kind), f"setns {path}")
    finally:
        os.close(descriptor)


def die_with_parent() -> None:
    _libc.prctl(_PDEATHSIG, _SIGKILL, 0, 0, 0)


def mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    arguments = [source.encode(), target.encode(), kind.encode() or None, ctypes.c_ulong(flags), data.encode() or None]
    _check(_libc.mount(*arguments), f"mount {kind or 'bind'} {source} at {target}")


def cut_off() -> None:
    """Be in a network of one's own that leads nowhere: its loopback device alone is up."""
    unshare(NEWNET)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as device:
        fcntl.ioctl(device, _SET_FLAGS, struct.pack("16sh14x", b"lo", _UP))


def make_root(spec: dict[str, Any]) -> None:
    """Be in a root of one's own, with all mounts of the container."""
    unshare(NEWNS | NEWUTS)
    if spec["net_namespace"]:
        enter(spec["net_namespace"], NEWNET)
    name = spec["hostname"].encode()
    _check(_libc.sethostname(name, len(name)), "sethostname")
    mount("none", "/", flags=_PRIVATE | _REC)
    stage = spec["stage"]
    mount("container", stage, "tmpfs", 0, "mode=755")
    upper, work, root = (f"{stage}/{part}" for part in ("upper", "work", "root"))
    for path in (upper, work, root):
        os.mkdir(path)
    _hide(upper)
    mount("container", root, "overlay", 0, f"lowerdir=/,upperdir={upper},workdir={work}")
    os.mkdir(f"{root}/.old", 0o700)
    _check(_libc.syscall(_PIVOT_ROOT, root.encode(), f"{root}/.old".encode()), "pivot_root")
    os.chdir("/")
    _system()
    for one in spec["mounts"]:
        _bind(one)
    _check(_libc.umount2(b"/.old", _DETACH), "umount")
    os.rmdir("/.old")
    if spec["readonly_root"]:
        mount("none", "/", flags=_REMOUNT | _BIND | _RDONLY)


def _hide(upper: str) -> None:
    """Directories of the machine that no image has are empty."""
    os.umask(0)
    for entry in os.scandir("/"):
        if entry.is_dir(follow_symlinks=False) and entry.name not in _OF_AN_IMAGE:
            path = f"{upper}/{entry.name}"
            os.mkdir(path, _MODES.get(entry.name, 0o755))
            os.setxattr(path, "trusted.overlay.opaque", b"y")
    os.umask(0o022)


def _system() -> None:
    mount("proc", "/proc", "proc", _NOSUID | _NODEV | _NOEXEC)
    mount("/.old/sys", "/sys", flags=_BIND)
    mount("none", "/sys", flags=_REMOUNT | _BIND | _RDONLY | _NOSUID | _NODEV | _NOEXEC)
    mount("dev", "/dev", "tmpfs", _NOSUID, "mode=755")
    for name in _DEVICES:
        os.close(os.open(f"/dev/{name}", os.O_CREAT | os.O_WRONLY, 0o666))
        mount(f"/.old/dev/{name}", f"/dev/{name}", flags=_BIND)
    for name, target in (("fd", "/proc/self/fd"), ("stdin", "/proc/self/fd/0"), ("stdout", "/proc/self/fd/1"),
                         ("stderr", "/proc/self/fd/2"), ("ptmx", "pts/ptmx")):  # fmt: skip
        os.symlink(target, f"/dev/{name}")
    os.mkdir("/dev/pts")
    mount("devpts", "/dev/pts", "devpts", _NOSUID | _NOEXEC, "newinstance,ptmxmode=0666,mode=0620")
    os.mkdir("/dev/shm")
    mount("shm", "/dev/shm", "tmpfs", _NOSUID | _NODEV | _NOEXEC, "mode=1777,size=65536k")


def _bind(one: dict[str, Any]) -> None:
    source, target = "/.old" + one["source"], one["target"]
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    elif not os.path.lexists(target):
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
    mount(source, target, flags=_BIND | _REC)
    if one.get("readonly"):
        mount("none", target, flags=_REMOUNT | _BIND | _RDONLY)


def become(user: dict[str, Any]) -> None:
    """Be the container's user: `uid`, `gid`, `groups`, `drop` (all capabilities), `no_new_privs`."""
    for capability in range(_LAST_CAPABILITY + 1) if user["drop"] else ():
        _libc.prctl(_CAPBSET_DROP, capability, 0, 0, 0)
    os.setgroups(user["groups"])
    os.setresgid(user["gid"], user["gid"], user["gid"])
    os.setresuid(user["uid"], user["uid"], user["uid"])
    if user["no_new_privs"]:
        _libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0)
    die_with_parent()


def look_up(program: str, path: str, root: str = "") -> str:
    """Return the program's file, as a shell finds it. Raises OSError in the words of container runtimes."""
    if "/" in program:
        if not os.path.exists(root + program):
            raise FileNotFoundError(f'exec: "{program}": stat {program}: no such file or directory: unknown')
        if not os.access(root + program, os.X_OK):
            raise PermissionError(f'exec: "{program}": permission denied: unknown')
        return program
    for place in path.split(":"):
        found = os.path.join(place, program)
        if os.path.isfile(root + found) and os.access(root + found, os.X_OK):
            return found
    raise FileNotFoundError(f'exec: "{program}": executable file not found in $PATH: unknown')
