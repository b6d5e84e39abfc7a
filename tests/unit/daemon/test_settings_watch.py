"""When changed configuration files are read, and what keeps a daemon from restarting with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from ffdl_batch.config import load_settings
from ffdl_batch.daemon.settings_watch import SettingsWatch

ADAPTERS = cast("Any", type("Adapters", (), {"check": lambda _self, _new: None})())


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration file that the environment names."""
    file = tmp_path / "own.toml"
    file.write_text("lease_s = 20\n")
    monkeypatch.setenv("FFDL_CONFIG", str(file))
    monkeypatch.setenv("FFDL_STATE_DIR", str(tmp_path / "state"))
    return file


def read_twice(watch: SettingsWatch) -> list[bool]:
    """The results of two looks, because only a state that lasts counts."""
    return [watch.look(ADAPTERS), watch.look(ADAPTERS)]


def test_watch_reports_change_that_lasts_for_two_looks_and_was_not_undone(file: Path) -> None:
    watch = SettingsWatch(load_settings(), None)
    assert read_twice(watch) == [False, False]
    file.write_text("lease_s = 25\n")
    assert read_twice(watch) == [False, True]
    file.write_text("lease_s = 20 # as before\n")
    assert read_twice(watch) == [False, False]
    assert watch.problem == ""


def test_watch_keeps_settings_if_named_file_is_removed(file: Path) -> None:
    watch = SettingsWatch(load_settings(), None)
    file.unlink()
    assert read_twice(watch) == [False, False]
    assert f"FFDL_CONFIG names {file}, but it does not exist" in watch.problem


def test_daemon_is_not_startable_if_state_directory_cannot_be_written_to(file: Path, tmp_path: Path) -> None:
    watch = SettingsWatch(load_settings(), None)
    file.write_text("lease_s = 25\n")
    assert read_twice(watch) == [False, True]
    assert not watch.is_startable()
    assert watch.problem.startswith(f"changed settings are not used yet, because {tmp_path}/state cannot be written to")
    (tmp_path / "state").mkdir()
    assert watch.is_startable()
    assert watch.problem == ""
