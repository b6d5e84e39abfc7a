"""One host with a spawner for each module."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.site.rig import Host, Hub, Spawner


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    """A host; in a directory of its own, because other users enter it."""
    place = Path(tempfile.mkdtemp(prefix="ffdl-site-"))
    made = Host(place)
    yield made
    made.close()
    shutil.rmtree(place)


@pytest.fixture
def spawner(host: Host) -> Iterator[Spawner]:
    """A spawner on the host, with no daemon of an earlier test."""
    host.configure()
    made = Spawner(host)
    yield made
    made.close()


@pytest.fixture
def hub(host: Host, spawner: Spawner) -> Iterator[Hub]:
    """A hub beside the spawner; oskar is an operator, and members of the group `users` are auditors."""
    shutil.rmtree(host.place / "hub", ignore_errors=True)
    made = Hub(host, operators=["oskar"], auditors=["@users"])
    yield made
    made.close()
