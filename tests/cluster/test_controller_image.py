"""The Dockerfile's commands in root file systems that debootstrap makes: there is no Docker where this is tested."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path

import pytest

from tests.cluster.rig import host, layers, rootfs, sources
from tests.cluster.rig.chroot import Chroot
from tests.cluster.rig.python_layers import pip_environment
from tests.contract.controller_rig import ROOT
from tests.unit.docs.dockerfile import Instruction, read_dockerfile

pytestmark = pytest.mark.full

SUITE = "trixie"
MOST_MB = 100
PACKAGE = "--no-deps /src"


def instructions(stage: int, word: str) -> list[Instruction]:
    found = read_dockerfile(ROOT / "containers" / "Dockerfile")
    return [one for one in found if (one.stage, one.word) == (stage, word)]


def environment(stage: int) -> dict[str, str]:
    return dict(one.rest.split("=", 1) for one in instructions(stage, "ENV"))


def stage_layer(stage: int, commands: list[str]) -> Path:
    """Debian after these commands, from the cache or made now."""
    origin, constraints = sources.discover(), (ROOT / "constraints.txt").read_text()
    recipe = rootfs.Recipe(SUITE)

    def build(root: Path, log: Path) -> None:
        rootfs.debootstrap(root, log, recipe, origin)
        rootfs.connect(root, origin)
        Chroot(root, log).run("update-ca-certificates")
        (root / "src").mkdir()
        (root / "src" / "constraints.txt").write_text(constraints)
        for command in commands:
            Chroot(root, log).run(command, env={**pip_environment(), **environment(stage)})

    key = layers.digest(SUITE, str(stage), *commands, constraints)
    return layers.obtain(host.cache_dir(), f"controller-image-{stage}", key, build).path


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The root of the image, and what is copied into its /usr/local."""
    base = tmp_path_factory.mktemp("image")
    commands = [one.rest for one in instructions(0, "RUN")]
    build = stage_layer(0, [command for command in commands if PACKAGE not in command])
    final = stage_layer(1, [one.rest for one in instructions(1, "RUN")])
    for line in instructions(0, "COPY"):
        for name in line.rest.split()[:-1]:
            source, target = ROOT / name, base / "src" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            copy = shutil.copytree if source.is_dir() else shutil.copy
            copy(source, target)
    shutil.copytree(build / "image" / "usr" / "local", base / "image" / "usr" / "local", symlinks=True)
    inside = Chroot(build, base / "log", ((base / "src", "/src"), (base / "image", "/image")))
    (package,) = [command for command in commands if PACKAGE in command]
    inside.run(package, env={**pip_environment(), **environment(0)})
    return final, base / "image" / "usr" / "local"


def run_in(image: tuple[Path, Path], base: Path, command: str) -> tuple[int, str]:
    """As the image's user; exit status and output."""
    root, local = image
    base.chmod(0o777)
    (user,) = [one.rest.partition(":")[0] for one in instructions(1, "USER")]
    become = f"setpriv --reuid {user} --regid {user} --clear-groups"
    script = f"code=0; {become} {command} >/w/out 2>&1 || code=$?; echo $code >/w/code"
    Chroot(root, base / "log", ((local, "/usr/local"), (base, "/w"))).run(script, env=environment(1))
    return int((base / "code").read_text()), (base / "out").read_text()


def test_controller_image_python_packages_stay_below_100_mb(image: tuple[Path, Path]) -> None:
    """What is ours of it: the rest is Debian and its Python."""
    sizes = [sum(path.lstat().st_size for path in root.rglob("*") if path.is_file()) / 1e6 for root in image]
    print(f"{sizes[0]:.0f} MB of Debian, {sizes[1]:.0f} MB of Python's packages")
    assert sizes[1] < MOST_MB


def test_controller_image_runs_head_controller_that_rejects_empty_launch_file(
    image: tuple[Path, Path], tmp_path: Path
) -> None:
    (tmp_path / "launch.json").write_text("{}")
    code, said = run_in(image, tmp_path, "ffdl-controller head --launch /w/launch.json")
    assert (code, "has the format None, which is none" in said) == (78, True), said


def test_controller_image_runs_staging_program_that_copies_file(image: tuple[Path, Path], tmp_path: Path) -> None:
    from ffdl_batch.domain.codec import to_plain
    from ffdl_batch.domain.data.staging_protocol import Direction, StageTask, Transfer
    from ffdl_batch.domain.data.store_kinds import StoreAddress, StoreKind

    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "a").write_text("data")
    task = StageTask(
        Direction.IN, (Transfer(StoreAddress(StoreKind.FILE, container="/w/store"), "", "/w/local"),), "/w/state"
    )
    (tmp_path / "task.json").write_text(json.dumps(to_plain(task)))
    code, said = run_in(image, tmp_path, "/usr/bin/python3 -I -m ffdl_batch.staging /w/task.json")
    assert code == 0, said
    assert (tmp_path / "local" / "a").read_text() == "data"


@pytest.mark.parametrize("library", ["botocore", "fsspec", "google.auth", "google.protobuf", "paramiko", "urllib3"])
def test_controller_image_imports_required_library(image: tuple[Path, Path], tmp_path: Path, library: str) -> None:
    code, said = run_in(image, tmp_path, f"/usr/bin/python3 -I -c {shlex.quote(f'import {library}')}")
    assert code == 0, said
