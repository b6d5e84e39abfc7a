"""The controller's image without Docker: the archive that a node imports. Building it whole needs root and a mirror."""

from __future__ import annotations

import hashlib
import json
import runpy
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.unit.docs.dockerfile import read_dockerfile

CONTAINERS = Path(__file__).parents[3] / "containers"


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the program defines."""
    monkeypatch.syspath_prepend(str(CONTAINERS))
    monkeypatch.delitem(sys.modules, "build", raising=False)
    return runpy.run_path(str(CONTAINERS / "controller_image.py"))


def test_controller_image_parses_dockerfile_instructions(program: dict[str, Any]) -> None:
    file = CONTAINERS / "Dockerfile"
    wanted = [(one.stage, one.word, one.rest) for one in read_dockerfile(file)]
    assert list(map(tuple, program["instructions"](file.read_text()))) == wanted
    assert {one[1] for one in wanted} == {"ARG", "FROM", "RUN", "COPY", "ENV", "USER", "ENTRYPOINT", "CMD"}, (
        "each of them is heeded by make_root and write_archive"
    )
    copied = [rest for stage, word, rest in wanted if (stage, word) == (1, "COPY")]
    assert copied == ["--from=build /image/usr/local /usr/local"], "that is what make_root copies"


def test_controller_image_archive_has_one_layer_and_config(program: dict[str, Any], tmp_path: Path) -> None:
    root = tmp_path / "root"
    for name in ("etc/resolv.conf", "usr/local/bin/ffdl-controller", "var/lib/apt/lists/long"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    archive = tmp_path / "image.tar"
    program["write_archive"](archive, root, "mine:2")
    with tarfile.open(archive) as tar:
        (manifest,) = json.loads(tar.extractfile("manifest.json").read())  # type: ignore[union-attr]
        config = json.loads(tar.extractfile(manifest["Config"]).read())  # type: ignore[union-attr]
        (layer,) = manifest["Layers"]
        data = tar.extractfile(layer).read()  # type: ignore[union-attr]
        with tarfile.open(fileobj=tar.extractfile(layer)) as inside:
            names = {one.name for one in inside if one.isfile()}
    assert manifest["RepoTags"] == ["docker.io/library/mine:2"]
    assert config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(data).hexdigest()}"]
    assert names == {"./usr/local/bin/ffdl-controller"}
    said = config["config"]
    assert (said["User"], said["Entrypoint"], said["Cmd"]) == ("1000:1000", ["ffdl-controller"], ["pod"])
    assert said["Env"][0].startswith("PATH=/usr/local/sbin:/usr/local/bin:") and len(said["Env"]) == 2
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["image.tar"]


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("ffdl-batch-controller", "docker.io/library/ffdl-batch-controller:latest"),
        ("team/controller:1", "docker.io/team/controller:1"),
        ("registry.example.org:5000/controller", "registry.example.org:5000/controller:latest"),
        ("localhost/controller:1", "localhost/controller:1"),
    ],
)
def test_controller_image_full_name_adds_registry_and_tag(program: dict[str, Any], name: str, full: str) -> None:
    assert program["full_name"](name) == full
