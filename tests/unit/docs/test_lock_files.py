"""Tests that the lock files agree with pyproject.toml and constraints.txt."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = PROJECT["project"]["optional-dependencies"]
LOCKED_EXTRAS = EXTRAS.keys() - {"pyslurm", "examples", "test", "lint", "docs"}
EXPECTED = [*PROJECT["project"]["dependencies"], *PROJECT["build-system"]["requires"]]


def locked(name: str) -> Iterator[tuple[str, str, str]]:
    """Yield package, version and the rest of each requirement, which has its hashes."""
    text = re.sub(r"#.*", "", (ROOT / name).read_text())
    for line in text.replace("\\\n", " ").splitlines():
        if line.strip():
            found = re.fullmatch(r"([a-z0-9.-]+)==([^ ;]+)((?: ;[^\\-]+)?(?: +--hash=sha256:[0-9a-f]{64})+)", line)
            assert found is not None, line
            yield found[1], found[2], found[3]


@pytest.mark.parametrize(
    ("file", "wanted"),
    [
        ("requirements.txt", EXPECTED),
        ("requirements-extras.txt", [*EXPECTED, *(one for extra in LOCKED_EXTRAS for one in EXTRAS[extra])]),
    ],
)
def test_lock_file_pins_and_hashes_each_dependency(file: str, wanted: list[str]) -> None:
    versions = {package: version for package, version, _ in locked(file)}
    pinned = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    for requirement in map(Requirement, wanted):
        package = canonicalize_name(requirement.name)
        assert requirement.specifier.contains(versions[package]), f"{requirement}: make lock"
    for name, version in pinned.items():
        assert versions.get(canonicalize_name(name), version) == version, f"{name}: make lock"
