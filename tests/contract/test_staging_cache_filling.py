"""Ten who ask for the same download it once, whatever happens to who fills the cache."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

from ffdl_batch.domain.data.staging_protocol import Cached, Note
from tests.cache_rig import FILES, NOISE, CacheRig, cached, until
from tests.fakes.fault_proxy import Rule
from tests.staging_rig import MIB, rig

__all__ = ["cached", "rig"]


def begun(cached: CacheRig, at_least: int) -> Callable[[], bool]:
    return lambda: cached.downloads()["set/deep/b.bin"] >= at_least


def slow_after(cached: CacheRig, parts: int) -> Rule:
    """So many parts of the large object come at once, the next one takes longer than any test looks away."""
    slow = Rule("GET", "deep/b.bin", pause_s=2.0)
    cached.staging.proxy.rules = [Rule("GET", "deep/b.bin", times=parts), slow]
    return slow


def test_staging_cache_waiter_resumes_partial_download_after_filler_is_killed(cached: CacheRig) -> None:
    cached.put()
    slow = slow_after(cached, 2)
    slow.pause_s = 30.0
    filler = cached.start(cached.task(parallel=1))
    until(begun(cached, 2 * MIB + 65536), "two parts have come")
    waiting = cached.start(cached.task(parallel=1))
    until(lambda: waiting.of(Note), "it waits")
    filler.process.kill()
    filler.process.wait()
    slow.pause_s = 0
    waiting.done()
    assert waiting.of(Cached)[0].filled
    assert cached.files(waiting.task) == FILES
    assert len(NOISE) < cached.downloads()["set/deep/b.bin"] <= len(NOISE) + MIB
    assert cached.half() == []


def test_staging_cache_replaces_hung_filler_and_tolerates_its_return(cached: CacheRig) -> None:
    cached.put()
    slow = slow_after(cached, 1)
    hung = cached.start(cached.task(parallel=1, cache={"stale_s": 2.0}))
    until(begun(cached, MIB), "a part has come")
    hung.process.send_signal(signal.SIGSTOP)
    slow.pause_s = 0
    other = cached.start(cached.task(cache={"stale_s": 2.0}))
    other.done()
    assert other.of(Cached)[0].filled
    hung.process.send_signal(signal.SIGCONT)
    hung.done()
    assert cached.files(hung.task) == cached.files(other.task) == FILES
    assert cached.half() == []
    assert len(cached.keys()) == 1


def test_staging_cache_waiter_downloads_directly_when_filler_makes_no_progress(cached: CacheRig) -> None:
    cached.put()
    cached.staging.proxy.rules = [Rule("GET", "deep/b.bin", times=1, hang_s=600)]
    filler = cached.start(cached.task(parallel=1))
    until(lambda: any("deep/b.bin" in path for _, path, _ in cached.staging.proxy.requests), "it asks")
    task = cached.task(cache={"patience_s": 0.5})
    done, said, notes = cached.run(task)
    assert (done.files, said) == (3, [])
    assert any("the cache is not used: who fills it has brought nothing" in note for note in notes)
    assert cached.files(task) == FILES
    filler.process.kill()
    filler.process.wait()


def test_staging_cache_next_job_resumes_download_after_store_failure(cached: CacheRig) -> None:
    cached.put()
    cached.staging.proxy.rules = [Rule("GET", "deep/b.bin", after=2, status=500, code="InternalError")]
    outcome = cached.staging.run(cached.task(parallel=1, tries=2))
    assert (outcome.status, outcome.failed.code) == (75, "S302")
    came = cached.downloads()["set/deep/b.bin"]
    assert came == 2 * MIB
    cached.staging.proxy.rules = []
    task = cached.task()
    cached.run(task)
    assert cached.files(task) == FILES
    assert cached.downloads()["set/deep/b.bin"] == len(NOISE)


def test_staging_cache_keys_entry_by_content_when_object_changes_during_download(cached: CacheRig) -> None:
    cached.put()
    changes = [b"newer"]

    def change(method: str, path: str) -> None:
        if method == "GET" and path.endswith("/a.txt") and changes:
            cached.staging.put("set/a.txt", changes.pop())

    cached.staging.proxy.before = change
    task = cached.task()
    _, (said,), _ = cached.run(task)
    assert cached.files(task) == FILES | {"a.txt": b"newer"}
    assert cached.keys() == [said.key]
    again = cached.task()
    assert not cached.run(again)[1][0].filled


def test_staging_cache_waits_for_remote_filler_until_its_heartbeats_stop(cached: CacheRig) -> None:
    cached.put()
    _, (said,), _ = cached.run(cached.task())
    shutil.rmtree(Path(said.tree).parent)
    elsewhere = f"{cached.shelf.root}/filling/{said.key}.there"
    Path(elsewhere).mkdir()
    owner = {"host": "elsewhere", "boot": "b", "pid": 17, "token": "there"}
    Path(cached.shelf.fill_lock(said.key)).write_text(json.dumps(owner))
    waiting = cached.start(cached.task(cache={"stale_s": 10.0}))
    until(lambda: waiting.of(Note), "it waits")
    for beat in range(1, 24):
        Path(elsewhere, "fresh").write_text(json.dumps({"beat": beat, "files": 1}))
        Path(elsewhere, "fresh").replace(f"{elsewhere}/signs")
        time.sleep(0.5)
    assert waiting.process.poll() is None
    waiting.done()
    assert [note.why for note in waiting.of(Note)] == ["waits for process 17 on elsewhere, which fills the cache"]
    assert waiting.of(Cached)[0].filled
    assert cached.files(waiting.task) == FILES
    assert cached.half() == [f"{said.key}.there"]
    os.utime(f"{elsewhere}/signs", (1000, 1000))
    os.utime(elsewhere, (1000, 1000))
    cached.put("more")
    cached.run(cached.task("more"))
    assert cached.half() == []
