"""From nothing to the layers that nodes are stacked from. Minutes without a cache, a tenth of a second with it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from . import carried, host, layers, python_layers, record, rootfs, sources
from .console import say
from .errors import RigError
from .layers import Layer
from .python_layers import Project
from .rootfs import Recipe
from .suites import DONOR, Suite, Supply, suite_named


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
    host.require_root()
    host.require_tools("patchelf" if row.carries else "")
    host.require_kernel()
    cache = host.cache_dir()
    cache.mkdir(parents=True, exist_ok=True)
    recipe = Recipe.of(suite)
    if fresh:
        _forget_rootfs(cache / f"rootfs-{suite}-{recipe.key}")
    origin = sources.discover()
    root = rootfs.obtain(cache, recipe, origin)
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


def _venv(cache: Path, row: Suite, home: Layer, project: Project, checkout: Path) -> list[Layer]:
    """The venv for the Python of `home`, which compiles the checkout too; with pyslurm where that fits the suite's own
    Slurm."""
    slurm = python_layers.slurm_version(home) if row.python is Supply.OWN else ""
    pyslurm = python_layers.obtain_pyslurm(cache, home, slurm)
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
