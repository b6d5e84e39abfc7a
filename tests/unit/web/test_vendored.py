"""Libraries of the page are what their packages have, each with its licence."""

from __future__ import annotations

import hashlib
import tomllib
from pathlib import Path

import ffdl_batch.web

VENDOR = Path(ffdl_batch.web.__file__).with_name("static") / "vendor"
FILES = {one["name"]: one for one in tomllib.loads((VENDOR / "VENDORED.toml").read_text())["file"]}


def test_vendored_files_are_unchanged() -> None:
    found = {path.name for path in VENDOR.iterdir()} - {"VENDORED.toml", "LICENSES.txt"}
    assert found == set(FILES)
    for name, one in FILES.items():
        assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == one["sha256"], name


def test_licences_of_vendored_packages_are_beside_them() -> None:
    text = (VENDOR / "LICENSES.txt").read_text()
    for one in FILES.values():
        assert f"({one['package']}-{one['version']})" in text
