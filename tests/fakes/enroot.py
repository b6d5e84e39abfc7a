"""A program that does what enroot documents of `import`, `create` and `start`, without images.

The root file system of a container has the machine's own programs. Like enroot's it is in a user and a mount namespace,
has the mounts of ``--mount`` in their order, cannot be written to, and becomes the command by exec. Each call is a line
of ``calls`` beside this program's directory of containers. An image whose name has "missing" cannot be imported.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.fakes.kubernetes.kubelet.inside import mount, unshare

NEWUSER, NEWNS = 0x10000000, 0x00020000
BIND, REC, SLAVE, RDONLY, REMOUNT, NOATIME = 4096, 16384, 1 << 19, 1, 32, 1024
KEPT = 2 | 4 | 8 | NOATIME
"""Flags of a mount (nosuid, nodev, noexec, noatime) that a user namespace may not take away."""
MACHINE = ("bin", "dev", "etc", "lib", "lib64", "proc", "sys", "usr")
SPLIT = {"-m": 1, "--mount": 1, "-e": 1, "--env": 1, "--rc": 1, "-o": 1, "-n": 1, "-f": 0}


def install(directory: Path, python: str, root: Path) -> None:
    """Make this module a program named enroot."""
    directory.mkdir(parents=True)
    path = directory / "enroot"
    path.write_text(f'#!/bin/sh\nPYTHONPATH={root} exec {python} -m tests.fakes.enroot "$@"\n')
    path.chmod(0o755)


def main() -> None:
    """Do one subcommand, and exit with its status."""
    place = Path(os.environ["ENROOT_DATA_PATH"])
    with (place.parent.parent / "enroot-calls").open("a") as calls:
        calls.write(" ".join(sys.argv[1:3]) + "\n")
    options, words = parse(sys.argv[2:])
    if sys.argv[1] == "start":
        start(place / words[0], options, words[1:])
    if sys.argv[1] == "import":
        if "missing" in words[0]:
            sys.exit(f"[ERROR] URL https://registry/v2/{words[0]} returned error code: 404 Not Found")
        Path(options["-o"][0]).write_text("image")
        return
    if not Path(words[0]).is_file():
        sys.exit(f"[ERROR] No such file or directory: {words[0]}")
    (place / options["-n"][0]).mkdir()


def parse(argv: list[str]) -> tuple[dict[str, list[str]], list[str]]:
    """Return the options with their values, and the words after them."""
    found: dict[str, list[str]] = {name: [] for name in SPLIT}
    while argv and argv[0] in SPLIT:
        name, argv = argv[0], argv[1:]
        if SPLIT[name]:
            found[name].append(argv.pop(0))
    return found, argv


def start(root: Path, options: dict[str, list[str]], command: list[str]) -> None:
    """Become the command in the container."""
    script = Path(options["--rc"][0]).read_text()
    uid, gid = os.getuid(), os.getgid()
    unshare(NEWUSER | NEWNS)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
    mount("none", "/", flags=REC | SLAVE)
    mount(str(root), str(root), flags=BIND | REC)
    os.chdir(root.parent)
    for name in MACHINE:
        own = Path("/", name)
        if own.is_symlink() and not (root / name).is_symlink():
            (root / name).symlink_to(own.readlink())
        elif own.is_dir() and not own.is_symlink():
            bind(str(own), str(root / name), read_only=False)
    for text in options["-m"]:
        source, target, kind, flags = text.split(":")
        assert kind == "none" and "bind" in flags.split(","), text
        bind(source, f"{root}{target}", read_only="ro" in flags.split(","))
    protect(str(root))
    os.chroot(root)
    os.chdir("/")
    variables = dict(text.split("=", 1) for text in options["-e"])
    env = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/home/nobody", **variables}
    os.execve("/bin/sh", ["sh", "-c", script, "rc", *command], env)


def bind(source: str, target: str, *, read_only: bool) -> None:
    """Mount a directory or a file of the machine, and make its mount point."""
    if Path(source).is_dir():
        Path(target).mkdir(parents=True, exist_ok=True)
    elif not Path(target).exists():
        Path(target).parent.mkdir(parents=True, exist_ok=True)
        Path(target).touch()
    mount(source, target, flags=BIND | REC)
    if read_only:
        protect(target)


def protect(target: str) -> None:
    """Let no process write there."""
    mount("none", target, flags=BIND | REMOUNT | RDONLY | (os.statvfs(target).f_flag & KEPT))


if __name__ == "__main__":
    main()
