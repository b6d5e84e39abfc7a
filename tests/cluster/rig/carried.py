"""What an old suite lacks, taken from a newer one: programs that run with the newer suite's own loader and libraries.

The donor's libraries lie in a directory of their own, ``/opt/ffdl/donor``, where nothing of the suite looks. Each
carried program names that directory as its loader and its RPATH, so it meets none of the suite's libraries, and the
suite's programs (Slurm above all) meet none of the donor's. RPATH and not RUNPATH: it holds for what libraries load
in their turn, and for Python's extension modules.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from . import layers
from .command import run
from .layers import Layer
from .python_layers import VENV, python_version
from .suites import Suite, Supply

PREFIX = "/opt/ffdl/donor"
_RECIPE = "2"  # part of the layer's key: raise it when what is written below changes

_MOUNTING = ("usr/bin/squashfuse", "usr/bin/squashfuse_ll", "usr/bin/fusermount3")


def obtain(cache: Path, donor: Layer, suite: Suite) -> Layer:
    """The layer that lies over the suite's root file system, made of the donor's."""
    key = layers.digest(donor.key, suite.python, suite.apptainer, PREFIX, VENV, _RECIPE)

    def build(layer: Path, _log: Path) -> None:
        _link_libraries(donor.path, layer)
        if suite.apptainer is Supply.CARRIED:
            _carry_apptainer(donor.path, layer)
        if suite.python is Supply.CARRIED:
            _carry_python(donor, layer)

    return layers.obtain(cache, f"carried-{suite.name}", key, build)


def _link_libraries(donor: Path, layer: Path) -> None:
    """Every shared library of the donor, hard-linked: the layer takes no space for them and outlives the donor."""
    for source in _library_directory(donor).glob("*.so*"):
        if source.is_file():
            target = layer / PREFIX.lstrip("/") / "lib" / source.name
            target.parent.mkdir(parents=True, exist_ok=True)
            os.link(source.resolve(), target)


def _library_directory(root: Path) -> Path:
    """``usr/lib/<architecture>``: the one that has the C library."""
    (libc,) = (root / "usr/lib").glob("*/libc.so.6")
    return libc.parent


def _carry_apptainer(donor: Path, layer: Path) -> None:
    """The package's files, to the places that are compiled into its programs, the setuid starter that was made of
    them, and what mounts images: squashfuse of Debian 11 is for an older FUSE than Apptainer's."""
    listed = (donor / "var/lib/dpkg/info/apptainer.list").read_text().splitlines()
    starters = [str(path.relative_to(donor)) for path in donor.glob("usr/lib/*/apptainer/bin/starter-suid")]
    for name in (*listed, *starters, *_MOUNTING):
        source, target = donor / name.lstrip("/"), layer / name.lstrip("/")
        if source.is_dir() and not source.is_symlink():
            target.mkdir(parents=True, exist_ok=True)
        elif source.exists() or source.is_symlink():
            shutil.copy2(source, target, follow_symlinks=False)
    programs = [layer / name for name in ("usr/bin/apptainer", *_MOUNTING)]
    for program in (*programs, *layer.glob("usr/lib/*/apptainer/bin/starter*")):
        _make_foreign(program)


def _carry_python(donor: Layer, layer: Path) -> None:
    """The donor's interpreter in the venv in place of the link to a ``/usr/bin/python3`` that is too old there."""
    name = "python{}.{}".format(*python_version(donor))
    home = layer / PREFIX.lstrip("/") / "bin"
    home.mkdir(parents=True)
    shutil.copy2(donor.path / "usr/bin" / name, home / name)
    _make_foreign(home / name)
    shutil.copytree(
        donor.path / "usr/lib" / name,
        home.parent / "lib" / name,
        copy_function=_link,
        ignore=shutil.ignore_patterns("test", "__pycache__"),
        symlinks=True,
    )
    venv = layer / VENV.lstrip("/")
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "python3").symlink_to(f"{PREFIX}/bin/{name}")
    (venv / "pyvenv.cfg").write_text(f"home = {PREFIX}/bin\ninclude-system-site-packages = false\n")


def _link(source: str, target: str) -> None:
    os.link(source, target)


def _make_foreign(program: Path) -> None:
    """Point a program to the donor's loader and libraries. Writing it takes the setuid bit away; it is put back."""
    mode = program.stat().st_mode & 0o7777
    loader = run(["patchelf", "--print-interpreter", str(program)]).stdout.strip()
    run(["patchelf", "--set-interpreter", f"{PREFIX}/lib/{Path(loader).name}", str(program)])
    run(["patchelf", "--force-rpath", "--set-rpath", f"{PREFIX}/lib", str(program)])
    program.chmod(mode)
