"""The nodes' root file system: a Debian suite with its own Slurm, and Apptainer.

Built by debootstrap and a list of shell steps. The text of the steps is part of the cache key, so a changed step is
a new root file system. Nothing of the project is in here: its dependencies are layers of their own.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from . import layers
from .chroot import BUILD_S, Chroot
from .command import bare_environment, proxy_environment, run_logged, tail_of
from .errors import Exit, RigError
from .layers import Layer
from .sources import Origin
from .suites import APPTAINER_VARIABLE, DONOR, Supply, suite_named

USERS = {"alice": 2001, "bob": 2002, "carol": 2003}
GROUP = "researchers"
"""A group that all of them are in beside their own, as users of one project are."""

_REQUIRED = (
    "slurmctld",
    "slurmd",
    "slurm-client",
    "slurmdbd",
    "slurm-wlm-basic-plugins",
    "munge",
    "mariadb-server",
    "squashfs-tools",
    "fuse3",
    "rclone",
    "iproute2",
    "nftables",
    "wireguard-tools",
    "procps",
    "python3",
    "python3-venv",
    "python3-dev",
    "gcc",
    "libc6-dev",
    "libslurm-dev",
    "openssh-server",
    "openssh-client",
    "debootstrap",
    "cron",
    "acl",
    "util-linux",
    "busybox-static",
)
# Installed where the suite has them: 20.11 keeps the MySQL plugin in the basic ones, old suites lack the others.
_OPTIONAL = ("slurm-wlm-mysql-plugin", "squashfuse", "fuse-overlayfs", "wireguard-go")

_PREPARE = r"""
printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d; chmod 755 /usr/sbin/policy-rc.d
printf 'force-unsafe-io\n' >/etc/dpkg/dpkg.cfg.d/rig
printf 'path-exclude=/usr/share/%s/*\n' doc man locale info lintian >>/etc/dpkg/dpkg.cfg.d/rig
printf 'Acquire::Languages "none";\nDpkg::Use-Pty "0";\n' >/etc/apt/apt.conf.d/10rig
update-ca-certificates
apt-get update -qq
"""

_INSTALL = r"""
optional=
for package in $OPTIONAL; do
    apt-cache show "$package" >/dev/null 2>&1 && optional="$optional $package"
done
apt-get install -y --no-install-recommends $REQUIRED $optional
"""

# A source of another suite with a pin below every other: used for the one package that is asked for by file.
_APPTAINER = r"""
if [ "$APPTAINER_SUITE" = "$SUITE" ]; then
    apt-get install -y --no-install-recommends apptainer
else
    echo "deb $MIRROR $APPTAINER_SUITE main" >/etc/apt/sources.list.d/apptainer.list
    printf 'Package: *\nPin: release n=%s\nPin-Priority: 1\n' "$APPTAINER_SUITE" >/etc/apt/preferences.d/apptainer
    apt-get update -qq
    cd /tmp
    apt-get download apptainer/"$APPTAINER_SUITE"
    apt-get install -y --no-install-recommends ./apptainer_*.deb
    rm -f ./apptainer_*.deb /etc/apt/sources.list.d/apptainer.list /etc/apt/preferences.d/apptainer
