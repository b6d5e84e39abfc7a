"""The cache over a real S3 server: what came once is there for the next, and for nobody else."""

from __future__ import annotations

import os
import shutil
import threading
import traceback
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from ffdl_batch.domain.data.staging_protocol import Cached, Note, Progress
from ffdl_batch.staging.cache.election import FillRight, try_for
from ffdl_batch.staging.cache.user_cache import Shelf
from ffdl_batch.staging.program import run_program
from tests.cache_rig import FILES, NOISE, CacheRig, Job, cached, until
from tests.fakes.s3_server import S3Server
from tests.staging_rig import MIB, lines_of, rig

__all__ = ["cached", "rig"]


@pytest.mark.parametrize("link", [True, False])
def test_staging_cache_serves_second_job_without_download(cached: CacheRig, link: bool) -> None:
    cached.put()
    cached.staging.put("set/hollow/", b"")
    first = cached.task(link=link)
    done, said, notes = cached.run(first)
    assert (done.files, done.skipped, len(said), said[0].filled, notes) == (3, 0, 1, True, [])
    assert done.bytes == 3 * MIB + 20
    downloaded = cached.downloads()
    assert downloaded == Counter({f"set/{name}": len(data) for name, data in FILES.items() if data})

    second = cached.task(link=link)
    done, said, notes = cached.run(second)
    assert (done.files, said[0].filled, said[0].bytes, notes) == (3, False, 3 * MIB + 20, [])
    assert (done.kept, done.bytes) == ((3, 0) if link else (0, 3 * MIB + 20))
    assert cached.downloads() == downloaded
    for task in (first, second):
        assert cached.files(task) == FILES
        assert (Path(task.transfers[0].local) / "hollow").is_dir()
        assert Path(task.transfers[0].local).is_symlink() is link
    assert len(cached.keys()) == 1
    cached.staging.require_no_secret()


def test_staging_cache_entries_are_read_only_and_private(cached: CacheRig) -> None:
    cached.put()
    _, (said,), _ = cached.run(cached.task())
    modes = {path.stat().st_mode & 0o777 for path in Path(said.tree).rglob("*") if path.is_file()}
    assert modes == {0o444}
    assert Path(said.tree).stat().st_mode & 0o777 == 0o555
    assert (Path(said.tree) / "deep").stat().st_mode & 0o777 == 0o555
    assert Path(cached.shelf.root).stat().st_mode & 0o777 == 0o711
    assert all(
        Path(cached.shelf.root, room).stat().st_mode & 0o777 == 0o700 for room in ("entries", "filling", "locks")
    )


def test_staging_cache_entry_is_unaffected_by_writes_to_job_copy(cached: CacheRig) -> None:
    cached.put()
    task = cached.task(link=False)
    cached.run(task)
    (Path(task.transfers[0].local) / "a.txt").write_bytes(b"mine")
    again = cached.task(link=False)
    assert cached.run(again)[2] == []
    assert cached.files(again) == FILES


def test_staging_cache_adds_entry_when_object_changes(cached: CacheRig) -> None:
    cached.put()
    cached.run(cached.task())
    cached.staging.put("set/a.txt", b"two")
    task = cached.task()
    cached.run(task)
    assert cached.files(task)["a.txt"] == b"two"
    assert len(cached.keys()) == 2


def test_staging_cache_downloads_once_for_concurrent_jobs(cached: CacheRig) -> None:
    cached.put()
    go_on = threading.Event()

    def wait(method: str, path: str) -> None:
        if path.endswith("/a.txt"):
            go_on.wait(600)

    cached.staging.proxy.before = wait
    links = [True, False] * 2
    jobs = [cached.start(cached.task(link=link, rate_line_s=0.2, cache={"stale_s": 20.0})) for link in links]
    until(lambda: sum(sees_who_fills(job) for job in jobs) == 3, "the others wait, and see how far it is")
    go_on.set()
    for job in jobs:
        job.done()
        assert cached.files(job.task) == FILES
    assert [job.of(Cached)[0].filled for job in jobs].count(True) == 1
    assert cached.downloads() == Counter({f"set/{name}": len(data) for name, data in FILES.items() if data})


