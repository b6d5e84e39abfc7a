"""The script that turns a fresh set of namespaces into a node: mounts, pivot_root, device files, munged.

Pure: it takes paths and returns text. A chroot would not do, because the kernel refuses unprivileged user
namespaces (rootless Apptainer) inside one.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from . import cgroups
from .topology import GPUS, NPUS, NodeSpec, Role

# A number that is set aside for local use and that no driver of the machine serves.
FAKE_MAJOR = 240
_FIRST_NPU = 64
LIBEXEC = "/usr/local/libexec/ffdl-batch"
"""Where the root programs of slurm-configs/ are: FFDL_LIBEXEC of values.env."""
_DEVICES = {
    "null": "1 3",
    "zero": "1 5",
    "full": "1 7",
    "random": "1 8",
    "urandom": "1 9",
    "tty": "5 0",
    "fuse": "10 229",
    "net/tun": "10 200",
}


@dataclass(frozen=True, slots=True)
class Bind:
    """A directory of the host that a node sees at another place."""

    source: Path
    target: str
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class NodeLayout:
    """Where a node's parts lie on the host."""

    spec: NodeSpec
    layers: tuple[Path, ...]  # root file system last, what lies over it before
    etc: Path
    private: Path  # this node's own directory: logs, spool, /tmp
    binds: tuple[Bind, ...]
    cluster_id: str
    confined: bool


def private_binds(private: Path, role: Role) -> tuple[Bind, ...]:
    """The directories that a node keeps over a power cut, as a disk would."""
    kept = {"log": "/var/log/slurm", "tmp": "/tmp", "spool": "/var/spool/slurmd"}
    if role is Role.CONTROL:
        kept |= {"slurmctld": "/var/lib/slurmctld", "mysql": "/var/lib/mysql"}
    return tuple(Bind(private / name, target) for name, target in kept.items())


def boot_script(layout: NodeLayout) -> str:
    """The script; it is run by /bin/sh in new mount, uts, ipc and pid namespaces and a prepared network namespace."""
    name = layout.spec.name
    confined = layout.confined and layout.spec.role is Role.COMPUTE
    confinement = cgroups.mounts(layout.cluster_id, name) if confined else []
    sections = (_root(layout), confinement, _devices(layout.spec), _binds(layout), _pivot(name), _files(layout.spec))
    return "set -eu\n" + "\n".join("\n".join(lines) for lines in sections) + "\nexec python3 -I -S /run/rig/init.py\n"


def _root(layout: NodeLayout) -> list[str]:
    lower = shlex.quote(":".join(str(path) for path in layout.layers))
    base = shlex.quote(str(layout.private / "mnt"))
    pid_file = shlex.quote(str(layout.private / "init.pid"))
    return [
        # Before /proc is ours it still shows the host's numbers: so this is our pid as the host sees it.
        f"read pid rest </proc/self/stat; echo $pid >{pid_file}",
        "mount --make-rprivate /",
        # The writable part lives in memory and is gone with the node.
        f"mount -t tmpfs -o size=2g rig {base}; cd {base}; mkdir upper work root",
        f"mount -t overlay -o lowerdir={lower},upperdir=upper,workdir=work rig root; cd root",
        "mount -t proc proc proc; mount -t sysfs sysfs sys; mount --rbind /sys/fs/cgroup sys/fs/cgroup",
        "mount -t tmpfs -o mode=755 run run; mkdir -m 700 run/rig; mkdir -p run/rig/proc run/munge run/slurm run/sshd",
        "mkdir -p run/lock run/netns run/user",
    ]