fi
# Joining a prepared network namespace needs the setuid workflow. Debian ships the rootless starter only; the same
# binary, root-owned and setuid, is taken for it.
for starter in /usr/lib/*/apptainer/bin/starter; do
    cp "$starter" "$starter-suid"; chmod 4755 "$starter-suid"
done
"""

_FINISH = r"""
groupadd -g 2000 "$GROUP"
for account in $ACCOUNTS; do
    name=${account%:*}; id=${account#*:}
    groupadd -g "$id" "$name"
    # A star, not a locked password: sshd without PAM refuses locked accounts.
    useradd -M -d "/home/$name" -u "$id" -g "$id" -s /bin/bash -p '*' "$name"
    usermod -a -G "$GROUP" "$name"
done
rm -f /etc/ssh/ssh_host_* /etc/munge/munge.key
echo 'PATH=/opt/ffdl/venv/bin:$PATH' >/etc/profile.d/ffdl.sh
mkdir -p /shared /opt/ffdl/src /opt/ffdl/venv /etc/slurm /var/log/slurm /var/spool/slurmd /var/lib/slurmctld \
    /var/lib/mysql /run/sshd
rm -rf /var/cache/apt/archives/*.deb /var/lib/apt/lists/* /var/lib/mysql/* /usr/sbin/policy-rc.d
"""


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything that decides what ends up in a root file system."""

    suite: str = "sid"
    apptainer_suite: str | None = None

    @classmethod
    def of(cls, suite: str) -> Recipe:
        """The recipe of a suite."""
        supply = suite_named(suite).apptainer
        if supply is Supply.PACKAGE:
            return cls(suite, os.environ.get(APPTAINER_VARIABLE) or DONOR)
        return cls(suite, suite if supply is Supply.OWN else None)

    @property
    def key(self) -> str:
        """The cache key."""
        steps = (_PREPARE, _INSTALL, _APPTAINER, _FINISH)
        users = [f"{name}:{uid}" for name, uid in USERS.items()]
        return layers.digest(self.suite, self.apptainer_suite or "none", _REQUIRED, _OPTIONAL, steps, users, GROUP)


def obtain(cache: Path, recipe: Recipe, origin: Origin) -> Layer:
    """The root file system of a recipe, from the cache or built now (about a minute on a fast network)."""

    def build(root: Path, log: Path) -> None:
        debootstrap(root, log, recipe, origin)
        _provision(Chroot(root, log), recipe, origin)

    return layers.obtain(cache, f"rootfs-{recipe.suite}", recipe.key, build)


def debootstrap(root: Path, log: Path, recipe: Recipe, origin: Origin) -> None:
    """The least of a suite."""
    known = Path("/usr/share/debootstrap/scripts") / recipe.suite
    script = [] if known.exists() else [str(known.with_name("sid"))]  # every newer suite installs like sid
    unsigned = ["--no-check-gpg"] if origin.trusted else []
    env = bare_environment(**proxy_environment())
    if origin.proxy and "http_proxy" not in env:
        env["http_proxy"] = origin.proxy
    argv = [
        "unshare",
        "--mount",
        "--pid",
        "--fork",
        "--kill-child",
        "debootstrap",
        "--variant=minbase",
        "--include=ca-certificates",
        *unsigned,
        recipe.suite,
        str(root),
        origin.mirror,
        *script,
    ]
    try:
        run_logged(argv, log, env=env, timeout_s=BUILD_S)
    except RigError as error:
        detail = tail_of(root / "debootstrap" / "debootstrap.log")
        raise RigError(
            f"debootstrap of {recipe.suite} failed, is the Debian mirror reachable? {error} {detail}", Exit.UNAVAILABLE
        ) from error


def connect(root: Path, origin: Origin) -> None:
    """Let what runs inside reach what this machine reaches."""
    (root / "etc/apt/apt.conf.d/00host").write_text(origin.apt_settings)
    extra = root / "usr/local/share/ca-certificates"
    for certificate in origin.certificates:
        shutil.copy(certificate, extra / certificate.name)


def _provision(chroot: Chroot, recipe: Recipe, origin: Origin) -> None:
    connect(chroot.root, origin)
    env = {
        "SUITE": recipe.suite,
        "MIRROR": origin.mirror,
        "REQUIRED": " ".join(_REQUIRED),
        "OPTIONAL": " ".join(_OPTIONAL),
        "APPTAINER_SUITE": recipe.apptainer_suite or "",
        "GROUP": GROUP,
        "ACCOUNTS": " ".join(f"{name}:{uid}" for name, uid in USERS.items()),
    }
    apptainer = (_APPTAINER,) if recipe.apptainer_suite else ()
    for script in (_PREPARE, _INSTALL, *apptainer, _FINISH):
        chroot.run(script, env=env)
