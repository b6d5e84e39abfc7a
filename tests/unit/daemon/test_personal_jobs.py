"""The first start of a site's daemon takes over the jobs of the user's personal daemon, as a whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ffdl_batch.config import load_settings
from ffdl_batch.config.daemon_location import PlaceRefused, this_machine
from ffdl_batch.config.load import TAKEN_OVER
from ffdl_batch.daemon import personal_jobs
from ffdl_batch.daemon.personal_jobs import take_over_personal_jobs
from ffdl_batch.daemon.platform import open_platform
from ffdl_batch.host.running_clock import SystemClock
from ffdl_batch.store import open_store
from tests.unit.store.jobs import add_job


@pytest.fixture
def personal(tmp_path: Path) -> Path:
    """A personal state directory with one job, whose daemon has ended."""
    state = tmp_path / "home/.local/state/ffdl"
    state.mkdir(parents=True, mode=0o700)
    store = open_store(f"sqlite:///{state}/ffdl.sqlite3", clock=SystemClock())
    add_job(store)
    store.close()
    return state


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """The state directory of the site's daemon."""
    state = tmp_path / "site/state"
    state.mkdir(parents=True, mode=0o700)
    return state


def ids(state: Path) -> frozenset[str]:
    store = open_store(f"sqlite:///{state}/ffdl.sqlite3", clock=SystemClock())
    try:
        return store.job_ids()
    finally:
        store.close()


def test_jobs_are_copied_and_their_directories_stay(personal: Path, own: Path, tmp_path: Path) -> None:
    known = ids(personal)
    assert take_over_personal_jobs(own, personal)
    assert len(known) == 1 and ids(own) == known
    assert (own / "ffdl.sqlite3").stat().st_mode & 0o077 == 0
    environ = {"HOME": str(tmp_path / "home"), "FFDL_STATE_DIR": str(own)}
    settings = load_settings(cwd=tmp_path, environ=environ, site=True)
    assert settings.jobs_dir == str(personal)
    open_platform(settings).close()
    assert not (personal / "daemon.lock").exists()


def test_start_that_was_killed_is_completed_by_the_next_one(
    personal: Path, own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object) -> None:
        raise KeyboardInterrupt

    for name in ("stop_daemon", "acquire", "copy_database"):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(personal_jobs, name, die)
            take_over_personal_jobs(own, personal)
        assert (personal / TAKEN_OVER).exists() and not list(own.iterdir())
    assert take_over_personal_jobs(own, personal) and len(ids(own)) == 1


def test_failed_copy_ends_the_start_and_names_the_cause(personal: Path, own: Path) -> None:
    (personal / "ffdl.sqlite3").write_bytes(b"SQLite format 3\0" + b"damaged" * 900)
    with pytest.raises(PlaceRefused, match="cannot be taken over") as refused:
        take_over_personal_jobs(own, personal)
    assert "db check" in refused.value.cure and not (own / "ffdl.sqlite3").exists()


def test_copy_that_is_not_permitted_ends_the_start(personal: Path, own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a database the daemon would begin an empty one beside the marked jobs."""

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied", str(own))

    monkeypatch.setattr(personal_jobs, "copy_database", refuse)
    with pytest.raises(PlaceRefused, match="cannot be taken over"):
        take_over_personal_jobs(own, personal)


def test_jobs_of_daemon_on_another_host_stay_with_it(personal: Path, own: Path) -> None:
    machine = this_machine()
    lock = {"host": "login9", "pid": 7, "boot_id": machine.boot_id, "start_ticks": 1, "socket": "/x"}
    (personal / "daemon.lock").write_text(json.dumps(lock))
    assert not take_over_personal_jobs(own, personal)
    assert not (personal / TAKEN_OVER).exists() and not list(own.iterdir())


def test_nothing_is_taken_over_without_personal_database_or_if_home_is_closed(tmp_path: Path, own: Path) -> None:
    assert not take_over_personal_jobs(own, tmp_path / "none")
    (tmp_path / "none").mkdir()
    assert not take_over_personal_jobs(own, tmp_path / "none")
    assert not list(own.iterdir()) and not list((tmp_path / "none").iterdir())
