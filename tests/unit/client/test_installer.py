"""The installer of `ffdl setup`: how it replaces an installation, and what it reports when a host lacks something."""

from __future__ import annotations

import json
import os
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


@pytest.fixture
def node_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home of the user who installs. Environments are empty, and no wheel comes."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(installer, "receive", lambda directory: directory.mkdir())
    monkeypatch.setattr(installer, "make_environment", lambda place: (place / "pyvenv.cfg").touch())
    monkeypatch.setattr(installer, "install_wheels", lambda *_: None)
    return tmp_path


def test_installation_replaces_older_one_and_keeps_it_for_running_daemons(
    node_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, made = node_home / "share", []
    directory.mkdir()
    for process_id in (1, 2, 3):
        monkeypatch.setattr(os, "getpid", lambda process_id=process_id: process_id)
        result = installer.install(directory, "ffdl_batch-9.9-py3-none-any.whl", "", uses_index=True)
        assert result == {"program": str(directory / "current/bin/ffdl"), "linked": True}
        made.append((directory / "current").readlink().name)
        os.utime(directory / made[-1] / "pyvenv.cfg", (process_id, process_id))
    assert sorted(path.name for path in directory.iterdir()) == sorted(["current", *made[1:]])
    assert (node_home / ".local/bin/ffdl-submit").readlink() == directory / "current/bin/ffdl-submit"


def test_installation_leaves_programs_of_others_and_earlier_installation_when_it_fails(
    node_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = node_home / ".local/bin/ffdl"
    other.parent.mkdir(parents=True)
    other.touch()
    directory = node_home / "share"
    directory.mkdir()
    assert installer.install(directory, "ffdl_batch-9.9-py3-none-any.whl", "", uses_index=True)["linked"] is False
    assert list(other.parent.iterdir()) == [other]
    before = sorted(directory.iterdir())

    def fail(*_: object) -> None:
        raise installer.Failed("pip", "no")

    monkeypatch.setattr(installer, "install_wheels", fail)
    with pytest.raises(installer.Failed):
        installer.install(directory, "ffdl_batch-9.9.1-py3-none-any.whl", "", uses_index=True)
    assert sorted(directory.iterdir()) == before


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
