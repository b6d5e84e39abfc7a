"""Writes the cluster's /etc: the rendered fragments of slurm-configs/ and the few lines that are this site's own.

The fragments are the ones that real sites start from; only `values.env` beside this file differs. Everything goes
below `<state>/etc`, which the nodes see as /etc/slurm and from which they copy hosts, munge key and SSH keys.
"""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .command import bare_environment, run
from .suites import Suite
from .topology import CLUSTER_NAME, COMPUTE_NODES, CPUS, FEATURES, GPUS, LOGIN_NODES, MEMORY_MIB, NODES

_HERE = Path(__file__).resolve().parent

# Where cgroup v1 is not mounted nothing can be confined; the cluster then still schedules.
_UNCONFINED = {
    "PROCTRACK_TYPE": "proctrack/linuxproc",
    "TASK_PLUGIN": "task/none",
    "JOB_ACCT_GATHER_TYPE": "jobacct_gather/linux",
    "PROLOG_FLAGS": "Alloc",
    "CONSTRAIN_RAM": "no",
    "CONSTRAIN_DEVICES": "no",
}

_SLURM_CONF = """\
# Written by the test cluster. What is not about these machines comes from slurm-configs/.
ClusterName={cluster}
SlurmctldHost=ctl({control_address})
SlurmUser=slurm
AuthType=auth/munge
StateSaveLocation=/var/lib/slurmctld
SlurmctldPidFile=/run/slurm/slurmctld.pid
SlurmctldLogFile=/var/log/slurm/slurmctld.log
SlurmdSpoolDir=/var/spool/slurmd
SlurmdPidFile=/run/slurm/slurmd.pid
SlurmdLogFile=/var/log/slurm/slurmd.log
# The nodes claim {cpus} cores and {memory} MiB whatever the machine has.
SlurmdParameters=config_overrides
MpiDefault=none
MailProg=/bin/true
ReturnToService=2
Include /etc/slurm/slurm.conf.d/ffdl.conf
{of_suite}
{accounting}
{nodes}
PartitionName=main Nodes={names} Default=YES State=UP PriorityTier=1 GraceTime=10 MaxTime=UNLIMITED
PartitionName=urgent Nodes={names} State=UP PriorityTier=10 PreemptMode=OFF MaxTime=UNLIMITED
PartitionName=short Nodes={names} State=UP PriorityTier=1 MaxTime=2
# A job of `urgent` takes the place of those of `main`, which are requeued, and of `spot`, which are cancelled.
PartitionName=spot Nodes={names} State=UP PriorityTier=1 PreemptMode=CANCEL GraceTime=15 MaxTime=UNLIMITED
"""

_SLURMDBD_CONF = """\
AuthType=auth/munge
DbdHost=ctl
SlurmUser=slurm
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=slurm
StorageLoc=slurm_acct_db
PidFile=/run/slurm/slurmdbd.pid
LogFile=/var/log/slurm/slurmdbd.log
"""

_SSHD_CONFIG = """\
HostKey /etc/ssh/ssh_host_ed25519_key
PasswordAuthentication no
UsePAM no
# What a login shell's profile would add; commands over ssh read no profile.
SetEnv PATH=/opt/ffdl/venv/bin:/usr/local/bin:/usr/bin:/bin
Subsystem sftp /usr/lib/openssh/sftp-server
"""


@dataclass(frozen=True, slots=True)
class SiteOptions:
    """What one cluster's configuration depends on."""

    checkout: Path
    suite: Suite
    slurm_version: str
    accounting: bool
    confined: bool
    values: Mapping[str, str]


def overlay_for(slurm_version: str) -> str:
    """The newest overlay that is not newer than the Slurm version; the oldest for anything before."""
    known = sorted(_release(path.stem.removeprefix("slurm-")) for path in _overlay_files())
    running = _release(slurm_version)
    fitting = [version for version in known if version <= running] or known[:1]
    return f"slurm-{fitting[-1][0]}.{fitting[-1][1]:02d}"


