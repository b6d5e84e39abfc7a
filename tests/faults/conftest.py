"""Mounts and fakes of a test's own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.scheduler_harness import FakeSlurmHarness
from tests.private_mounts import SmallDisk, private_mounts


@pytest.fixture
def own_mounts() -> Iterator[None]:
    """What the test mounts, it and its processes alone see."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount file systems; the test run as root does")
    with private_mounts():
        yield


@pytest.fixture
def disk(tmp_path: Path, own_mounts: None) -> SmallDisk:
    """A file system that is soon full."""
    made = SmallDisk(tmp_path / "disk")
    made.mount()
    return made


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[FakeSlurmHarness]:
    """The fake cluster."""
    harness = FakeSlurmHarness(tmp_path)
    try:
        yield harness
    finally:
        harness.close()
