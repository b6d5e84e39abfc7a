"""Fixtures that the client's and the command line's tests share."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.client.fake_daemon import FakeDaemon


@pytest.fixture
def short_dir() -> Iterator[Path]:
    """A directory whose path leaves room for a socket's name (107 bytes at most)."""
    with tempfile.TemporaryDirectory(prefix="ffdl-") as name:
        yield Path(name)


@pytest.fixture
def daemon(short_dir: Path) -> Iterator[FakeDaemon]:
    """A fake daemon that listens."""
    fake = FakeDaemon(short_dir / "s" / "ffdl.sock").start()
    yield fake
    fake.stop()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A small model directory."""
    root = tmp_path / "model"
    root.mkdir()
    (root / "train.py").write_text("print('hello')\n")
    return root


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    """A manifest; the fake daemon does not read it."""
    path = tmp_path / "manifest.yml"
    path.write_text("name: digits\n")
    return path
