"""What a daemon imports stays in its memory, and a site runs one daemon for each user."""

from __future__ import annotations

import subprocess
import sys

import pydantic.v1

from ffdl_batch.daemon.main import _without_pydantic_v1

LATER = (
    "alembic",
    "sqlalchemy.orm",
    "pydantic.v1",
    "smtplib",
    "http.server",
    "yaml",
    "ffdl_slurm",
    "ffdl_kubernetes",
    "ffdl_local",
    "ffdl_batch.staging.program",
    "ffdl_batch.notify.mail",
    "ffdl_batch.notify.webhook",
)
"""Imported by the daemon only when it needs them."""
_SOURCE = """
import sys
from ffdl_batch.daemon.main import _without_pydantic_v1
with _without_pydantic_v1():
    import ffdl_batch.daemon.server
print(*(name for name in sys.argv[1:] if name in sys.modules))
import pydantic.v1
"""


def test_server_is_imported_without_modules_that_idle_daemon_does_not_need() -> None:
    argv = [sys.executable, "-I", "-c", _SOURCE, *LATER]
    done = subprocess.run(argv, check=False, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "", "")


def test_pydantic_v1_stays_if_it_is_imported_already() -> None:
    with _without_pydantic_v1():
        assert sys.modules["pydantic.v1"] is pydantic.v1
    assert sys.modules["pydantic.v1"] is pydantic.v1
