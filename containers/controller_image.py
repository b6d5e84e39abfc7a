#!/usr/bin/env python3
"""Builds the controller's image where there is neither Docker nor a container registry: the commands of the Dockerfile
beside it, by chroot, in Debian as debootstrap makes it.

    controller_image.py [--name NAME] [--out FILE] [--mirror URL] [--suite NAME]

Writes an archive as ``docker save`` does, for ``ctr --namespace k8s.io images import``, ``docker load`` or ``podman
load``. Needs root, debootstrap, a Debian mirror (that of this machine's apt) and a Python package index (that of this
machine's pip: PIP_INDEX_URL and the like are passed on). Standard library alone. Exit status: 0 built, 1 a step failed,
2 usage, 69 a program is missing.
"""

# ruff: noqa: T201 - this is a command line program
from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import NamedTuple

from build import BuildError, machine_mirror

ROOT = Path(__file__).resolve().parents[1]
DOCKERFILE = Path(__file__).with_name("Dockerfile")
PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
AUTHORITIES, THERE = "/etc/ssl/certs/ca-certificates.crt", "/run/authorities.crt"
"""Whom this machine trusts, for pip: its package index may be the site's own."""
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_CHROOT = """\
mount --make-rprivate / 2>/dev/null || :
mount -t proc proc "$0/proc"
for file in /etc/resolv.conf /etc/hosts /etc/pip.conf; do
    [ -e "$file" ] || continue
    touch "$0$file"
    mount --bind "$file" "$0$file"
done
if [ -e "$2" ]; then
    touch "$0$3"
    mount --bind "$2" "$0$3"
fi
chroot "$0" /bin/sh -euc "$1"
"""


class Instruction(NamedTuple):
    """Of a Dockerfile; `stage` counts from 0, -1 is before the first."""

    stage: int
    word: str
    rest: str


def instructions(text: str) -> list[Instruction]:
    """All of them, with continued lines joined."""
    plain = re.sub(r"\\\n", " ", re.sub(r"(?m)^\s*#.*\n", "", text))
    found, stage = [], -1
    for line in filter(None, (line.strip() for line in plain.splitlines())):
        word, _, rest = line.partition(" ")
        stage += word == "FROM"
        found.append(Instruction(stage, word, re.sub(r"\s+", " ", rest.strip())))
    return found


def main(arguments: list[str] | None = None) -> int:
    """Build; see the module's text."""
    parser = argparse.ArgumentParser(description="Build the controller's image without Docker and without a registry.")
    parser.add_argument("--name", default="ffdl-batch-controller:1", help="of the image (default %(default)s)")
    parser.add_argument("--out", type=Path, default=Path("build/controller-image.tar"), help="default %(default)s")
    parser.add_argument("--mirror", default="", help="Debian mirror (default: that of this machine's apt)")
    parser.add_argument("--suite", default="trixie", help="Debian suite (default %(default)s)")
    options = parser.parse_args(arguments)
    try:
        mirror = options.mirror or machine_mirror(Path("/etc/apt"))
        if not mirror:
            raise BuildError("this machine's apt names no Debian mirror; give one: --mirror URL", 2)
        if shutil.which("debootstrap") is None:
            raise BuildError("debootstrap is not installed; install the package debootstrap", 69)
        options.out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="ffdl-controller-image-") as place:
            root = make_root(Path(place), options.suite, mirror)
            write_archive(options.out, root, options.name)
    except (BuildError, OSError) as error:
        print(f"controller_image.py: {error}", file=sys.stderr)
        return error.status if isinstance(error, BuildError) else 1
    print(f"{options.out}: {options.name}, {options.out.stat().st_size / 1024**2:.0f} MiB")
    return 0


