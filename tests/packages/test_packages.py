"""Builds the packages, and installs, uses and removes the Debian package and the RPM on a minimal Debian."""

from __future__ import annotations

import io
import os
import platform
import shlex
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from ffdl_batch import __version__
from tests.cluster.rig import host, layers, rootfs, sources
from tests.cluster.rig.chroot import Chroot
from tests.unit.docs.shown import ROOT
from tools.make_packages import COMMANDS, DIST, PLACES, output

pytestmark = pytest.mark.full

BASE = """
update-ca-certificates
apt-get update -qq
apt-get install -y -qq --no-install-recommends procps python3 rpm systemd
echo '@include common-account' >/etc/pam.d/password-auth
"""
"""What the packages depend on, the program that installs an RPM, and the PAM file of Rocky Linux that the RPM names."""
JOB = """
set -eu
cp -r /usr/share/ffdl-batch/docs/examples/loop ~
cd ~/loop
sed -i 's/--steps 600 --pause 0.1/--steps 3 --pause 0/' manifest.yml
ffdl-submit --wait --backend local manifest.yml model
ffdl daemon stop
"""
VERIFY = "systemd-analyze verify --man=no --recursive-errors=no /usr/lib/systemd/system/ffdl-*.s*[et]"
SPAWNER = """
sed 's/^.spawner.$/&\\nsystemd = false/' /usr/share/ffdl-batch/slurm-configs/ffdl/site.toml >/etc/ffdl/site.toml
$(sed -n 's/^ExecStart=//p' /usr/lib/systemd/system/ffdl-spawner.service) &
spawner=$!
until [ -S /run/ffdl/spawner.sock ] || ! kill -0 $spawner; do sleep 0.1; done
su --login ada -c 'ffdl list; ffdl daemon status; ffdl daemon stop'
kill $spawner
"""
ACCOUNT_FILES = {"etc/passwd-", "etc/group-", "etc/shadow-", "etc/gshadow-", "etc/.pwd.lock"}
CHANGING = ("proc", "tmp", "dev", "home", "run", "var/log", "var/lib/dpkg", "root/.rpmdb")
"""Directories that are not compared."""


@dataclass(frozen=True)
class Manager:
    """The commands of a package manager."""

    install: str
    verify: str
    remove: str


DPKG = Manager("dpkg -i /dist/ffdl-batch_*.deb", "dpkg --verify ffdl-batch", "dpkg --purge ffdl-batch")
# Debian's database of RPMs does not know the packages of the system.
RPM = Manager("rpm -i --nodeps /dist/ffdl-batch-*.rpm", "rpm -V --nodeps ffdl-batch", "rpm -e ffdl-batch")
KINDS = pytest.mark.parametrize("manager", [pytest.param(DPKG, id="deb"), pytest.param(RPM, id="rpm")])


class System:
    """A minimal Debian of this machine's release."""

    def __init__(self, root: Path, log: Path) -> None:
        self.root, self.log = root, log
        self._chroot = Chroot(root, log, ((DIST, "/dist"),))
        self.run("useradd --create-home ada")

    def run(self, script: str) -> str:
        """Run a script as root and return what it prints. It has to succeed."""
        begin = self.log.stat().st_size if self.log.exists() else 0
        self._chroot.run(script)
        return self.log.read_bytes()[begin:].decode()

    def files(self) -> set[str]:
        """All paths that are compared."""
        found = set()
        for place, folders, files in os.walk(self.root):
            inside = Path(place).relative_to(self.root)
            folders[:] = [name for name in folders if str(inside / name) not in CHANGING]
            found |= {str(inside / name) for name in (*folders, *files)}
        return found


@pytest.fixture(scope="module")
def packages() -> Path:
    """The directory of the packages."""
    subprocess.run([sys.executable, "-m", "tools.make_packages"], cwd=ROOT, check=True)
    return DIST


@pytest.fixture(scope="module")
def base() -> Path:
    """The root file system without the package, from the rig's cache."""
    origin, recipe = sources.discover(), rootfs.Recipe(platform.freedesktop_os_release()["VERSION_CODENAME"])

    def build(root: Path, log: Path) -> None:
        rootfs.debootstrap(root, log, recipe, origin)
        rootfs.connect(root, origin)
        Chroot(root, log).run(BASE)

    return layers.obtain(host.cache_dir(), f"plain-{recipe.suite}", layers.digest(recipe.suite, BASE), build).path


@pytest.fixture
def system(packages: Path, base: Path, tmp_path: Path) -> System:
    subprocess.run(["cp", "-a", str(base), str(tmp_path / "root")], check=True)
    return System(tmp_path / "root", tmp_path / "log")


@KINDS
def test_installed_package_runs_job_and_daemon_of_spawner(system: System, manager: Manager) -> None:
    system.run(manager.install)
    assert __version__ in system.run("ffdl version")
    assert "--nodes" in system.run("ffdl-admin doctor --help")
    system.run(f"su --login ada -c {shlex.quote(JOB)}")
    assert system.run(VERIFY) == ""
    printed = system.run(SPAWNER)
    assert "COMPLETED" in printed and "/run/ffdl/users/1000/daemon.sock" in printed


@KINDS
def test_removal_of_package_leaves_only_account(system: System, manager: Manager) -> None:
    before = system.files()
    for own in ("true", "touch /opt/ffdl/venv/lib/added-with-pip"):
        system.run(manager.install)
        installed = system.files() - before
        assert {f"usr/bin/{name}" for name in COMMANDS} <= installed
        assert {f"{target}/{Path(name).name}" for name, target in PLACES.items()} <= installed
        system.run("systemctl enable ffdl-spawner.service ffdl-hub.service ffdl-hub.socket; ffdl-admin --help")
        assert system.run(manager.verify) == ""
        system.run(f"{own}; {manager.remove}")
        assert system.files() ^ before <= ACCOUNT_FILES | {"opt"}  # dpkg also removes /opt if it is empty
        assert system.run("getent passwd ffdl").endswith(":/usr/sbin/nologin\n")


def test_rpm_contains_files_of_debian_package(packages: Path) -> None:
    (deb,), (rpm,) = packages.glob("*.deb"), packages.glob("*.rpm")
    content = subprocess.run(["dpkg-deb", "--fsys-tarfile", str(deb)], check=True, stdout=subprocess.PIPE).stdout
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        expected = {one.name.removeprefix(".") for one in archive if not one.isdir()}
    assert expected <= set(output("rpm", "-qlp", str(rpm)).splitlines())
    assert output("rpm", "-qcp", str(rpm)) == "/etc/pam.d/ffdl-user"
