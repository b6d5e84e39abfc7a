"""Run ffdl-admin in the process of the test."""

from __future__ import annotations

import sys

import pytest

from ffdl_batch.admin.exit_handling import _guard
from ffdl_batch.admin.main import ffdl_admin


def run_admin(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: object
) -> tuple[int, str, str]:
    """Exit code, output and errors of ffdl-admin."""
    capsys.readouterr()
    monkeypatch.setattr(sys, "argv", ["ffdl-admin", *map(str, arguments)])
    code = _guard(ffdl_admin, "ffdl-admin")
    said = capsys.readouterr()
    return code, said.out, said.err