def make_root(place: Path, suite: str, mirror: str) -> Path:
    """The image's root file system: the second stage, with what it copies of the first."""
    base, build = place / "base", place / "build"
    run(["debootstrap", "--variant=minbase", suite, str(base), mirror])
    run(["cp", "-a", str(base), str(build)])
    stages = instructions(DOCKERFILE.read_text(encoding="utf-8"))
    for one in (one for one in stages if (one.stage, one.word) == (0, "COPY")):
        *names, target = one.rest.split()
        for name in names:
            copy_in(ROOT / name, build, target, is_one=len(names) == 1 and not target.endswith("/"))
    for stage, root in ((0, build), (1, base)):
        env = dict(one.rest.split("=", 1) for one in stages if (one.stage, one.word) == (stage, "ENV"))
        for one in (one for one in stages if (one.stage, one.word) == (stage, "RUN")):
            run(["unshare", "--mount", "sh", "-euc", _CHROOT, str(root), one.rest, AUTHORITIES, THERE], env)
    shutil.copytree(build / "image/usr/local", base / "usr/local", symlinks=True, dirs_exist_ok=True)
    return base


def copy_in(source: Path, root: Path, target: str, *, is_one: bool) -> None:
    """As COPY does: a directory's content, a file below a directory."""
    place = root / target.lstrip("/")
    if source.is_dir():
        shutil.copytree(source, place, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
        return
    place = place if is_one else place / source.name
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, place)


def run(argv: list[str], more: dict[str, str] | None = None) -> None:
    """Raises BuildError with the end of what it said."""
    kept = {name: value for name, value in os.environ.items() if re.match(r"(?i)PIP_|[a-z]+_proxy$|PATH$", name)}
    if Path(AUTHORITIES).exists():
        kept["PIP_CERT"] = THERE
    env = {**kept, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive", **(more or {})}
    done = subprocess.run(
        argv, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False
    )
    if done.returncode:
        last = " | ".join((done.stdout + done.stderr).strip().splitlines()[-6:])
        raise BuildError(f"{' '.join(argv)} ended with {done.returncode}: {last}")


def write_archive(path: Path, root: Path, name: str) -> None:
    """One layer with all of `root`, as ``docker save`` writes it (Docker Image Specification v1.2)."""
    last = [one for one in instructions(DOCKERFILE.read_text(encoding="utf-8")) if one.stage == 1]
    said = {one.word: one.rest for one in last}
    layer = path.with_suffix(".layer")
    try:
        with tarfile.open(layer, "w") as tar:
            tar.add(root, ".", filter=_without_devices)
        with layer.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        config = {
            "architecture": ARCHITECTURES.get(platform.machine(), platform.machine()), "os": "linux",
            "config": {
                "User": said["USER"], "Env": [PATH, *(one.rest for one in last if one.word == "ENV")],
                "Entrypoint": json.loads(said["ENTRYPOINT"]), "Cmd": json.loads(said["CMD"]),
            },
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
            "history": [{"created_by": "containers/controller_image.py"}],
        }  # fmt: skip
        text = json.dumps(config, sort_keys=True).encode()
        named = f"{hashlib.sha256(text).hexdigest()}.json"
        manifest = [{"Config": named, "RepoTags": [full_name(name)], "Layers": [f"{digest}/layer.tar"]}]
        with tarfile.open(path, "w") as tar:
            _add(tar, named, text)
            tar.add(layer, f"{digest}/layer.tar")
            _add(tar, "manifest.json", json.dumps(manifest).encode())
    finally:
        layer.unlink(missing_ok=True)


def full_name(name: str) -> str:
    """With registry and tag, as nodes know images: a name without either is Docker Hub's, and ``latest``."""
    first, slash, _ = name.partition("/")
    if not slash:
        name = f"docker.io/library/{name}"
    elif not (set(first) & set(".:") or first == "localhost"):
        name = f"docker.io/{name}"
    return name if ":" in name.rpartition("/")[2] else f"{name}:latest"


def _without_devices(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Runtimes make devices, and say what this machine's network is not."""
    is_left = member.name.startswith(("./proc/", "./run/", "./sys/", "./var/cache/apt/", "./var/lib/apt/lists/"))
    is_ours = member.name in ("./etc/resolv.conf", "./etc/hostname", "./etc/pip.conf")
    return None if member.isdev() or is_left or is_ours else member


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    tar.addfile(member, io.BytesIO(data))


if __name__ == "__main__":
    sys.exit(main())
