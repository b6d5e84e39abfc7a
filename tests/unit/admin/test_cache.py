"""ffdl-admin cache trim: root brings all users' parts to the limit, by what it measures."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path

import pytest

from ffdl_batch.admin.main import ffdl_admin
from ffdl_batch.exit_handling import run_guarded
from ffdl_batch.staging.cache.trim import acting_as, trim
from ffdl_batch.staging.cache.user_cache import Shelf, Usage, lock, open_shelf
from tests.filled_cache import fill

OTHER = 4321
ROOM = 120_000
"""What an entry of 100,000 bytes takes on the disk, and a little more."""


@pytest.fixture(name="cache")
def made(tmp_path: Path) -> Path:
    cache = tmp_path / "cache"
    cache.mkdir()
    cache.chmod(0o1777)
    for above in (tmp_path, *tmp_path.parents):
        if above.stat().st_uid == os.getuid() and not above.stat().st_mode & 0o001:
            above.chmod(above.stat().st_mode | 0o011)
    return cache


def names(cache: Path, uid: int) -> list[str]:
    return sorted(path.name for path in (cache / str(uid) / "entries").iterdir())


def give(cache: Path, uid: int) -> None:
    """Have another user have what we filled."""
    mine = cache / str(os.getuid())
    mine.rename(cache / str(uid))
    for path in (cache / str(uid), *(cache / str(uid)).rglob("*")):
        os.chown(path, uid, uid, follow_symlinks=False)


def test_trim_removes_least_recently_used_entry_of_largest_user(tmp_path: Path, cache: Path) -> None:
    theirs = [fill(tmp_path, cache, f"theirs{n}", 100_000) for n in range(3)]
    for age, said in enumerate(theirs):
        os.utime(said.lock, (1000 + age, 1000 + age))
    give(cache, OTHER)
    mine = fill(tmp_path, cache, "mine", 100_000)
    os.utime(mine.lock, (1, 1))
    done = trim(str(cache), 3 * ROOM)
    assert (done.removed, done.over, done.users) == (1, 0, 2)
    assert names(cache, OTHER) == sorted(said.key for said in theirs[1:])
    assert names(cache, os.getuid()) == [mine.key]
    assert 200_000 <= json.loads((cache / str(OTHER) / "usage.json").read_text())["bytes"] < 3 * ROOM
    assert (cache / str(OTHER) / "usage.json").stat().st_uid == OTHER


def test_trim_measures_disk_usage_instead_of_published_usage(tmp_path: Path, cache: Path) -> None:
    for n in range(3):
        record = Path(fill(tmp_path, cache, f"theirs{n}", 100_000).tree).parent / "entry.json"
        record.write_text(json.dumps({**json.loads(record.read_text()), "size_bytes": 1}))
    Shelf(str(cache), os.getuid()).publish(Usage(0))
    give(cache, OTHER)
    assert trim(str(cache), ROOM).removed == 2
    assert len(names(cache, OTHER)) == 1


def test_trim_frees_space_for_user_below_equal_share(tmp_path: Path, cache: Path) -> None:
    for n in range(4):
        fill(tmp_path, cache, f"theirs{n}", 100_000)
    give(cache, OTHER)
    open_shelf(str(cache), os.getuid()).publish(Usage(0, 2 * ROOM, time.time()))
    assert trim(str(cache), 4 * ROOM).removed == 2
    open_shelf(str(cache), os.getuid()).publish(Usage(0, 3 * ROOM, time.time()))
    assert trim(str(cache), 4 * ROOM).removed == 0
    assert len(names(cache, OTHER)) == 2


def test_cache_trim_keeps_entries_in_use_and_exits_1(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = fill(tmp_path, cache, "mine", 100_000)
    monkeypatch.setenv("FFDL_CACHE_DIR", str(cache))
    monkeypatch.setenv("FFDL_CACHE_BYTES", "1000")
    monkeypatch.setattr("sys.argv", ["ffdl-admin", "cache", "trim"])
    held = lock(said.lock, exclusive=False, wait=True)
    assert held is not None
    assert run_guarded(ffdl_admin, "ffdl-admin") == 1
    assert "above the limit are in use" in capsys.readouterr().out
    os.close(held)
    assert run_guarded(ffdl_admin, "ffdl-admin") == 0
    assert re.fullmatch(r"0 users hold 0 B; 1 entry of [0-9.]+ KiB was removed\n", capsys.readouterr().out)
    assert names(cache, os.getuid()) == []
    monkeypatch.setenv("FFDL_CACHE_DIR", str(cache / "none"))
    assert run_guarded(ffdl_admin, "ffdl-admin") == 69


def test_trim_removes_misowned_parts_and_symlinks_without_following_them(tmp_path: Path, cache: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("1")
    outside.chmod(0o755)
    (cache / "77").mkdir()
    os.chown(cache / "77", OTHER, OTHER)
    (cache / "78").symlink_to(outside)
    fill(tmp_path, cache, "theirs", 100_000)
    give(cache, OTHER)
    entries = cache / str(OTHER) / "entries"
    (entries / ("f" * 64)).symlink_to(outside)
    os.chown(entries / ("f" * 64), OTHER, OTHER, follow_symlinks=False)
    done = trim(str(cache), 0)
    assert len(done.notes) == 2
    assert not (cache / "77").exists()
    assert not (cache / "78").is_symlink()
    trim(str(cache), 1)
    assert (outside / "kept").read_text() == "1"


@pytest.mark.parametrize(
    ("pipe", "left"), [("entries/{entry}/entry.json", 0), ("filling/{key}.lock", 0), ("locks/.now", 1)]
)
def test_trim_is_not_stopped_by_pipes_and_deep_json_in_part_of_user(
    tmp_path: Path, cache: Path, pipe: str, left: int
) -> None:
    key, root = "f" * 64, Path(Shelf(str(cache), os.getuid()).root)
    fill(tmp_path, cache, "theirs", 100_000)
    (root / "usage.json").write_text("[" * 4096)
    (root / "filling" / f"{key}.token").mkdir()
    os.utime(root / "filling" / f"{key}.token", (1, 1))
    path = root / pipe.format(key=key, entry=names(cache, os.getuid())[0])
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    give(cache, OTHER)
    fill(tmp_path, cache, "mine", 100_000)
    done = trim(str(cache), 1)
    assert (len(names(cache, os.getuid())), len(names(cache, OTHER)), len(done.notes)) == (0, left, left)


def test_acting_as_switches_effective_ids_and_restores_them(tmp_path: Path) -> None:
    with acting_as(OTHER, OTHER):
        assert (os.geteuid(), os.getegid(), os.getgroups()) == (OTHER, OTHER, [])
    assert os.geteuid() == os.getuid()
