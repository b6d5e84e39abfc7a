"""Images come from Debian's own registry, and Apptainer itself makes them SIF files, once per digest.

Apptainer is that of the nodes' root file system, which it sees through an overlay; no node has to run for it.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from ffdl_batch.domain.data.image_task import SIF, ImageTask, encode_image_task
from ffdl_batch.domain.data.staging_protocol import Cache, Cached
from ffdl_batch.host.fast_dataclass import dataclass
from tests.cluster.images import CHECKOUT, cache_directory
from tests.cluster.rig.builder import build
from tests.fakes.registry import Pusher
from tests.fakes.s3_server import free_port
from tests.staging_rig import lines_of

pytestmark = pytest.mark.full

PACKAGE = "docker-registry"


@dataclass(frozen=True, slots=True)
class Here:
    """Where all of it is."""

    directory: Path
    apptainer: Path
    registry: str


def registry_program() -> Path:
    """Debian's, unpacked beside the other things that tests download."""
    place = cache_directory() / PACKAGE
    program = place / "usr/bin/docker-registry"
    if not program.exists():
        place.mkdir(parents=True, exist_ok=True)
        subprocess.run(["apt-get", "download", PACKAGE], cwd=place, check=True, capture_output=True, timeout=600)
        (found,) = place.glob(f"{PACKAGE}_*.deb")
        subprocess.run(["dpkg", "-x", str(found), str(place)], check=True)
    return program


@pytest.fixture(name="registry")
def registry_on_loopback(tmp_path: Path) -> Iterator[str]:
    host = f"127.0.0.1:{free_port()}"
    config = tmp_path / "registry.yml"
    storage = f"storage: {{filesystem: {{rootdirectory: {tmp_path}/registry}}}}"
    config.write_text(f"version: 0.1\n{storage}\nhttp: {{addr: '{host}'}}\n")
    with (tmp_path / "registry.log").open("wb") as log:
        argv = [str(registry_program()), "serve", str(config)]
        process = subprocess.Popen(argv, stdout=log, stderr=log)
    try:
        for _ in range(3000):
            try:
                urllib.request.urlopen(f"http://{host}/v2/", timeout=60).close()
                break
            except OSError:
                assert process.poll() is None, (tmp_path / "registry.log").read_text()
                time.sleep(0.1)
        yield host
    finally:
        process.kill()
        process.wait()


@pytest.fixture(name="here")
def made(tmp_path: Path, registry: str) -> Iterator[Here]:
    rootfs = build("sid", CHECKOUT).layers[-1]
    for name in ("upper", "work", "root", "data"):
        (tmp_path / name).mkdir()
    root, data = shlex.quote(str(tmp_path / "root")), shlex.quote(str(tmp_path / "data"))
    options = f"lowerdir={rootfs},upperdir={tmp_path}/upper,workdir={tmp_path}/work"
    subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, str(tmp_path / "root")], check=True)
    steps = (
        "mount --make-rprivate /",
        f"mount -t proc proc {root}/proc",
        f"mkdir -p {root}{data}",
        f"mount --bind {data} {root}{data}",
        f'exec chroot {root} apptainer "$@"',
    )
    apptainer = tmp_path / "apptainer"
    inside = shlex.quote("; ".join(steps))
    apptainer.write_text(f'#!/bin/sh\nexec unshare --mount --pid --fork --kill-child sh -ec {inside} apptainer "$@"\n')
    apptainer.chmod(0o755)
    try:
        yield Here(tmp_path / "data", apptainer, registry)
    finally:
        subprocess.run(["umount", str(tmp_path / "root")], check=True)


def start(here: Here, tag: str, number: int) -> tuple[subprocess.Popen[bytes], Path]:
    cache = Cache(str(here.directory / "cache"), 10**10)
    task = ImageTask(f"docker://{here.registry}/tiny/one:{tag}", cache, str(here.apptainer))
    path, output = here.directory / f"task-{number}", here.directory / f"output-{number}"
    path.write_text(encode_image_task(task))
    argv = [sys.executable, "-m", "ffdl_batch.staging", "--image", str(path)]
    with output.open("wb") as file:
        env = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
        return subprocess.Popen(argv, stdout=file, stderr=subprocess.STDOUT, env=env), output


def ended(started: tuple[subprocess.Popen[bytes], Path]) -> Cached:
    process, output = started
    assert process.wait(timeout=600) == 0, output.read_text()
    (said,) = [line for line in lines_of(output.read_text()) if isinstance(line, Cached)]
    return said


def test_image_staging_builds_one_sif_per_digest_for_concurrent_requests(here: Here) -> None:
    push = Pusher(f"http://{here.registry}").push
    push("tiny/one", "v1", {"etc/hello": b"hello\n"})
    first = [ended(one) for one in [start(here, "v1", number) for number in range(4)]]
    assert [said.filled for said in first].count(True) == 1
    assert len({said.tree for said in first}) == 1
    with (Path(first[0].tree) / SIF).open("rb") as image:
        assert b"SIF_MAGIC" in image.read(64)
    told = subprocess.run(
        [str(here.apptainer), "inspect", "--json", f"{first[0].tree}/{SIF}"], capture_output=True, text=True, check=True
    )
    assert f"{here.registry}/tiny/one@sha256:" in told.stdout

    push("tiny/one", "same", {"etc/hello": b"hello\n"})
    push("tiny/one", "v1", {"etc/hello": b"other\n"})
    same, other = ended(start(here, "same", 8)), ended(start(here, "v1", 9))
    assert (same.key, same.filled) == (first[0].key, False)
    assert other.filled
    assert other.key != first[0].key
