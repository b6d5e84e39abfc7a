"""What the installer of `ffdl setup` reports when a host lacks space, an index or a part of Python."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from ffdl_batch.client.setup import installer
from ffdl_batch.client.setup.wheels import Target, last_error


def test_installer_reports_lack_of_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=7 << 20))
    assert installer.main(["facts", str(tmp_path)]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer == {"failed": "space", "message": f"7 MiB are free in {tmp_path}, 300 MiB are needed"}


@pytest.mark.parametrize(
    ("output", "kind"),
    [
        ("ERROR: Could not install packages due to an OSError: [Errno 122] Disk quota exceeded", "space"),
        ("OSError: [Errno 28] No space left on device", "space"),
        ("ERROR: No matching distribution found for alembic>=1.16", "network"),
        ("ERROR: click has an invalid wheel", "pip"),
    ],
)
def test_installer_classifies_what_pip_prints(output: str, kind: str) -> None:
    assert installer.classify(output, "pip") == kind


def test_platform_tags_follow_the_libc_of_the_host() -> None:
    glibc = list(Target("3.11", "x86_64", "2.28").platforms)
    assert glibc[0] == "manylinux_2_28_x86_64" and glibc[-3:-2] == ["manylinux2014_x86_64"]
    assert list(Target("3.12", "aarch64", "").platforms) == ["musllinux_1_2_aarch64", "musllinux_1_1_aarch64"]


def test_last_error_prefers_errors_of_pip() -> None:
    assert last_error(["ERROR: a", "[notice] new pip"]) == "ERROR: a"
    assert last_error([]) == "no output"
