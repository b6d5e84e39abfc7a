"""Installs ffdl on a login node that has none, over a real sshd. All packages are wheels of this environment."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest

from ffdl_batch import __version__
from ffdl_batch.client.setup.wheels import pack_wheel
from tests.login_node import Laptop, LoginNode

NO_INDEX = {
    "PIP_CONFIG_FILE": "/dev/null",
    "PIP_INDEX_URL": "http://127.0.0.1:1/simple",
    "PIP_COMPILE": "0",  # most modules are never imported
    "PYTHONPATH": "",
}
SHARE = Path(".local", "share", "ffdl-batch")


def needed(name: str) -> dict[str, Distribution]:
    """A package and all that it needs, as it is installed here."""
    found: dict[str, Distribution] = {}
    waiting = [name]
    while waiting:
        one = distribution(waiting.pop())
        if one.name.lower() in found:
            continue
        found[one.name.lower()] = one
        for text in one.requires or ():
            wanted, _, condition = text.partition(";")
            if "extra ==" not in condition and "python_version <" not in condition and "win32" not in condition:
                waiting.append(re.split(r"[^A-Za-z0-9._-]", wanted.strip())[0])
    return found


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("wheels")
    for name, one in needed("ffdl-batch").items():
        if name != "ffdl-batch":
            pack_wheel(one, directory)
    return directory


@pytest.fixture
def node(tmp_path: Path) -> Iterator[LoginNode]:
    """One that finds Python after a login, and no ffdl. Its pip has an index that nobody reaches."""
    base, home = Path(sys.base_prefix, "bin"), tmp_path / "node" / "home"
    path = os.pathsep.join((f"{home}/.local/bin", f"{home}/bin", str(base), "/usr/bin", "/bin"))
    found = LoginNode(tmp_path / "node", profile={"PATH": path, "FFDL_BACKEND": "local", **NO_INDEX})
    (found.bin / "ffdl").unlink()
    try:
        yield found
    finally:
        found.stop()


@pytest.fixture
def laptop(tmp_path: Path, node: LoginNode) -> Laptop:
    found = Laptop(tmp_path / "laptop", node.config())
    found.environ |= NO_INDEX
    del found.environ["PYTHONPATH"]
    return found


def test_command_names_setup_when_host_has_no_ffdl(laptop: Laptop) -> None:
    missing = laptop.run("list")
    assert missing.returncode == 69 and "ffdl setup login" in missing.stderr


@pytest.mark.full
def test_setup_installs_from_index_of_host_and_replaces_older_installation(
    laptop: Laptop, node: LoginNode, wheels: Path
) -> None:
    node.known |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels)}
    node.write_profile("echo Welcome")
    done = laptop.run("setup", "login")
    assert done.returncode == 0, done.stderr
    program = node.home / SHARE / "current" / "bin" / "ffdl"
    assert done.stdout == f"installed {program}\ntry: ffdl --host login list\n"
    assert "sending all packages" not in done.stderr
    assert (node.home / ".local" / "bin" / "ffdl-submit").resolve().is_file()
    assert laptop.run("list", "--json").returncode == 0
    assert f"{SHARE}" in str((node.home / ".local" / "bin" / "ffdl").readlink())
    first = (node.home / SHARE / "current").readlink()
    again = laptop.run("setup", "login", "--python", f"{sys.base_prefix}/bin/python3")
    assert again.returncode == 0, again.stderr
    assert (node.home / SHARE / "current").readlink() != first
    assert (node.home / SHARE / first / "bin" / "python").exists(), "a daemon may still run in it"
    assert laptop.run("daemon", "restart").returncode == 0


@pytest.mark.full
def test_setup_leaves_nothing_when_no_index_is_reachable(laptop: Laptop, node: LoginNode) -> None:
    failed = laptop.run("setup", "login")
    assert failed.returncode == 69 and "pip could not download the packages" in failed.stderr
    assert "no package index is reachable there" in failed.stderr
    assert list((node.home / SHARE).iterdir()) == [], "nothing is left"


def test_setup_sends_all_packages_to_host_without_index(laptop: Laptop, node: LoginNode, wheels: Path) -> None:
    (node.home / ".local" / "bin").mkdir(parents=True)
    other = node.home / ".local" / "bin" / "ffdl"
    other.write_text("#!/bin/sh\necho 9.9\n")
    other.chmod(0o755)
    laptop.environ |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels)}
    done = laptop.run("setup", "login", "--offline", "--directory", "my programs")
    assert done.returncode == 0, done.stderr
    program = node.home / "my programs" / "current" / "bin" / "ffdl"
    assert f"export FFDL_HOST_PROGRAM='{program}'" in done.stdout and other.read_text().endswith("9.9\n")
    laptop.environ["FFDL_HOST_PROGRAM"] = str(program)
    assert laptop.run("list", "--json").returncode == 0
    assert not list((node.home / "my programs").rglob("*.whl"))


@pytest.mark.parametrize(("version", "seen"), [("3 9", "/usr/bin/python3 is 3.9"), ("", "a login finds none")])
def test_setup_reports_missing_python(laptop: Laptop, node: LoginNode, version: str, seen: str) -> None:
    for name in ("python3.14", "python3.13", "python3.12", "python3.11", "python3"):
        is_there = version and name == "python3"
        node.write_program(name, f"echo /usr/bin/{name} {version}" if is_there else "exit 127")
    node.write_profile("")
    done = laptop.run("setup", "login")
    assert done.returncode == 69
    assert f"login has no Python 3.11 or newer: {seen}" in done.stderr and "--python" in done.stderr


def test_setup_reports_unwritable_directory(laptop: Laptop, node: LoginNode) -> None:
    (node.home / "file").touch()
    done = laptop.run("setup", "login", "--directory", "file")
    assert done.returncode == 69 and "login: " in done.stderr and "file" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_setup_reports_unreachable_host(laptop: Laptop, node: LoginNode) -> None:
    laptop.write_config(node.config(Port="1"))
    done = laptop.run("setup", "login")
    assert done.returncode == 75 and "cannot be reached" in done.stderr


def test_packed_wheel_has_programs_adapters_and_metadata(tmp_path: Path) -> None:
    import zipfile

    wheel = pack_wheel(distribution("ffdl-batch"), tmp_path)
    assert wheel.name == f"ffdl_batch-{__version__}-py3-none-any.whl"
    names = zipfile.ZipFile(wheel).namelist()
    stem = f"ffdl_batch-{__version__}"
    assert {f"{stem}.data/scripts/ffdl", f"{stem}.dist-info/RECORD", "ffdl_slurm/adapter.py"} <= set(names)
    assert f"{stem}.data/data/share/ffdl-batch/slurm-configs/values.env" in names
    assert f"{stem}.data/scripts/ffdl-controller" not in names, "pip writes it"
    assert not [name for name in names if name.endswith((".pyc", ".pth"))] and len(names) == len(set(names))
