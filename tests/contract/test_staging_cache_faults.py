"""A cache that is damaged, full or not to be trusted costs a note, never a job; who has more makes room."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ffdl_batch.staging.cache.capacity import discard, entries
from ffdl_batch.staging.cache.entry import CHECKED
from ffdl_batch.staging.cache.user_cache import Shelf, Usage, lock
from tests import preloaded
from tests.cache_rig import FILES, NOISE, CacheRig, cached
from tests.staging_rig import MIB, rig

__all__ = ["cached", "rig"]


def test_staging_cache_refills_damaged_entry_and_notes_it(cached: CacheRig) -> None:
    cached.put()
    _, (said,), _ = cached.run(cached.task())
    for damage in ("content", "added", "record", "list", "gone", "link"):
        tree, entry = Path(said.tree), Path(said.tree).parent
        (tree / "deep").chmod(0o755)
        victim = tree / "deep/b.bin"
        victim.chmod(0o644)
        if damage == "content":
            victim.write_bytes(NOISE[::-1])
        elif damage == "added":
            (tree / "deep/more").write_bytes(b"1")
        elif damage == "record":
            (entry / "entry.json").write_text("{")
        elif damage == "list":
            (entry / "files.jsonl").write_text('["a')
        else:
            victim.unlink()
            if damage == "link":
                victim.symlink_to("/etc/passwd")
        task = cached.task()
        _, (said,), (note,) = cached.run(task)
        assert said.filled and "was damaged" in note, damage
        assert cached.files(task) == FILES


def test_staging_cache_verifies_entry_digests_once_after_reboot(cached: CacheRig) -> None:
    cached.put()
    _, (said,), _ = cached.run(cached.task())
    victim, checked = Path(said.tree) / "deep/b.bin", Path(said.tree).parent / CHECKED
    found = victim.stat()
    victim.chmod(0o644)
    with victim.open("r+b") as file:
        file.write(b"\0\0\0\0")
    os.utime(victim, ns=(found.st_atime_ns, found.st_mtime_ns))
    assert cached.run(cached.task())[2] == []  # a quick look cannot see it
    checked.write_text("another-boot\n")
    task = cached.task()
    _, (said,), notes = cached.run(task)
    assert any("deep/b.bin has another content" in note for note in notes)
    assert cached.files(task) == FILES
    checked.write_text("another-boot\n")
    assert cached.run(cached.task())[2] == []
    assert len(checked.read_text().split()) == 2


def test_staging_cache_is_bypassed_when_its_disk_is_full(cached: CacheRig, tmp_path: Path) -> None:
    cached.put()
    cached.directory.mkdir()
    mounted = preloaded.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(cached.directory)], capture_output=True, check=False
    )
    assert mounted.returncode == 0, mounted.stderr
    try:
        task = cached.task()
        done, said, notes = cached.run(task)
    finally:
        preloaded.run(["umount", str(cached.directory)], check=True)
    assert (done.files, said) == (3, [])
    assert any("the cache is not used" in note for note in notes)
    assert cached.files(task) == FILES


def test_staging_cache_is_bypassed_when_write_fails_with_no_space(
    cached: CacheRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    cached.put()
    real = os.pwrite
    failed: list[int] = []

    def full(descriptor: int, data: Any, at: int) -> int:
        if not failed and at >= MIB:
            failed.append(at)
            raise OSError(28, "No space left on device")
        return real(descriptor, data, at)

    monkeypatch.setattr(os, "pwrite", full)
    task = cached.task()
    done, said, notes = cached.run(task)
    assert failed
    assert (done.files, said) == (3, [])
    assert any("No space left on device" in note for note in notes)
    assert cached.files(task) == FILES
    assert cached.half() == []


def make_untrustworthy(cached: CacheRig) -> Iterator[str]:
    """In one way after the other."""
    root, own = Path(cached.shelf.root), os.getuid()
    os.chown(cached.directory, 4321, 4321)
    yield "another's"
    os.chown(cached.directory, own, own)
    cached.directory.chmod(0o777)
    yield "open to all"
    cached.directory.chmod(0o755)
    root.mkdir()
    os.chown(root, 4321, 4321)
    yield "another's part"
    root.rmdir()
    cached.directory.rmdir()
    cached.directory.write_text("")
    yield "no directory"


def test_staging_cache_is_bypassed_when_directory_is_not_trustworthy(cached: CacheRig) -> None:
    cached.put()
    cached.directory.mkdir()
    for wrong in make_untrustworthy(cached):
        task = cached.task()
        done, said, notes = cached.run(task)
        assert (done.files, said, len(notes)) == (3, [], 1), wrong
        assert "the cache is not used" in notes[0]
        assert cached.files(task) == FILES


def test_staging_cache_evicts_least_recently_used_entry_that_is_not_locked(cached: CacheRig) -> None:
    for prefix in ("one", "two", "three", "four"):
        cached.put(prefix, {"x": prefix.encode() + NOISE})
    limit = {"limit_bytes": 11 * MIB}
    said = {prefix: cached.run(cached.task(prefix, cache=limit))[1][0] for prefix in ("one", "two", "three")}
    for age, prefix in enumerate(("two", "three", "one")):
        os.utime(said[prefix].lock, (1000 + age, 1000 + age))
    held = lock(said["two"].lock, exclusive=False, wait=True)
    assert held is not None
    four = cached.run(cached.task("four", cache=limit))[1][0]
    assert sorted(cached.keys()) == sorted([said["two"].key, said["one"].key, four.key])
    os.close(held)


@pytest.mark.parametrize("link", [True, False])
def test_staging_cache_entry_cannot_be_discarded_while_staging_uses_it(
    cached: CacheRig, monkeypatch: pytest.MonkeyPatch, link: bool
) -> None:
    cached.put()
    asked: list[bool] = []

    def give(shelf: Shelf, _limit_bytes: int) -> None:
        asked.append(any(discard(shelf, key) for key in shelf.names()))

    monkeypatch.setattr("ffdl_batch.staging.cache.cached_transfer.free_space", give)
    for _ in range(2):
        cached.run(cached.task(link=link))
    assert asked == [False, False]
    assert discard(cached.shelf, *cached.keys())


def test_staging_cache_is_bypassed_and_publishes_demand_when_all_entries_are_locked(cached: CacheRig) -> None:
    for prefix in ("one", "two"):
        cached.put(prefix, {"x": prefix.encode() + NOISE})
    limit = {"limit_bytes": 5 * MIB}
    _, (said,), _ = cached.run(cached.task("one", cache=limit))
    held = lock(said.lock, exclusive=False, wait=True)
    assert held is not None
    task = cached.task("two", cache=limit)
    done, none, notes = cached.run(task)
    assert (done.files, none) == (1, [])
    assert any("the cache is not used: it has no room" in note for note in notes)
    assert cached.files(task) == {"x": b"two" + NOISE}
    assert '"wanted": 3' in Path(cached.shelf.root, "usage.json").read_text()
    assert cached.half() == []
    os.close(held)


def test_staging_cache_evicts_for_other_user_only_up_to_equal_share(cached: CacheRig) -> None:
    for prefix in ("one", "two", "three"):
        cached.put(prefix, {"x": prefix.encode() + NOISE})
        cached.run(cached.task(prefix, cache={"limit_bytes": 12 * MIB}))
    assert len(cached.keys()) == 3
    other = Shelf(str(cached.directory), 4321)
    Path(other.root).mkdir(mode=0o711)
    other.publish(Usage(0, 4 * MIB, time.time()))
    os.chown(other.root, 4321, 4321)
    os.chown(f"{other.root}/usage.json", 4321, 4321)
    cached.run(cached.task("three", cache={"limit_bytes": 12 * MIB}))
    left = {seen.key for seen in entries(cached.shelf)}
    assert len(left) == 2
    Path(other.root, "usage.json").write_text(f'{{"bytes": 0, "wanted": 12000000, "wanted_at": {time.time()}}}')
    cached.run(cached.task("three", cache={"limit_bytes": 12 * MIB}))
    assert {seen.key for seen in entries(cached.shelf)} == left  # it wants more than an equal share
