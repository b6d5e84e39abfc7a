"""Half-written files of daemons that were killed go; what is under way, and what has another name, stays."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ffdl_batch.services.half_written import CHANGED_S, HALF_WRITTEN_AGE_S
from ffdl_batch.services.janitor import sweep
from ffdl_batch.services.materialize import make_chunk
from tests.unit.services.array_site import with_arrays
from tests.unit.services.conftest import Site

LEFT_IN_STATE = ("state/store-logs.exit.n1.0a1b2c3d.5173.tmp", "state/load-model.start_time.n1.5173.tmp")
LEFT = (".control.json.0a1b2c3d", ".now-x7f_3k2p", "submit/.begun.d0e679a2", "../.manifest.yml.e6aa130b")


def leave(site: Site, place: Path, name: str, age_s: float) -> Path:
    path = place / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("half")
    at = site.clock.now() - age_s
    os.utime(path, (at, at))
    return path


@pytest.mark.parametrize(
    "name", [*LEFT, "final.json.n1.0a1b2c3d.5173.tmp", "claim/owner.json.n1.site.org.7.tmp", *LEFT_IN_STATE]
)
def test_janitor_removes_half_written_files_of_attempt_after_an_hour(site: Site, name: str) -> None:
    attempt = Path(site.attempt(site.deployed()).path)
    fresh = leave(site, attempt, name, HALF_WRITTEN_AGE_S - 1)
    assert sweep(site.platform) == 0
    assert fresh.exists()
    old = leave(site, attempt, name, HALF_WRITTEN_AGE_S + 1)
    assert sweep(site.platform) == 1
    assert not old.exists()


@pytest.mark.parametrize("name", [".tasks.0a1b2c3d", ".script.sh.d0e679a2", "../.manifest.yml.e6aa130b"])
def test_janitor_removes_half_written_files_of_native_array(site: Site, name: str) -> None:
    fleet = with_arrays(site)
    array = fleet.accept("array: 0-2")
    _, chunk = make_chunk(site.platform.root, array)
    old = leave(site, Path(chunk.path), name, HALF_WRITTEN_AGE_S + 1)
    assert sweep(site.platform) == 1
    assert not old.exists()


def test_janitor_removes_unfinished_lock_file(site: Site) -> None:
    old = leave(site, Path(site.platform.settings.state_dir), ".daemon.lock.host.4711", HALF_WRITTEN_AGE_S + 1)
    assert sweep(site.platform) == 1
    assert not old.exists()


@pytest.mark.parametrize("suffix", ["-journal", "-wal", "-shm"])
def test_janitor_removes_sqlite_side_files_of_unfinished_copy(site: Site, suffix: str) -> None:
    name = f".ffdl.sqlite3.0a1b2c3d{suffix}"
    old = leave(site, Path(site.platform.settings.state_dir), name, HALF_WRITTEN_AGE_S + 1)
    assert sweep(site.platform) == 1
    assert not old.exists()


def test_janitor_removes_unfinished_controller_build_directory(site: Site) -> None:
    built = leave(site, Path(site.platform.root.path, "controller", ".building-0ewzi4ur"), "part", 0.0).parent
    at = site.clock.now() - HALF_WRITTEN_AGE_S - 1
    os.utime(built, (at, at))
    assert sweep(site.platform) == 1
    assert not built.exists()


@pytest.mark.parametrize("target", ["itself", "results"])
def test_janitor_removes_half_written_symlink_without_following_it(site: Site, target: str) -> None:
    attempt = Path(site.attempt(site.deployed()).path)
    kept = leave(site, attempt, "results/kept", 0.0)
    link = attempt / LEFT_IN_STATE[0]
    link.symlink_to(link if target == "itself" else kept.parent)
    at = site.clock.now() - HALF_WRITTEN_AGE_S - 1
    os.utime(link, (at, at), follow_symlinks=False)
    assert sweep(site.platform) == 1
    assert not link.is_symlink()
    assert kept.exists()


USERS = ("state/model.n1.5173.tmp", "state/.now-saving", "state/.model.0a1b2c3d", "results/a.exit.n1.5173.tmp")


@pytest.mark.parametrize("name", [".paying", ".paying.log", ".paying-wal", "script.sh", ".ended-1", *USERS])
def test_janitor_keeps_files_that_are_not_half_written(site: Site, name: str) -> None:
    kept = leave(site, Path(site.attempt(site.deployed()).path), name, 2 * HALF_WRITTEN_AGE_S)
    assert sweep(site.platform) == 0
    assert kept.exists()


def test_janitor_skips_jobs_unchanged_for_long(site: Site) -> None:
    left = leave(site, Path(site.attempt(site.deployed()).path), LEFT[0], 2 * HALF_WRITTEN_AGE_S)
    site.clock.tick(CHANGED_S + 1)
    sweep(site.platform)
    assert left.exists()
