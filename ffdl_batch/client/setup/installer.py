"""Installs wheels into a virtual environment. The host runs this file by itself, as the text of ``python -c``.

``facts DIRECTORY`` prints what the host is. ``install DIRECTORY WHEEL EXTRAS INDEX`` reads a tar archive of wheels from
standard input; with INDEX ``none`` pip uses only those. Each prints one line of JSON. Standard library, Python 3.11.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import time
from pathlib import Path

NEEDED_BYTES = 300 << 20
"""An environment with all that is needed, the wheels, and what pip unpacks meanwhile."""
LINK = "current"
_KEPT = 2
_PROGRAMS = ("ffdl", "ffdl-submit", "ffdl-submitd", "ffdl-admin")
_UNREACHABLE = (
    "No matching distribution found", "Could not find a version", "NewConnectionError", "ConnectTimeoutError",
    "ReadTimeoutError", "Temporary failure in name resolution", "Network is unreachable", "ProxyError",
)  # fmt: skip
_FULL = ("No space left on device", "Disk quota exceeded", "Errno 28", "Errno 122")


class Failed(Exception):
    """`kind` is space, network, environment or pip."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def main(words: list[str]) -> int:
    """Run the command and print its result."""
    directory = Path(words[1]).expanduser()
    if not directory.is_absolute():
        directory = Path.home() / directory
    try:
        if words[0] == "facts":
            result: dict[str, object] = facts(directory)
        else:
            wheel, extras, index = words[2:5]
            result = install(directory, wheel, extras, uses_index=index != "none")
    except Failed as failure:
        result = {"failed": failure.kind, "message": str(failure)}
    except OSError as error:
        full = error.errno in (28, 122)  # ENOSPC, EDQUOT
        result = {"failed": "space" if full else "environment", "message": str(error)}
    sys.stdout.write(json.dumps(result) + "\n")
    return 0


def facts(directory: Path) -> dict[str, object]:
    """Return what decides which wheels fit. Raises Failed if there is no room."""
    directory.mkdir(mode=0o755, parents=True, exist_ok=True)
    free = shutil.disk_usage(directory).free
    if free < NEEDED_BYTES:
        raise Failed("space", f"{free >> 20} MiB are free in {directory}, {NEEDED_BYTES >> 20} MiB are needed")
    name, version = platform.libc_ver()
    return {"machine": platform.machine(), "libc": version if name == "glibc" else "", "directory": str(directory)}


def install(directory: Path, wheel: str, extras: str, *, uses_index: bool) -> dict[str, object]:
    """Install into a new environment; only then it replaces the one before."""
    environment = directory / f"{wheel.split('-')[1]}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    environment.mkdir()
    try:
        wheels = environment / "wheels"
        receive(wheels)
        make_environment(environment)
        install_wheels(environment, f"{wheels / wheel}[{extras}]" if extras else str(wheels / wheel), uses_index)
        shutil.rmtree(wheels)
    except BaseException:
        shutil.rmtree(environment, ignore_errors=True)
        raise
    place = directory / f".{LINK}-{os.getpid()}"
    place.symlink_to(environment.name)
    place.replace(directory / LINK)
    for old in sorted(directory.glob("*-*-*/pyvenv.cfg"), key=lambda file: file.stat().st_mtime)[:-_KEPT]:
        shutil.rmtree(old.parent, ignore_errors=True)  # a daemon may still run in the one before
    return {"program": str(directory / LINK / "bin" / _PROGRAMS[0]), "linked": link_programs(directory)}


def receive(directory: Path) -> None:
    """Write the files of the archive on standard input into the new directory."""
    directory.mkdir()
    with tarfile.open(fileobj=sys.stdin.buffer, mode="r|") as archive:
        for member in archive:
            source = archive.extractfile(member)
            if source is not None:
                with (directory / Path(member.name).name).open("xb") as target:
                    shutil.copyfileobj(source, target)


def make_environment(environment: Path) -> None:
    """Make a virtual environment that has pip."""
    done = run([sys.executable, "-m", "venv", str(environment)])
    if done.returncode != 0:
        lines = [line for line in done.stdout.splitlines() if line.strip()]
        if "ensurepip" in done.stdout:
            lines = ["its module ensurepip is missing (on Debian: apt-get install python3-venv)"]
        raise Failed(classify(done.stdout, "environment"), lines[-1] if lines else "no output")


def install_wheels(environment: Path, requirement: str, uses_index: bool) -> None:
    """Have pip install the requirement. Raises Failed."""
    argv = [str(environment / "bin" / "python"), "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
    argv += ["--quiet", "--retries=1", "--timeout=15", f"--find-links={environment / 'wheels'}"]
    done = run([*argv, *([] if uses_index else ["--no-index"]), requirement])
    if done.returncode != 0:
        errors = [line for line in done.stdout.splitlines() if line.startswith("ERROR: ")]
        raise Failed(classify(done.stdout, "pip"), (errors or done.stdout.splitlines() or ["no output"])[-1])


def classify(output: str, otherwise: str) -> str:
    """Return the kind of failure that a program's output shows."""
    if any(words in output for words in _FULL):
        return "space"
    return "network" if otherwise == "pip" and any(words in output for words in _UNREACHABLE) else otherwise


def link_programs(directory: Path) -> bool:
    """Link the commands into ~/.local/bin, unless another program has their name there."""
    target = Path.home() / ".local" / "bin"
    target.mkdir(parents=True, exist_ok=True)
    places = {target / name: directory / LINK / "bin" / name for name in _PROGRAMS}
    if any(os.path.lexists(link) and not (link.is_symlink() and link.readlink() == to) for link, to in places.items()):
        return False
    for link, to in places.items():
        if not os.path.lexists(link):
            link.symlink_to(to)
    return True


def run(argv: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a program and keep what it prints."""
    return subprocess.run(
        argv,
        check=False,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
