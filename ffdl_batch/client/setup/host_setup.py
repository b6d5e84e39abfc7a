"""Installs this program on a host that has no ffdl: finds a Python, sends the wheel, has it installed there."""

from __future__ import annotations

import importlib.metadata
import json
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from ffdl_batch.client.errors import ClientError, DaemonUnreachable
from ffdl_batch.client.setup import installer
from ffdl_batch.client.setup.wheels import Target, WheelsUnavailable, download_wheels, pack_wheel
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.job.views import Problem
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.ssh.connection import Completed, Connector
from ffdl_batch.ssh.errors import ProgramMissing, SshFailed

DIRECTORY = "~/.local/share/ffdl-batch"
_PROJECT = "ffdl-batch"
_PYTHONS = ("python3.14", "python3.13", "python3.12", "python3.11", "python3")
_NEEDED = (3, 11)
_FIND_PYTHON = (
    'for p; do command -v "$p" >/dev/null 2>&1 && '
    '"$p" -c "import sys; print(sys.executable, *sys.version_info[:2])" 2>/dev/null; done; :'
)
_ASK_S, _INSTALL_S = 60.0, 1800.0
_CURES = {
    "space": "free some space, or name another directory: --directory",
    "environment": "name another Python: --python",
    "pip": "run the command again with --offline to send all packages from here",
    "network": "",
}


class SetupFailed(ClientError):
    """The host has no new installation; what was there before is unchanged."""

    def __init__(self, message: str, cure: str, exit_code: int = ExitCode.UNAVAILABLE) -> None:
        super().__init__(Problem("S200", message, int(exit_code), cure))


@dataclass(frozen=True, slots=True)
class Wanted:
    """The options of the user."""

    directory: str = DIRECTORY
    python: str = ""
    """The Python to use; "" for the newest that a login shell finds."""
    extras: str = ""
    """Extras, separated by commas."""
    offline: bool = False
    """Whether the host's pip must not use a package index."""


@dataclass(frozen=True, slots=True)
class Installed:
    """The new installation."""

    program: str
    """The path of ffdl."""
    is_found: bool
    """Whether a login shell finds this release by its name."""


def set_up(connector: Connector, wanted: Wanted, report: Callable[[str], None]) -> Installed:
    """Install there and return where. `report` gets a line for each step. Raises SetupFailed, DaemonUnreachable."""
    try:
        host = _Host(connector, wanted)
        report(f"{connector.host}: Python {host.target.python} ({host.python}), {host.target.machine}")
        with tempfile.TemporaryDirectory(prefix="ffdl-setup-") as directory:
            return _install(host, Path(directory), report)
    except SshFailed as error:
        raise DaemonUnreachable.because(error) from error


def _install(host: _Host, directory: Path, report: Callable[[str], None]) -> Installed:
    wheel = pack_wheel(importlib.metadata.distribution(_PROJECT), directory)
    result: dict[str, Any] = {"failed": "network"}
    if not host.wanted.offline:
        report(f"installing {wheel.name} in {host.directory}")
        result = host.install(directory, wheel.name, "index")
    if result.get("failed") == "network":
        report(
            f"sending all packages from here{'' if host.wanted.offline else ': no package index is reachable there'}"
        )
        extras = f"[{host.wanted.extras}]" if host.wanted.extras else ""
        try:
            download_wheels(f"{wheel}{extras}", host.target, directory)
        except WheelsUnavailable as error:
            message = f"pip could not download the packages for Python {host.target.python}, {host.target.machine}"
            cure = "is this machine online? pip here must reach a package index"
            raise SetupFailed(f"{message}: {error}", cure) from error
        result = host.install(directory, wheel.name, "none")
    if "failed" in result:
        raise host.failure(result)
    return Installed(str(result["program"]), host.finds_release(importlib.metadata.version(_PROJECT)))


class _Host:
    """The host, its Python, and the installer that runs there."""

    def __init__(self, connector: Connector, wanted: Wanted) -> None:
        self._connector, self.wanted = connector, wanted
        self.python, version = self._find_python()
        facts = self._ask("facts", wanted.directory, timeout_s=_ASK_S)
        if "failed" in facts:
            raise self.failure(facts)
        self.directory = str(facts["directory"])
        self.target = Target(version, str(facts["machine"]), str(facts["libc"]))

    def _find_python(self) -> tuple[str, str]:
        names = [self.wanted.python] if self.wanted.python else _PYTHONS
        ended = self._connector.run(["/bin/sh", "-c", _FIND_PYTHON, "sh", *names], _ASK_S)
        found = [line.rsplit(" ", 2) for line in ended.out.decode("utf-8", "replace").splitlines() if line]
        for path, major, minor in found:
            if (int(major), int(minor)) >= _NEEDED:
                return path, f"{major}.{minor}"
        seen = ", ".join(f"{path} is {major}.{minor}" for path, major, minor in found) or "a login finds none"
        raise SetupFailed(
            f"{self._connector.host} has no Python {_NEEDED[0]}.{_NEEDED[1]} or newer: {seen}",
            "load a module that has one in your profile there, or name its path: --python",
        )

    def install(self, directory: Path, wheel: str, index: str) -> dict[str, Any]:
        """Send the wheels of the directory and have them installed."""
        with tempfile.TemporaryFile() as packed:
            with tarfile.open(fileobj=packed, mode="w") as archive:
                for path in sorted(directory.iterdir()):
                    archive.add(path, path.name)
            packed.seek(0)
            words = ("install", self.wanted.directory, wheel, self.wanted.extras, index)
            return self._ask(*words, timeout_s=_INSTALL_S, data=packed)

    def _ask(self, *words: str, timeout_s: float, data: IO[bytes] | None = None) -> dict[str, Any]:
        program = Path(installer.__file__).read_text(encoding="utf-8")
        ended = self._connector.run([self.python, "-I", "-c", program, *words], timeout_s, data)
        return self._read(ended)

    def _read(self, ended: Completed) -> dict[str, Any]:
        for line in reversed(ended.out.decode("utf-8", "replace").splitlines()):
            if line.startswith("{"):
                answer: dict[str, Any] = json.loads(line)
                return answer
        raise SetupFailed(f"{self._connector.host}: {self.python} failed: {ended.complaint}", "name another: --python")

    def failure(self, result: dict[str, Any]) -> SetupFailed:
        """Return the error for a result of the installer."""
        kind = str(result["failed"])
        message = f"{self._connector.host}: {result.get('message', kind)}"
        return SetupFailed(message, _CURES.get(kind, ""), ExitCode.UNAVAILABLE)

    def finds_release(self, version: str) -> bool:
        """Whether a login finds this release of ffdl by its name."""
        try:
            ended = self._connector.run(["ffdl", "version"], _ASK_S)
        except ProgramMissing:
            return False
        return ended.code == 0 and version in ended.out.decode("utf-8", "replace").split()
