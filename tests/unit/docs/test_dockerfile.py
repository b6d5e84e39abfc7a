"""The Dockerfile of the controller's image: what can be said of it without building it."""

from __future__ import annotations

import fnmatch
import re
import subprocess
import sys
import tomllib
from pathlib import Path

from ffdl_batch.domain.data.store_kinds import StoreKind
from tests.unit.docs.dockerfile import read_dockerfile

ROOT = Path(__file__).parents[3]
FILE = ROOT / "containers" / "Dockerfile"
LIBRARIES = ("s3", "gcs", "http", "swift", "fsspec", "sftp", "tensorboard", "debug")
"""Extras of the staging program, of collectors and of `ffdl stack`."""


def instructions(word: str, stage: int | None = None) -> list[str]:
    found = read_dockerfile(FILE)
    return [one.rest for one in found if one.word == word and stage in (None, one.stage)]


def test_dockerfile_uses_only_debian_and_python_packages() -> None:
    assert instructions("FROM") == ["debian:${DEBIAN} AS build", "debian:${DEBIAN}"]
    assert instructions("ARG") == ["DEBIAN=trixie-slim"]
    assert not instructions("ADD")
    for command in instructions("RUN"):
        for step in re.split(r"&&|;|\|", command):
            assert step.split()[0] in ("apt-get", "pip", "rm"), step


def test_dockerfile_installs_tested_python_package_versions() -> None:
    assert "PIP_CONSTRAINT=/src/constraints.txt" in instructions("ENV", 0)
    for command in instructions("RUN", 0):
        for forbidden in ("--pre", "git+", "://", "--index-url"):
            assert forbidden not in command


def test_dockerfile_installs_only_controller_and_store_libraries() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = {re.split(r"[\[>=]", one)[0] for name in LIBRARIES for one in project["optional-dependencies"][name]}
    (command,) = [one for one in instructions("RUN", 0) if one.endswith("urllib3")]
    assert {word for word in command.split()[2:] if not word.startswith("-") and word != "/image"} == wanted
    assert any("--no-deps /src" in one for one in instructions("RUN", 0))
    spoken_to = {kind.value for kind in StoreKind} - {"file"}
    assert spoken_to <= set(project["optional-dependencies"])


def test_dockerfile_copies_only_existing_files_allowed_by_dockerignore() -> None:
    let_through = [line[1:] for line in (ROOT / ".dockerignore").read_text().split() if line.startswith("!")]
    for line in instructions("COPY", 0):
        for name in line.split()[:-1]:
            assert (ROOT / name).exists()
            assert any(fnmatch.fnmatch(name, pattern) for pattern in let_through)
    copied = {name for line in instructions("COPY", 0) for name in line.split()[:-1]}
    assert copied == set(let_through)


def test_controller_and_staging_import_without_third_party_libraries() -> None:
    """So nothing of the daemon's is missing where it is not installed."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import ffdl_batch.controller.head.head_controller\n"
        "import ffdl_batch.controller.node.entry, ffdl_batch.controller.pod.entry\n"
        "import ffdl_batch.staging.program, ffdl_batch.collectors.program"
    )
    subprocess.run([sys.executable, "-I", "-S", "-c", code, str(ROOT)], check=True)
