"""Upgrade and rollback with live jobs: the wheels of an earlier commit and of this tree, installed side by side."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import pytest

from tests.contract.daemon_rig import LIMIT_S, until

ROOT = Path(__file__).parents[2]
RELEASED = "2a954e74b6b3e059360ed28a13a34f041e4f4d91"
"""The first commit with this schema of the database. A daemon with an older schema would refuse the database."""
MANIFEST = """\
name: live
framework:
  name: custom
  version: python-numpy
  command: "echo begun; until [ -e {go} ]; do sleep 0.1; done; echo ended"
cpus: 0.1
memory: 100MB
"""
OPEN_HUB = """
from ffdl_batch.host.running_clock import SystemClock
from ffdl_batch.site.hub.store import open_hub_store
from ffdl_batch.store.database import connect
import sys
database = connect(sys.argv[1], None, SystemClock())
store = open_hub_store(database, str, None, {})
if len(sys.argv) > 2:
    store.tenants.put(sys.argv[2], None, [])
print(",".join(one.name for one in store.tenants.read()))
database.close()
"""
pytestmark = pytest.mark.full


@dataclass
class Release:
    """An installation in a virtual environment of its own."""

    place: Path
    home: Path

    @property
    def environ(self) -> dict[str, str]:
        return {"PATH": os.defpath, "HOME": str(self.home), "FFDL_BACKEND": "local"}

    def run(self, program: str, *words: str) -> str:
        argv = [f"{self.place}/bin/{program}", *words]
        done = subprocess.run(argv, env=self.environ, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        assert done.returncode == 0, (words, done)
        return done.stdout

    def hub_tenants(self, *add: str) -> str:
        argv = [f"{self.place}/bin/python", "-c", OPEN_HUB, f"sqlite:///{self.home}/hub.db", *add]
        done = subprocess.run(argv, env=self.environ, capture_output=True, text=True, timeout=LIMIT_S, check=True)
        return done.stdout.strip()

    def serves(self) -> bool:
        """Whether the running daemon is of this release."""
        found = re.search(r"process (\d+) ", self.run("ffdl", "daemon", "status"))
        assert found is not None
        return Path(f"/proc/{found[1]}/cmdline").read_text().startswith(f"{self.place}/bin/python")

    def submit(self) -> str:
        manifest = self.home / "manifest.yml"
        manifest.write_text(MANIFEST.format(go=self.home / "go"))
        job_id = self.run("ffdl-submit", "--parsable", str(manifest), str(self.home / "model")).strip()
        until(lambda: "begun" in self.run("ffdl", "logs", job_id), f"the learner of {job_id}")
        return job_id


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The two installations. They share what is installed beside this tree, but not its own modules."""
    base = tmp_path_factory.mktemp("releases")
    archive = subprocess.run(["git", "archive", RELEASED], cwd=ROOT, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=BytesIO(archive)) as tar:
        tar.extractall(base / "source", filter="data")
    found = {}
    for name, source in (("old", base / "source"), ("new", ROOT)):
        place, wheels = base / name, base / f"{name}-wheel"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", place], check=True)
        (own,) = place.glob("lib/python3*/site-packages")
        (own / "shared.pth").write_text(sysconfig.get_path("purelib"))  # its own .pth files do not count
        pip = [sys.executable, "-m", "pip", "-q"]
        subprocess.run([*pip, "wheel", "--no-deps", "-w", wheels, source], check=True)
        into = ["--python", f"{place}/bin/python", "install", "--no-deps", "--ignore-installed"]
        subprocess.run([*pip, *into, *wheels.iterdir()], check=True)
        found[name] = place
    return found


@pytest.fixture
def releases(installed: dict[str, Path], tmp_path: Path) -> Iterator[tuple[Release, Release]]:
    (tmp_path / "model").mkdir()
    (tmp_path / "model/README").touch()
    old, new = Release(installed["old"], tmp_path), Release(installed["new"], tmp_path)
    yield old, new
    (tmp_path / "go").touch()
    new.run("ffdl", "daemon", "stop")


def test_jobs_of_both_releases_complete_after_upgrade_and_rollback(releases: tuple[Release, Release]) -> None:
    old, new = releases
    jobs = [old.submit()]
    assert old.serves()
    old.run("ffdl-admin", "db", "backup", str(old.home / "before"))
    new.run("ffdl", "daemon", "restart")
    assert new.serves()
    jobs.append(new.submit())
    assert new.run("ffdl", "list").count("PROCESSING") == 2
    old.run("ffdl", "daemon", "restart")
    assert old.serves()
    (old.home / "go").touch()
    old.run("ffdl", "wait", "--timeout", "300", *jobs)
    jobs.append(old.submit())
    old.run("ffdl", "wait", "--timeout", "300", jobs[-1])
    for job_id in jobs:
        assert old.run("ffdl", "logs", job_id) == "begun\nended\n"
    old.run("ffdl-admin", "db", "check")


def test_database_of_hub_is_read_by_both_releases(releases: tuple[Release, Release]) -> None:
    old, new = releases
    assert old.hub_tenants("vision") == "vision"
    assert new.hub_tenants("speech") == "speech,vision"
    assert old.hub_tenants() == "speech,vision"
