"""The Python side of a node: the project's dependencies in /opt/ffdl/venv, pyslurm, and the checkout made visible.

Three pieces with three lives: pyslurm changes with Slurm, the dependencies with pyproject.toml and constraints.txt,
the project's own metadata with every `up`. Each is a layer over the root file system, so that none rebuilds another.
"""

from __future__ import annotations

import os
import re
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import layers
from .chroot import Chroot
from .command import run
from .console import say
from .layers import Layer

VENV = "/opt/ffdl/venv"
SOURCE = "/opt/ffdl/src"
PYSLURM_VERSION = "25.11.2"
_COMPILED = ("ffdl_batch", "adapters", "tests")
_OLDEST_PYTHON = (3, 11)
_PIP_NAMES = ("index_url", "extra_index_url", "trusted_host", "timeout", "proxy")

# pyslurm 25.11 knows Slurm 25.11. Slurm 26.05 still offers the older interface behind SLURM_BACKWARD_COMPAT (its own
# switch in slurm.h); the shim turns that on, names two things that were renamed, and reports the version asked for.
_PYSLURM_BUILD = r"""
mkdir -p /tmp/shim/slurm
sed 's/^#define SLURM_VERSION_NUMBER .*/#define SLURM_VERSION_NUMBER 0x190b00/' /usr/include/slurm/slurm_version.h \
    >/tmp/shim/slurm/slurm_version.h
cat >/tmp/shim/slurm/slurm.h <<'END'
#define SLURM_BACKWARD_COMPAT 1
#include_next <slurm/slurm.h>
#ifndef RIG_PYSLURM_SHIM
#define RIG_PYSLURM_SHIM
#define slurm_free_ctl_conf(p) slurm_free_conf(p)
#define ESLURM_ERROR_ON_DESC_TO_RECORD_COPY 2100
#endif
END
export SLURM_INCLUDE_DIR=/tmp/shim CFLAGS="-O0 -g0"
SLURM_LIB_DIR=$(dirname "$(find /usr/lib -name libslurm.so | head -n 1)")
PYSLURM_BUILD_JOBS=$(nproc)
export SLURM_LIB_DIR PYSLURM_BUILD_JOBS
python3 -m venv /tmp/builder
/tmp/builder/bin/pip wheel -q --no-deps --no-binary pyslurm "pyslurm==$PYSLURM_VERSION" -w /opt/ffdl/layer
"""

_VENV_BUILD = r"""
python3 -m venv "$VENV"
"$VENV/bin/pip" install -q --only-binary :all: -r /opt/ffdl/layer/requirements.txt -c /opt/ffdl/layer/constraints.txt
for wheel in /opt/ffdl/pyslurm/*.whl; do
    [ -e "$wheel" ] && "$VENV/bin/pip" install -q --no-deps "$wheel"
done
true
"""


@dataclass(frozen=True, slots=True)
class Project:
    """What pyproject.toml says that a node needs to know."""

    name: str
    version: str
    dependencies: tuple[str, ...]
    test_dependencies: tuple[str, ...]
    scripts: dict[str, str]
    ready_scripts: dict[str, str]
    """The text of each script that is installed unchanged, by its name."""
    entry_points: dict[str, dict[str, str]]
    constraints: str

    @classmethod
    def read(cls, checkout: Path) -> Project:
        """Read the checkout's pyproject.toml and constraints.txt."""
        data: dict[str, Any] = tomllib.loads((checkout / "pyproject.toml").read_text())
        project = data["project"]
        constraints = checkout / "constraints.txt"
        return cls(
            name=project["name"],
            version=project.get("version") or _version_of(checkout, data),
            dependencies=tuple(project.get("dependencies", ())),
            test_dependencies=tuple(project.get("optional-dependencies", {}).get("test", ())),
            scripts=dict(project.get("scripts", {})),
            ready_scripts={name: (checkout / path).read_text() for path, name in _shared_scripts(data).items()},
            entry_points={group: dict(names) for group, names in project.get("entry-points", {}).items()},
            constraints=constraints.read_text() if constraints.is_file() else "",
        )


def _shared_scripts(data: dict[str, Any]) -> dict[str, str]:
    """Files that hatch installs besides the scripts that pip writes: path in the checkout -> name."""
    targets = data.get("tool", {}).get("hatch", {}).get("build", {}).get("targets", {})
    return dict(targets.get("wheel", {}).get("shared-scripts", {}))


def _version_of(checkout: Path, data: dict[str, Any]) -> str:
    """The dynamic version: hatch reads it from a module, and so does this."""
    module = data.get("tool", {}).get("hatch", {}).get("version", {}).get("path", "")
    text = (checkout / module).read_text() if module else ""
    match = re.search(r"""^__version__\s*(?::\s*\w+\s*)?=\s*["']([^"']+)["']""", text, re.MULTILINE)
    return match.group(1) if match else "0"


def python_version(rootfs: Layer) -> tuple[int, int]:
    """The version of the root file system's python3, from the name of its directory."""
    link = (rootfs.path / "usr/bin/python3").readlink().name
    major, minor = link.removeprefix("python").split(".")
    return int(major), int(minor)


def slurm_version(rootfs: Layer) -> str:
    """Slurm's version in the root file system, such as 26.05.5."""
    answer = Chroot(rootfs.path, Path(os.devnull)).output("slurmctld -V")
    return answer.split()[-1] if answer else "unknown"


