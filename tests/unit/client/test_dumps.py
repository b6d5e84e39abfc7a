"""Limits of core dumps: of whoever holds values, and of the daemon that it starts."""

from __future__ import annotations

import re
import resource
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ffdl_batch.client.dumps import dump_limits, leave_no_dump
from tests.unit.client.test_start import Site, health_version, site

__all__ = ["site"]
HARD = dump_limits()[1]


@pytest.fixture
def soft() -> Iterator[int]:
    """A shell's limit in bytes that is nobody's default."""
    before = dump_limits()
    resource.setrlimit(resource.RLIMIT_CORE, (4096, HARD))
    yield 4096
    resource.setrlimit(resource.RLIMIT_CORE, before)


@pytest.mark.skipif(0 <= HARD < 4096, reason="no core dumps are allowed here")
def test_started_daemon_has_core_dump_limit_of_shell(site: Site, soft: int) -> None:
    dialling = replace(site.dialling, dumps=dump_limits())
    leave_no_dump()
    assert dump_limits() == (1, HARD), "no core of a program's, either (core_pattern with |)"
    health_version(dialling)
    limits = Path("/proc", site.pids.read_text().split()[0], "limits").read_text()
    assert re.search(rf"Max core file size +{soft} ", limits)
