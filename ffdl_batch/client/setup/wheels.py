"""Makes wheels: of a package that is installed here, as it is, and of what it needs on another host.

An installed package has all files of its wheel, so neither its source nor a build tool is needed, and an installation
from a checkout works as well.
"""

from __future__ import annotations

import base64
import hashlib
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Sequence
from importlib.metadata import Distribution
from importlib.util import find_spec
from pathlib import Path, PurePosixPath

from ffdl_batch.host.fast_dataclass import dataclass

_NOT_PACKED = ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json")
_DOWNLOAD_S = 600.0


@dataclass(frozen=True, slots=True)
class Target:
    """The Python and the machine that wheels are for. `libc` is the version of glibc; "" = musl."""

    python: str
    machine: str
    libc: str

    @property
    def platforms(self) -> Iterator[str]:
        """The platform tags of the wheels that it can use (PEP 600, PEP 656)."""
        if not self.libc:
            yield from (f"musllinux_1_{minor}_{self.machine}" for minor in (2, 1))
            return
        yield from (f"manylinux_2_{minor}_{self.machine}" for minor in range(int(self.libc.split(".")[1]), 4, -1))
        yield from (f"manylinux{year}_{self.machine}" for year in ("2014", "2010", "1"))


class WheelsUnavailable(Exception):
    """pip could not bring the wheels. The message is what it printed last."""


def pack_wheel(distribution: Distribution, directory: Path) -> Path:
    """Write the wheel of an installed package into the directory and return its path."""
    tag = next(line.partition(": ")[2] for line in _metadata(distribution, "WHEEL") if line.startswith("Tag: "))
    info = next(file.parts[0] for file in distribution.files or () if file.parts[0].endswith(".dist-info"))
    stem = info.removesuffix(".dist-info")
    path, records = directory / f"{stem}-{tag}.whl", []
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, source in _members(distribution, stem):
            data = source.read_bytes()
            archive.writestr(zipfile.ZipInfo.from_file(source, name), data, zipfile.ZIP_DEFLATED)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode("ascii")
            records.append(f"{name},sha256={digest},{len(data)}\n")
        archive.writestr(f"{info}/RECORD", "".join([*records, f"{info}/RECORD,,\n"]))
    return path


def download_wheels(wheel: str, target: Target, directory: Path) -> None:
    """Have pip download what the wheel (with its extras) needs on the target. Raises WheelsUnavailable."""
    argv = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input"]
    argv += ["--only-binary=:all:", "--implementation=cp", f"--python-version={target.python}"]
    argv += [f"--platform={platform}" for platform in target.platforms]
    try:
        done = subprocess.run(
            [*argv, f"--dest={directory}", wheel],
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_DOWNLOAD_S,
        )
    except subprocess.TimeoutExpired:
        raise WheelsUnavailable(f"pip did not end within {_DOWNLOAD_S:g} s") from None
    if done.returncode != 0:
        raise WheelsUnavailable(last_error(done.stderr.splitlines()))


def last_error(lines: Sequence[str]) -> str:
    """Return the last line that pip prints as an error, else its last line."""
    words = [line.strip() for line in lines if line.strip()]
    return next((line for line in reversed(words) if line.startswith("ERROR: ")), words[-1] if words else "no output")


def _metadata(distribution: Distribution, name: str) -> list[str]:
    return (distribution.read_text(name) or "").splitlines()


def _members(distribution: Distribution, stem: str) -> Iterator[tuple[str, Path]]:
    """The names in the wheel, and the installed files."""
    written = {script.name for script in distribution.entry_points if script.group == "console_scripts"}
    is_editable = False
    for file in distribution.files or ():
        if file.suffix == ".pyc" or file.name in _NOT_PACKED:
            continue
        if file.suffix == ".pth" and len(file.parts) == 1:
            is_editable = True
        elif file.parts[0] != "..":
            yield str(file), Path(str(distribution.locate_file(file)))
        elif file.name not in written:
            yield _outer_name(file, stem), Path(str(distribution.locate_file(file)))
    if is_editable:
        for top in sorted({point.module.partition(".")[0] for point in distribution.entry_points}):
            yield from _package(top)


def _outer_name(file: PurePosixPath, stem: str) -> str:
    """The name in the wheel of a file that is installed outside of the packages' directory (PEP 427)."""
    parts = [part for part in file.parts if part != ".."]
    kind = "scripts" if parts[0] == "bin" else "data"
    return "/".join((f"{stem}.data", kind, *(parts[1:] if kind == "scripts" else parts)))


def _package(top: str) -> Iterator[tuple[str, Path]]:
    spec = find_spec(top)
    assert spec is not None and spec.origin is not None
    root = Path(spec.origin).parent
    for path in sorted(root.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            yield f"{top}/{path.relative_to(root).as_posix()}", path