def pip_environment() -> dict[str, str]:
    """Index settings of this machine's pip, as far as they mean something inside the root file system."""
    listed = run([sys.executable, "-m", "pip", "config", "list"], check=False, timeout_s=30).stdout
    found: dict[str, str] = {}
    for line in reversed(listed.splitlines()):  # pip lists files first and the environment last, which wins
        name, _, value = line.partition("=")
        name = name.rsplit(".", 1)[-1].replace("-", "_")
        remote = " ".join(part for part in value.strip("'\"").split() if not part.startswith("file:"))
        if name in _PIP_NAMES and remote:
            found.setdefault(f"PIP_{name.upper()}", remote)
    certificates = "/etc/ssl/certs/ca-certificates.crt"
    return {**found, "PIP_CERT": certificates, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_CACHE_DIR": "1"}


def obtain_pyslurm(cache: Path, rootfs: Layer, slurm: str) -> Layer | None:
    """A wheel of pyslurm built against the suite's Slurm; None where the pinned pyslurm does not fit it."""
    if not slurm.startswith(("25.11.", "26.05.")):
        return None
    key = layers.digest(rootfs.key, PYSLURM_VERSION, _PYSLURM_BUILD)

    def build(layer: Path, log: Path) -> None:
        chroot = Chroot(rootfs.path, log, ((layer, "/opt/ffdl/layer"),))
        chroot.run(_PYSLURM_BUILD, env={**pip_environment(), "PYSLURM_VERSION": PYSLURM_VERSION})

    return layers.obtain(cache, "pyslurm", key, build)


def obtain_venv(cache: Path, rootfs: Layer, pyslurm: Layer | None, project: Project) -> Layer | None:
    """The dependencies in a venv of the root file system's own Python; None where that Python is too old."""
    if python_version(rootfs) < _OLDEST_PYTHON:
        say(f"no venv: this suite's Python {python_version(rootfs)} is older than the project needs")
        return None
    wanted = (*project.dependencies, *project.test_dependencies)
    key = layers.digest(rootfs.key, pyslurm.key if pyslurm else "", wanted, project.constraints, _VENV_BUILD)

    def build(layer: Path, log: Path) -> None:
        (layer / "requirements.txt").write_text("".join(f"{line}\n" for line in wanted))
        (layer / "constraints.txt").write_text(project.constraints)
        inside = layer / VENV.lstrip("/")
        inside.mkdir(parents=True)
        binds = [(layer, "/opt/ffdl/layer"), (inside, VENV)]
        if pyslurm is not None:
            binds.append((pyslurm.path, "/opt/ffdl/pyslurm"))
        Chroot(rootfs.path, log, tuple(binds)).run(_VENV_BUILD, env={**pip_environment(), "VENV": VENV})

    return layers.obtain(cache, "venv", key, build)


def compile_checkout(rootfs: Layer, checkout: Path) -> None:
    """Leave the checkout's bytecode for the nodes' Python beside its sources, as an installation would.

    The nodes see the checkout read-only, and people on them may write nothing of root's: every command, daemon,
    controller and program of a learner would compile for itself what it imports. What was compiled and not edited since
    is left as it is, and what does not compile whoever imports it says.
    """
    folders = " ".join(f"/mnt/{folder}" for folder in _COMPILED)
    tool = f"python3 -m compileall -q -x /test_ -s /mnt -p {SOURCE} {folders}"
    Chroot(rootfs.path, Path(os.devnull), ((checkout, "/mnt"),)).output(tool)


def write_project_layer(layer: Path, project: Project, python: tuple[int, int]) -> None:
    """What an editable installation would leave in the venv, written by hand: path file, metadata, scripts.

    pip is not asked, because it would need the network and a buildable tree at every `up`; edits are live because
    the path file names the checkout.
    """
    venv = layer / VENV.lstrip("/")
    packages = venv / f"lib/python{python[0]}.{python[1]}/site-packages"
    metadata = packages / f"{project.name.replace('-', '_')}-{project.version}.dist-info"
    metadata.mkdir(parents=True)
    (packages / "ffdl-checkout.pth").write_text(f"{SOURCE}\n{SOURCE}/adapters\n")
    requires = "".join(f"Requires-Dist: {line}\n" for line in project.dependencies)
    header = f"Metadata-Version: 2.1\nName: {project.name}\nVersion: {project.version}\n{requires}"
    (metadata / "METADATA").write_text(header)
    (metadata / "INSTALLER").write_text("ffdl-batch-rig\n")
    (metadata / "RECORD").write_text("")
    groups = {"console_scripts": project.scripts, **project.entry_points}
    (metadata / "entry_points.txt").write_text("".join(_group(name, items) for name, items in groups.items()))
    (venv / "bin").mkdir()
    scripts = dict(project.ready_scripts)
    for name, target in project.scripts.items():
        module, function = target.split(":")
        scripts[name] = (
            f"#!{VENV}/bin/python3\nimport sys\n\nfrom {module} import {function}\n\nsys.exit({function}())\n"
        )
    for name, text in scripts.items():
        script = venv / "bin" / name
        script.write_text(text)
        script.chmod(0o755)


def _group(name: str, items: dict[str, str]) -> str:
    lines = "".join(f"{key} = {value}\n" for key, value in items.items())
    return f"[{name}]\n{lines}\n"
