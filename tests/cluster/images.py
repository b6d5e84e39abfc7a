"""Learner images, built by the project's own builder in the test cluster's root file system, which has Apptainer.

    python -m tests.cluster.images --out DIR NAME ...

For the cluster's tests, which keep them beside the cluster's cache, and for `make images` on a machine that has no
Apptainer of its own. Standard library only.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.cluster.rig import Cluster, RigError
from tests.cluster.rig.builder import build_rootfs
from tests.cluster.rig.chroot import Chroot

CHECKOUT = Path(__file__).resolve().parents[2]
IMAGES = "/shared/images"


def cache_directory() -> Path:
    """Where downloads and built things are kept between runs."""
    base = os.environ.get("FFDL_TEST_CACHE")
    default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ffdl-batch-tests"
    return Path(base) if base else default


def build_image(name: str, suite: str = "sid") -> Path:
    """``<name>.sif`` in the cache, built by ``containers/build.py`` in the cluster's root file system.

    The root file system stays as it is: the build sees it through an overlay that goes with the build. It has the
    host's network (the nodes have none), because it installs Debian packages.
    """
    recipe = hashlib.sha256()
    for path in (CHECKOUT / "containers" / "build.py", CHECKOUT / "containers" / f"{name}.def"):
        recipe.update(path.read_bytes())
    directory = cache_directory() / "images"
    directory.mkdir(parents=True, exist_ok=True)
    target = directory / f"{name}-{recipe.hexdigest()[:12]}.sif"
    if target.exists():
        return target
    rootfs = build_rootfs(suite)
    log = directory / f"{name}.log"
    with tempfile.TemporaryDirectory(prefix="building-", dir=directory) as work:
        try:
            _build(Path(work), rootfs, log, name)
        except RigError as error:
            raise RigError(f"image {name} could not be built; the whole log is {log}: {error}") from error
        (Path(work) / "out" / f"{name}.sif").rename(target)
    return target


def _build(work: Path, rootfs: Path, log: Path, name: str) -> None:
    for directory in ("upper", "scratch", "root", "out", "tmp"):
        (work / directory).mkdir()
    options = f"lowerdir={rootfs},upperdir={work / 'upper'},workdir={work / 'scratch'}"
    subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, str(work / "root")], check=True)
    try:
        binds = ((CHECKOUT / "containers", "/mnt/containers"), (work / "out", "/mnt/out"), (work / "tmp", "/var/tmp"))
        chroot = Chroot(work / "root", log, binds)
        packing = ("--mksquashfs-args", "-Xcompression-level 1")  # gzip's: the fastest, and read by all that read SIFs
        command = ["python3", "/mnt/containers/build.py", "--out", "/mnt/out", *packing, name]
        chroot.run(shlex.join(command), env={"APPTAINER_TMPDIR": "/var/tmp", "APPTAINER_CACHEDIR": "/var/tmp/cache"})
    finally:
        subprocess.run(["umount", str(work / "root")], check=True)


def provide_image(cluster: Cluster, name: str) -> str:
    """The path of ``<name>.sif`` on the nodes."""
    built = build_image(name)
    target = f"{IMAGES}/{name}.sif"
    placed = cluster.path("ctl", target)
    placed.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    if not placed.exists():
        shutil.copyfile(built, placed)
        placed.chmod(0o644)
    return target


def main() -> int:
    """Build the named images and copy them to a directory."""
    parser = argparse.ArgumentParser(description="Build learner images in the test cluster's root file system.")
    parser.add_argument("--out", type=Path, default=Path("build/images"), help="directory for the images")
    parser.add_argument("names", nargs="+", metavar="NAME", help="definitions in containers/")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.names:
        try:
            built = build_image(name)
        except RigError as error:
            print(f"images: {error}", file=sys.stderr)
            return 1
        target = options.out / f"{name}.sif"
        shutil.copyfile(built, target)
        print(f"{target}: {target.stat().st_size / 1024**2:.0f} MiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
