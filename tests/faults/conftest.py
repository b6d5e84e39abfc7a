"""Mounts of a test's own."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.private_mounts import private_mounts


@pytest.fixture
def own_mounts() -> Iterator[None]:
    """What the test mounts, it and its processes alone see."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount file systems; the test run as root does")
    with private_mounts():
        yield