def test_staging_cache_downloads_nothing_when_entry_appears_during_election(
    cached: CacheRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The entry gets its place after it is looked for, and before the right to fill it is asked for."""
    cached.put()
    cached.run(cached.task())
    (key,) = cached.keys()
    entry, aside = Path(cached.shelf.entry(key)), cached.directory / "aside"
    entry.rename(aside)

    def late(shelf: Shelf, key: str) -> FillRight | None:
        right = try_for(shelf, key)
        aside.rename(entry)
        return right

    monkeypatch.setattr("ffdl_batch.staging.cache.acquisition.try_for", late)
    task = cached.task()
    _, (line,), _ = cached.run(task)
    assert (line.filled, cached.files(task)) == (False, FILES)
    assert cached.downloads() == Counter({f"set/{name}": len(data) for name, data in FILES.items() if data})
    assert cached.half() == []


def sees_who_fills(job: Job) -> bool:
    waits = any("fills the cache" in note.why for note in job.of(Note))
    return waits and any(line.bytes == len(NOISE) for line in job.of(Progress))


def test_staging_cache_is_bypassed_when_target_directory_has_files(cached: CacheRig) -> None:
    cached.put()
    task = cached.task()
    Path(task.transfers[0].local).mkdir()
    (Path(task.transfers[0].local) / "mine").write_text("1")
    done, said, _ = cached.run(task)
    assert (done.files, said) == (3, [])
    assert set(cached.files(task)) == {*FILES, "mine"}


def test_staging_cache_swaps_empty_directory_for_link_and_back_without_cache(cached: CacheRig) -> None:
    cached.put()
    task = cached.task()
    local = Path(task.transfers[0].local)
    local.mkdir()
    cached.run(task)
    assert local.is_symlink()
    without = replace(task, cache=replace(cached.cache, directory="/proc/nothing"))
    cached.run(without)
    assert not local.is_symlink()
    assert cached.files(without) == FILES


def test_staging_cache_isolates_entries_of_different_users(cached: CacheRig, s3_server: S3Server) -> None:
    cached.put()
    cached.directory.mkdir()
    cached.directory.chmod(0o1777)
    cached.staging.directory.chmod(0o755)
    for above in (cached.staging.directory, *cached.staging.directory.parents):
        if above.stat().st_uid == 0 and not above.stat().st_mode & 0o001:
            above.chmod(above.stat().st_mode | 0o011)
    cached.run(cached.task())
    task = cached.task()
    home = cached.staging.directory / "other"
    home.mkdir()
    shutil.copy(cached.staging.secrets, home / "secrets.json")
    task = replace(task, state_dir=str(home / "state"), secrets_file=str(home / "secrets.json"))
    task = replace(task, transfers=(replace(task.transfers[0], local=str(home / "data")),))
    written = home / "task.json"
    written.write_text(cached.staging.written(task).read_text())
    for path in (home, *home.iterdir()):
        os.chown(path, 4321, 4321)
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.setgroups([])
            os.setgid(4321)
            os.setuid(4321)
            status = run_program(str(written), check=False, output=write)
            closed = 0
            for room in ("entries", "filling", "locks"):
                try:
                    list(Path(cached.shelf.root, room).iterdir())
                except PermissionError:
                    closed += 1
            os._exit(status or (0 if closed == 3 else 99))
        except BaseException:  # noqa: BLE001 - the child ends here
            traceback.print_exc()
            os._exit(98)
    os.close(write)
    with os.fdopen(read) as said:
        lines = lines_of(said.read())
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, lines
    (mine,) = [line for line in lines if isinstance(line, Cached)]
    assert mine.filled
    assert mine.tree.startswith(f"{cached.directory}/4321/")
    assert cached.files(task) == FILES
    usage = Path(cached.directory, "4321/usage.json")
    assert usage.stat().st_uid == 4321
    assert '"bytes"' in usage.read_text()