def _overlay_files() -> list[Path]:
    return list((_HERE.parents[2] / "slurm-configs" / "overlays").glob("slurm-*.env"))


def _release(text: str) -> tuple[int, int]:
    year, month = text.split(".")[:2]
    return int(year), int(month)


def write_slurm(etc: Path, options: SiteOptions, slurm_uid: int) -> None:
    """Render the fragments and write slurm.conf and slurmdbd.conf. Safe to repeat on a running cluster."""
    configs = options.checkout / "slurm-configs"
    target = etc / "slurm"
    target.mkdir(parents=True, exist_ok=True)
    chosen = {**({} if options.confined else _UNCONFINED), **options.values}
    overrides = etc / "overrides.env"
    overrides.write_text("".join(f"{name}={value}\n" for name, value in chosen.items()))
    run(
        [
            sys.executable,
            str(configs / "render.py"),
            "--values",
            str(configs / "values.env"),
            "--overlay",
            overlay_for(options.slurm_version),
            "--values",
            str(_HERE / "values.env"),
            "--values",
            str(overrides),
            "--out",
            str(target),
        ],
        env=bare_environment(),
    )
    (target / "slurm.conf").write_text(_slurm_conf(options))
    database = target / "slurmdbd.conf"
    database.write_text(_SLURMDBD_CONF)
    database.chmod(0o600)  # slurmdbd refuses a readable one
    os.chown(database, slurm_uid, slurm_uid)


def _slurm_conf(options: SiteOptions) -> str:
    nodes = "\n".join(
        f"NodeName={node.name} NodeAddr={node.address} CPUs={CPUS} RealMemory={MEMORY_MIB} "
        f"Gres=gpu:{node.gpu_type}:{GPUS}{node.gres} Feature={','.join(FEATURES)}"
        for node in COMPUTE_NODES
    )
    return _SLURM_CONF.format(
        cluster=CLUSTER_NAME,
        control_address=NODES[0].address,
        cpus=CPUS,
        memory=MEMORY_MIB,
        of_suite="\n".join(options.suite.slurm_lines),
        accounting="Include /etc/slurm/slurm.conf.d/ffdl-accounting.conf" if options.accounting else "",
        nodes=nodes,
        names=",".join(node.name for node in COMPUTE_NODES),
    )


def write_common(etc: Path) -> None:
    """Hosts file, munge key, sshd configuration, host keys and the list of known hosts."""
    etc.mkdir(parents=True, exist_ok=True)
    lines = ["127.0.0.1 localhost", *(f"{node.address} {node.name}" for node in NODES)]
    (etc / "hosts").write_text("".join(f"{line}\n" for line in lines))
    key = etc / "munge.key"
    key.touch(mode=0o600)
    key.write_bytes(secrets.token_bytes(128))
    (etc / "sshd_config").write_text(_SSHD_CONFIG)
    known = []
    for node in LOGIN_NODES:
        public = make_ssh_key(etc / f"ssh_host_ed25519_key.{node.name}")
        known.append(f"{node.name},{node.address} {public}\n")
    (etc / "ssh_known_hosts").write_text("".join(known))


def make_ssh_key(path: Path) -> str:
    """Make an ed25519 key pair without passphrase; returns the public half, type and key only."""
    run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "rig", "-f", str(path)])
    return " ".join(path.with_name(f"{path.name}.pub").read_text().split()[:2])


def make_home(home: Path, uid: int) -> None:
    """A user's home directory on the shared file system, with a key that opens every login node."""
    ssh = home / ".ssh"
    ssh.mkdir(parents=True)
    public = make_ssh_key(ssh / "id_ed25519")
    (ssh / "authorized_keys").write_text(f"{public}\n")
    home.chmod(0o700)
    ssh.chmod(0o700)
    for path in (home, ssh, *ssh.iterdir()):
        os.chown(path, uid, uid)
