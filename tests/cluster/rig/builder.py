"""From nothing to the layers that nodes are stacked from. Minutes without a cache, a tenth of a second with it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from . import carried, host, layers, python_layers, record, rootfs, sources
from .console import say
from .errors import RigError
from .layers import Layer
from .python_layers import Project
from .rootfs import Recipe
from .suites import DONOR, Suite, Supply, suite_named

WITHOUT_PYSLURM = "FFDL_TEST_WITHOUT_PYSLURM"
"""Variable that leaves pyslurm out ("1"). It takes minutes to build, and only tests with the mark `full` need it."""


@dataclass(frozen=True, slots=True)
class Built:
    """The layers of a suite (topmost first, the root file system last) and what was learnt about it. `python` is the
    venv's."""

    cache: Path
    layers: tuple[str, ...]
    slurm_version: str
    python: tuple[int, int]
    project: Project | None
    confined: bool


def build(suite: str, checkout: Path, *, fresh: bool = False) -> Built:
    """Check the machine, then build or find every layer. `fresh` rebuilds the root file system (sid moves)."""
    row = suite_named(suite)
    cache = _checked_cache("patchelf" if row.carries else "")
    if fresh:
        _forget_rootfs(cache / f"rootfs-{suite}-{Recipe.of(suite).key}")
    origin = sources.discover()
    root = rootfs.obtain(cache, Recipe.of(suite), origin)
    slurm = python_layers.slurm_version(root)
    if not slurm.startswith(f"{row.slurm}."):
        say(f"{suite} has moved on: its Slurm is {slurm}, not {row.slurm}")
    donor = rootfs.obtain(cache, Recipe.of(DONOR), origin) if row.carries else root
    over = [carried.obtain(cache, donor, row)] if row.carries else []
    home = donor if row.python is Supply.CARRIED else root
    project = _project(checkout)
    if project is not None:
        over += _venv(cache, row, home, project, checkout)
    confined = host.cgroup_v1_available()
    if not confined:
        say("this machine has no cgroup v1 controllers: Slurm will confine neither memory nor devices")
    paths = tuple(str(layer.path) for layer in (*over, root))
    return Built(cache, paths, slurm, python_layers.python_version(home), project, confined)


def build_rootfs(suite: str) -> Path:
    """Check the machine, then build or find the root file system of a suite alone: Debian with Slurm."""
    return rootfs.obtain(_checked_cache(), Recipe.of(suite), sources.discover()).path


def _checked_cache(tool: str = "") -> Path:
    """The directory of the layers, on a machine that can build and run them. `tool`: one more that is needed."""
    host.require_root()
    host.require_tools(tool)
    host.require_kernel()
    cache = host.cache_dir()
    cache.mkdir(parents=True, exist_ok=True)
    return cache


def _venv(cache: Path, row: Suite, home: Layer, project: Project, checkout: Path) -> list[Layer]:
    """The venv for the Python of `home`, which compiles the checkout too; with pyslurm where that fits the suite's own
    Slurm."""
    slurm = python_layers.slurm_version(home) if row.python is Supply.OWN else ""
    wanted = os.environ.get(WITHOUT_PYSLURM, "") != "1"
    pyslurm = python_layers.obtain_pyslurm(cache, home, slurm) if wanted else None
    venv = python_layers.obtain_venv(cache, home, pyslurm, project)
    if venv is None:
        return []
    python_layers.compile_checkout(home, checkout)
    return [venv]


def _forget_rootfs(path: Path) -> None:
    for user in record.all_records():
        if str(path) in user.blueprint.layers:
            raise RigError(f"{user.describe()} runs on {path}; end it first")
    layers.drop(path)


def _project(checkout: Path) -> Project | None:
    if not (checkout / "pyproject.toml").is_file():
        say(f"{checkout} has no pyproject.toml: the nodes get no venv")
        return None
    return Project.read(checkout)


def write_project(layer: Path, built: Built) -> None:
    """The layer that makes the checkout importable; empty where there is no venv."""
    layer.mkdir(parents=True)
    if built.project is not None and len(built.layers) > 1:
        python_layers.write_project_layer(layer, built.project, built.python)


def account_id(rootfs_path: str, name: str) -> int:
    """The number of a system account in the root file system."""
    for line in (Path(rootfs_path) / "etc/passwd").read_text().splitlines():
        fields = line.split(":")
        if fields[0] == name:
            return int(fields[2])
    raise RigError(f"the root file system {rootfs_path} has no account {name}")
