"""A fixture of the controller's tests."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest


@pytest.fixture
def held() -> Iterator[threading.Event]:
    """What a hanging system call waits for; set in the end, so that no thread is left."""
    event = threading.Event()
    yield event
    event.set()
