"""Run ffdl-admin in the process of the test."""

from __future__ import annotations

import sys

import pytest

from ffdl_batch.admin.main import ffdl_admin
from ffdl_batch.exit_handling import run_guarded


def run_admin(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: object
) -> tuple[int, str, str]:
    """Exit code, output and errors of ffdl-admin."""
    capsys.readouterr()
    monkeypatch.setattr(sys, "argv", ["ffdl-admin", *map(str, arguments)])
    code = run_guarded(ffdl_admin, "ffdl-admin", OSError)
    said = capsys.readouterr()
    return code, said.out, said.err
