"""A host that systemd boots, with dbus, logind and journald: process 1 of a namespace, in cgroups of its own."""

from __future__ import annotations

import pwd
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from uuid import uuid4

from tests.site.rig import LIMIT_S, PASSWD, Host, until

UNITS = Path("/usr/lib/systemd/system")
BOOTED = (
    *("dbus.service", "dbus.socket", "systemd-logind.service", "systemd-journald.service", "systemd-journald.socket"),
    *("systemd-journald-dev-log.socket", "user.slice", "sysinit.target", "basic.target", "sockets.target"),
    *("slices.target", "local-fs.target", "multi-user.target", "shutdown.target"),
)
"""Units of this machine's systemd that the host has. It has no others."""
DEFAULT = """\
[Unit]
Requires=basic.target
Wants=dbus.socket systemd-logind.service systemd-journald.socket systemd-journald-dev-log.socket
"""
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
NAMESPACES = (("mount", "mnt"), ("pid", "pid"), ("net", "net"))
"""Those of the host's process 1 that commands enter."""
CGROUPS = Path("/sys/fs/cgroup")
ENTER = """\
mkdir {0}
for file in cpuset.cpus cpuset.mems; do [ ! -e {0}/$file ] || cat {0}/../$file >{0}/$file; done
echo $$ >{0}/cgroup.procs
"""


class SystemdHost(Host):
    """A host with systemd. What it writes below /etc, /run, /var and /dev stays in its namespaces."""

    def __init__(self, place: Path, files: Path) -> None:
        """Boot the host. `files` is copied to its /etc."""
        self.files = files
        super().__init__(place)
        children = Path(f"/proc/{self._init.pid}/task/{self._init.pid}/children")
        self.first = int(children.read_text())
        """Process id of its process 1."""
        try:
            until(lambda: self.run("systemctl", "is-active", "default.target", check=False) == "active", "the boot")
        except BaseException:
            self.close()
            raise

    def _boot(self) -> list[str]:
        self.cgroups = [one / self.place.name for one in hierarchies()]
        (self.place / "units").mkdir()
        for name in BOOTED:
            shutil.copy(UNITS / name, self.place / "units" / name)
        (self.place / "units/default.target").write_text(DEFAULT)
        bus = pwd.getpwnam("messagebus")
        (self.place / "etc/passwd").write_text(f"{PASSWD}messagebus:x:{bus.pw_uid}:{bus.pw_gid}::/:/usr/sbin/nologin\n")
        script = self.place / "boot.sh"
        script.write_text(self._script())
        enter = "".join(ENTER.format(one) for one in self.cgroups)
        unshare = "unshare --pid --fork --kill-child=KILL --mount --propagation private --cgroup --ipc --uts --net"
        return ["sh", "-ec", f"{enter}exec {unshare} sh -e {script}"]

    def _script(self) -> str:
        """What process 1 does before it becomes systemd."""
        lines = ["mount -t proc proc /proc", "mount --bind /proc/sys /proc/sys", "mount -o remount,ro,bind /proc/sys"]
        lines.append("mount -t tmpfs -o mode=755 tmpfs /sys/fs/cgroup")
        for one in hierarchies():
            if one == CGROUPS:  # version 2 alone
                lines[-1] = f"mount -t cgroup2 cgroup2 {one}"
            elif one.name == "unified":
                lines.append(f"mkdir {one}; mount -t cgroup2 cgroup2 {one}")
            else:
                option = "none,name=systemd" if one.name == "systemd" else one.name
                lines.append(f"mkdir {one}; mount -t cgroup -o {option} cgroup {one}")
        over, dev = self.place / "over", self.place / "dev"
        lines += [f"mkdir {over} {dev}", f"mount -t tmpfs tmpfs {over}", f"mkdir {over}/upper {over}/work"]
        lines.append(f"mount -t overlay -o lowerdir=/etc,upperdir={over}/upper,workdir={over}/work overlay /etc")
        lines += ["rm -rf /etc/systemd", f"cp -r {self.files}/. /etc/", f"echo {uuid4().hex} >/etc/machine-id"]
        lines.append(self._mounts().rstrip())
        lines += [f"mount --bind {self.place / 'units'} {UNITS}", "mount -t tmpfs -o mode=755 tmpfs /run"]
        lines += ["mount -t tmpfs -o mode=755 tmpfs /var", "mkdir /var/lib /var/log /var/tmp", "ln -s /run /var/run"]
        lines.append(f"mount -t tmpfs -o mode=755 tmpfs {dev}")
        lines += [f": >{dev}/{name}; mount --bind /dev/{name} {dev}/{name}" for name in DEVICES]
        lines += [f"mkdir {dev}/shm {dev}/pts", f"mount -t devpts -o newinstance,ptmxmode=666 devpts {dev}/pts"]
        lines += [
            f"ln -s /proc/self/fd {dev}/fd; ln -s pts/ptmx {dev}/ptmx",
            f"mount --rbind {dev} /dev",
            "echo",
            "exec >/dev/null 2>&1",
        ]
        lines.append("exec env -i container=ffdl PATH=/usr/sbin:/usr/bin:/sbin:/bin /usr/lib/systemd/systemd")
        return "\n".join(lines) + "\n"

    def _enter(self) -> list[str]:
        return ["nsenter", *(f"--{long}=/proc/{self.first}/ns/{kind}" for long, kind in NAMESPACES)]

    def run(self, *argv: str, uid: int = 0, check: bool = True) -> str:
        """The output of a command on this host."""
        done = self.finish(argv, uid)
        assert not check or done.returncode == 0, done
        return done.stdout.rstrip("\n")

    def finish(self, argv: Sequence[str], uid: int = 0) -> subprocess.CompletedProcess[str]:
        """Run a command on this host."""
        argv = self.inside(argv, uid)
        pipe = subprocess.PIPE
        return subprocess.run(
            argv, check=False, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True, timeout=LIMIT_S, cwd="/"
        )

    def properties(self, unit: str) -> dict[str, str]:
        """What systemd reports of a unit."""
        return dict(line.split("=", 1) for line in self.run("systemctl", "show", unit).splitlines())

    def close(self) -> None:
        """End all processes of the host, and remove its cgroups."""
        super().close()
        for cgroup in self.cgroups:
            tree = sorted((path for path in cgroup.rglob("*") if path.is_dir()), reverse=True)
            for one in (*tree, cgroup):
                until(lambda one=one: _is_removed(one), f"the end of the processes in {one}")  # type: ignore[misc]


def hierarchies() -> list[Path]:
    """The mounted hierarchies of cgroups, all of them: in one that it does not see, systemd would use the root."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    return [
        Path(place)
        for _, place, kind, *_ in mounts
        if kind in {"cgroup", "cgroup2"} and CGROUPS in Path(place, "x").parents
    ]


def _is_removed(cgroup: Path) -> bool:
    """Remove it, unless a process is still in it."""
    try:
        cgroup.rmdir()
    except OSError:
        return False
    return True
