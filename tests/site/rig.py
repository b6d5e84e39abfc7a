"""A host of its own for the spawner: accounts, groups, PAM and directories in a mount namespace, with real uids."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from ffdl_batch.domain.toml_text import toml_text

ROOT = Path(__file__).parents[2]
HUB, ADA, BOB, EXPIRED, OUTSIDER, GONE = 7000, 7001, 7002, 7003, 7004, 7005
"""Uids. OUTSIDER is in no allowed group; GONE has no account."""
USERS, OTHERS = 7100, 7101
"""Groups."""
PASSWD = f"""\
root:x:0:0::/root:/bin/sh
ffdl:x:{HUB}:{HUB}::/nonexistent:/usr/sbin/nologin
ada:x:{ADA}:{USERS}::/home/ada:/bin/bash
bob:x:{BOB}:{USERS}::/home/bob:/bin/bash
eve:x:{EXPIRED}:{USERS}::/home/eve:/bin/bash
oskar:x:{OUTSIDER}:{OTHERS}::/home/oskar:/bin/bash
kid:x:500:{USERS}::/home/kid:/bin/bash
mapped:x:100005:{USERS}::/home/mapped:/bin/bash
"""
GROUP = f"root:x:0:\nffdl:x:{HUB}:\nusers:x:{USERS}:\nothers:x:{OTHERS}:\n"
SHADOW = "".join(
    f"{line.partition(':')[0]}:*:19000:0:99999:7::{10 if line.startswith('eve') else ''}:\n"
    for line in PASSWD.splitlines()
)
PAM = "account required pam_unix.so\nsession required pam_limits.so conf=/etc/security/ffdl-limits.conf\n"
LIMITS = "* hard nofile 4000\n* soft nofile 3000\n"
ASK = """
import socket, struct, sys
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 60, 0))
    s.connect(sys.argv[1])
    s.send(bytes.fromhex(sys.argv[2]))
    print(s.recv(600).decode(), end="")
"""


class Host:
    """Files of the host below `place`, and the mount namespace of a process that sees them as its own."""

    def __init__(self, place: Path) -> None:
        self.place = place
        place.chmod(0o755)
        etc = place / "etc"
        etc.mkdir()
        for name, text in (("passwd", PASSWD), ("group", GROUP), ("shadow", SHADOW), ("subuid", "ada:100000:65536\n")):
            (etc / name).write_text(text)
        (etc / "shadow").chmod(0o600)
        for name, text in (("pam.d/ffdl-user", PAM), ("security/ffdl-limits.conf", LIMITS)):
            (etc / name).parent.mkdir()
            (etc / name).write_text(text)
        for name in ("run", "state", "home"):
            (place / name).mkdir()
        self.configure()
        self._init = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *self._boot()], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
        )
        assert self._init.stdout is not None and self._init.stdout.read(1) == b"\n"

    def _boot(self) -> list[str]:
        """The command that creates the host, prints an empty line, and stays."""
        script = self._mounts() + "echo; exec sleep 100000"
        return ["unshare", "--mount", "--propagation", "private", "sh", "-ec", script]

    def _enter(self) -> list[str]:
        """The command that runs another on this host."""
        return ["nsenter", f"--mount=/proc/{self._init.pid}/ns/mnt"]

    def _mounts(self) -> str:
        """The script that mounts. The interpreter and the project may be below a directory that only root enters."""
        lines = []
        for place in {closed for path in (ROOT, Path(sys.base_prefix), Path(sys.prefix)) for closed in _closed(path)}:
            copy = self.place / f"open{str(place).replace('/', '-')}"
            copy.mkdir(mode=0o755)
            for entry in place.iterdir():
                if any(path.is_relative_to(entry) for path in (ROOT, Path(sys.base_prefix), Path(sys.prefix))):
                    (copy / entry.name).mkdir()
                    lines.append(f"mount --rbind {entry} {copy / entry.name}\n")
            lines.append(f"mount --rbind {copy} {place}\n")
        etc = self.place / "etc"
        for name in ("passwd", "group", "shadow"):
            lines.append(f"mount --bind {etc / name} /etc/{name}\n")
        lines.append(f"[ -e /etc/subuid ] || : >/etc/subuid; mount --bind {etc / 'subuid'} /etc/subuid\n")
        for name in ("pam.d", "security"):
            lines.append(f"mount --bind {etc / name} /etc/{name}\n")
        return "".join(lines)

    def configure(self, **changes: object) -> None:
        """Write the site file."""
        values: dict[str, object] = {
            "hub_user": "ffdl",
            "allowed_groups": ["users"],
            "run_dir": str(self.place / "run"),
            "state_dir": str(self.place / "state"),
            "systemd": False,
            "environment": {"SLURM_CONF": "/etc/slurm/slurm.conf"},
            **changes,
        }
        (self.place / "site.toml").write_text(
            "[spawner]\n" + "".join(f"{k} = {toml_text(v)}\n" for k, v in values.items())
        )

    def inside(self, argv: Sequence[str], uid: int = 0) -> list[str]:
        """The command that runs `argv` on this host, as a user."""
        groups = ["--regid", str(HUB if uid == HUB else USERS), "--clear-groups"]
        user = ["setpriv", "--reuid", str(uid), *groups] if uid else []
        return [*self._enter(), *user, *argv]

    def python(self, code: str, *arguments: str, uid: int) -> str:
        """The output of a program of a user."""
        argv = self.inside([sys.executable, "-I", "-c", code, *arguments], uid)
        return subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True, timeout=120, cwd="/").stdout

    def ask(self, uid: int, request: str) -> str:
        """The spawner's answer to a user."""
        return self.python(ASK, str(self.place / "run/spawner.sock"), request.encode().hex(), uid=uid).rstrip("\n")

    def close(self) -> None:
        """End the namespace's first process."""
        self._init.kill()
        self._init.wait()
        assert self._init.stdout is not None
        self._init.stdout.close()


class Spawner:
    """A spawner that runs on a host."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.log = host.place / "spawner.log"
        self.log.unlink(missing_ok=True)
        for starts in host.place.glob("run/users/*/starts"):
            starts.unlink()
        with self.log.open("ab") as output:
            argv = host.inside(self.argv(host))
            self.process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stderr=output, cwd="/")
        deadline = time.monotonic() + 60
        while "serving" not in self.log.read_text():
            assert self.process.poll() is None and time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.02)

    @staticmethod
    def argv(host: Host) -> list[str]:
        """The command."""
        return [sys.executable, "-I", "-m", "ffdl_batch.site.spawner", str(host.place / "site.toml")]

    def daemons(self) -> list[int]:
        """Process ids of all daemons that it has started, in order."""
        return [int(number) for number in re.findall("started process ([0-9]+) ", self.log.read_text())]

    def close(self) -> None:
        """End it and the daemons."""
        for pid in self.daemons():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.kill()
        self.process.wait()


def until(condition: Callable[[], object], what: str) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def _closed(path: Path) -> list[Path]:
    """The directories above a path that users other than root cannot enter."""
    return [parent for parent in path.parents if not parent.stat().st_mode & 0o001]
