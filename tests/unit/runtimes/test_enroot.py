"""The argv of learners in containers of enroot."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from ffdl_batch.domain.launch.placeholders import fill
from ffdl_batch.runtimes.apptainer import Container, NetworkMode
from ffdl_batch.runtimes.enroot import ENVIRONMENT, PREPARE, enroot_argv, image_for_enroot, mount_text
from ffdl_batch.runtimes.learner_contract import SHELL, Bind

VALUES = {"scratch": "/tmp/s", "learner_id": "2", "env_file": "/tmp/s/e", "gpu_count": "3"}


@pytest.mark.parametrize(("devices", "gpus"), [(False, "none"), (True, "3")])
def test_enroot_argv_mounts_directories_in_order_and_enters_with_environment_file(devices: bool, gpus: str) -> None:
    binds = (Bind("/a", "/job"), Bind("/b", "/d", read_only=True))
    argv = enroot_argv(Container("/i.sqsh", binds, NetworkMode.HOST, devices=devices))
    filled = [fill(part, VALUES) for part in argv]
    assert filled[:8] == ["bash", "-c", PREPARE, "ffdl-enroot", "/i.sqsh", "/tmp/s", "/tmp/s/learner-2", gpus]
    mounts = f"/a:/job:none:x-create=auto,bind,rw /b:/d:none:x-create=auto,bind,ro /tmp/s/e:{ENVIRONMENT}:none"
    assert " ".join(filled[8:14]).replace("-m ", "") == f"{mounts}:x-create=auto,bind,ro"
    assert filled[14:17] == ["job", "bash", "-c"]
    assert tuple(filled[-len(SHELL) :]) == SHELL
    subprocess.run(["bash", "-n", "-c", PREPARE], check=True)


def test_enroot_argv_rejects_networks_other_than_the_nodes() -> None:
    for network in (NetworkMode.LOOPBACK, NetworkMode.JOIN):
        with pytest.raises(ValueError, match="node's network"):
            enroot_argv(Container("/i.sqsh", network=network))


@pytest.mark.parametrize("path", ["/a:b", "/a b", "/a\tb", "relative", ""])
def test_enroot_mount_rejects_path_that_a_field_of_fstab_cannot_hold(path: str) -> None:
    with pytest.raises(ValueError, match="enroot cannot mount"):
        mount_text(Bind(path, "/t"))
    with pytest.raises(ValueError, match="enroot cannot mount"):
        mount_text(Bind("/s", path))


@pytest.mark.parametrize(
    ("image", "name"),
    [
        ("/shared/x.sqsh", "/shared/x.sqsh"),
        ("docker://pytorch/pytorch:2.1", "docker://pytorch/pytorch:2.1"),
        ("docker://nvcr.io/nvidia/pytorch:24.01-py3", "docker://nvcr.io#nvidia/pytorch:24.01-py3"),
        ("docker://localhost/a/b", "docker://localhost#a/b"),
        ("docker://registry:5000/a", "docker://registry:5000#a"),
        ("docker://ubuntu:24.04", "docker://ubuntu:24.04"),
    ],
)
def test_image_is_named_as_enroot_names_it(image: str, name: str) -> None:
    assert image_for_enroot(image) == name


@pytest.mark.parametrize("image", ["/shared/x.sif", "oras://a.b/c:1", "library://a/b", ""])
def test_image_that_enroot_cannot_open_is_rejected(image: str) -> None:
    with pytest.raises(ValueError, match=r"enroot cannot open .*\.sqsh file"):
        image_for_enroot(image)


_ENROOT = """\
#!/bin/bash
case "$1" in
import) [ ! -e "$3" ] || { echo "File already exists: $3"; exit 1; }; : >"$3" ;;
create) [ ! -e "$ENROOT_DATA_PATH/full" ] || { echo "No space left on device"; exit 1; } ;;
start) echo started ;;
esac
"""


def test_enroot_imports_again_after_an_import_whose_image_could_not_be_unpacked(tmp_path: Path) -> None:
    program = tmp_path / "bin" / "enroot"
    full = tmp_path / "scratch" / "enroot" / "full"
    program.parent.mkdir()
    full.parent.mkdir(parents=True)
    program.write_text(_ENROOT)
    program.chmod(0o755)
    full.touch()
    scratch = str(tmp_path / "scratch")
    argv = ["bash", "-c", PREPARE, "ffdl-enroot", "docker://ubuntu", scratch, f"{scratch}/learner-1", "none", "job"]
    environ = {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}"}
    first = subprocess.run(argv, env=environ, capture_output=True, text=True, check=False)
    assert (first.returncode, first.stdout) == (255, "No space left on device\n")
    full.unlink()
    second = subprocess.run(argv, env=environ, capture_output=True, text=True, check=False)
    assert (second.returncode, second.stdout) == (0, "started\n")
