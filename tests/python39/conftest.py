"""A node with Debian 11."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.cluster.rig.builder import build_rootfs
from tests.cluster.rig.chroot import Chroot

PYTHON = "/usr/bin/python3"


class OldNode:
    """Debian 11. A test's directory has the same path inside as outside; nothing else of this machine is there."""

    def __init__(self, root: Path, base: Path) -> None:
        self._chroot = Chroot(root, base / "node.log", ((base, str(base)),))
        self._base = base

    def version(self) -> str:
        """The interpreter's version."""
        return self._chroot.output(f"{PYTHON} -c 'import platform; print(platform.python_version())'")

    def run(self, *argv: str, **env: str) -> int:
        """One command; its exit code. What it prints is in `printed`."""
        code = self._base / "code"
        self._chroot.run(f"code=0; {shlex.join(argv)} || code=$?; echo $code > {shlex.quote(str(code))}", env=env)
        return int(code.read_text())

    @property
    def printed(self) -> str:
        """Output and errors of everything that ran."""
        return (self._base / "node.log").read_text(errors="replace")


@pytest.fixture(scope="session")
def bullseye() -> Path:
    """The root file system, built once and kept in the rig's cache. Needs root on Debian; says so where it is not."""
    return build_rootfs("bullseye")


@pytest.fixture
def node(bullseye: Path, tmp_path: Path) -> OldNode:
    made = OldNode(bullseye, tmp_path)
    assert made.version().startswith("3.9."), f"this root file system has Python {made.version() or 'none'}"
    return made