def _devices(spec: NodeSpec) -> list[str]:
    lines = ["mount -t tmpfs -o mode=755 dev dev; mkdir dev/net dev/pts dev/shm dev/mqueue"]
    lines += [f"mknod -m 666 dev/{name} c {number}" for name, number in _DEVICES.items()]
    if spec.role is Role.COMPUTE:
        lines += [f"mknod -m 666 dev/nvidia{index} c {FAKE_MAJOR} {index}" for index in range(GPUS)]
    if "npu" in spec.gres:
        lines += [f"mknod -m 666 dev/npu{index} c {FAKE_MAJOR} {_FIRST_NPU + index}" for index in range(NPUS)]
    lines += [
        "mount -t devpts -o newinstance,ptmxmode=0666,mode=620,gid=5 devpts dev/pts; ln -s pts/ptmx dev/ptmx",
        "mount -t tmpfs -o mode=1777 shm dev/shm; mount -t mqueue mqueue dev/mqueue; ln -s /proc/self/fd dev/fd",
        "for n in 0:stdin 1:stdout 2:stderr; do ln -s /proc/self/fd/${n%:*} dev/${n#*:}; done",
    ]
    return lines


def _binds(layout: NodeLayout) -> list[str]:
    all_binds = (
        *layout.binds,
        Bind(layout.etc / "slurm", "/etc/slurm"),
        Bind(layout.etc / "slurm/libexec", LIBEXEC),
        *private_binds(layout.private, layout.spec.role),
    )
    lines = []
    for bind in all_binds:
        inside = shlex.quote(bind.target.lstrip("/"))
        option = "-o ro " if bind.read_only else ""
        lines.append(f"mkdir -p {inside}; mount --bind {option}{shlex.quote(str(bind.source))} {inside}")
    etc, name = shlex.quote(str(layout.etc)), layout.spec.name
    lines += [
        f"cp {etc}/hosts etc/hosts; cp {etc}/ssh_known_hosts {etc}/sshd_config etc/ssh/",
        f"cp {etc}/munge.key run/munge/key; cp {shlex.quote(str(layout.private / 'init.py'))} run/rig/init.py",
        f"cp {shlex.quote(str(layout.private / 'boot_id'))} run/rig/boot_id",
    ]
    if layout.spec.role is not Role.COMPUTE:
        lines.append(f"install -m 600 {etc}/ssh_host_ed25519_key.{name} etc/ssh/ssh_host_ed25519_key")
    return lines


def _pivot(name: str) -> list[str]:
    return [
        f"hostname {name}",
        "mkdir -p .old; pivot_root . .old; umount -l /.old; rmdir /.old; ip link set lo up",
        # Every node has its own boot id, as real ones have: locks that name one must see a reboot. A covered /proc
        # stops rootless containers from mounting theirs, unless an uncovered one exists: hence the second.
        "mount -t proc proc /run/rig/proc",
        "mount --bind /run/rig/boot_id /proc/sys/kernel/random/boot_id",
    ]


def _files(spec: NodeSpec) -> list[str]:
    # What a site's installation does on a compute node; a node without Apptainer has no such directory.
    network = [
        f"[ ! -d /etc/apptainer ] || {LIBEXEC}/check --apptainer-conf >>/etc/apptainer/apptainer.conf",
        f"{LIBEXEC}/boot || :",  # a node without networks of jobs is still a node
    ]
    return [
        f"echo {spec.name} >/etc/hostname; tr -d - </run/rig/boot_id >/etc/machine-id; : >/etc/resolv.conf",
        # No way out of the fabric: asking a resolver would only make each look-up wait.
        "for d in hosts passwd group shadow services protocols; do echo $d: files; done >/etc/nsswitch.conf",
        "chown -R munge:munge /run/munge; chmod 755 /run/munge; chmod 400 /run/munge/key",
        "install -d -o munge -g munge -m 700 /run/munge/priv; chown slurm:slurm /run/slurm",
        "chown slurm:slurm /var/log/slurm /var/lib/slurmctld; chmod 1777 /tmp",
        "setpriv --reuid munge --regid munge --clear-groups munged --key-file=/run/munge/key"
        " --socket=/run/munge/munge.socket.2 --pid-file=/run/munge/munged.pid"
        " --log-file=/run/munge/priv/munged.log --seed-file=/run/munge/priv/seed",
        *(network if spec.role is Role.COMPUTE else []),
        ": >/run/rig/ready",
    ]
