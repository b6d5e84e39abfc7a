"""Data comes from a real S3 server: whole, checked, once, and only into its directory."""

from __future__ import annotations

import fcntl
import hashlib
import os
import random
import re
import shutil
import subprocess
import threading
import time
import types
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ffdl_batch.domain.data.staging_protocol import FaultClass, Note, Progress, Retry
from tests.cache_rig import until
from tests.fakes.fault_proxy import Rule
from tests.fakes.s3_server import QuickServer, S3Server
from tests.staging_rig import MIB, SECRET, StagingRig, rig

__all__ = ["rig"]
NOISE = random.Random(7).randbytes(5 * MIB + 321)

MANY = int(os.environ.get("FFDL_TEST_STAGED_FILES", "1100"))


def test_stage_in_downloads_prefix_once_and_keeps_unchanged_files(rig: StagingRig) -> None:
    wanted = {"a.txt": b"one", "empty": b"", "deep/er/b.bin": NOISE[: 2 * MIB + 5], "deep/exactly": NOISE[:MIB]}
    for name, data in wanted.items():
        rig.put(f"set/{name}", data)
    rig.put("setting", b"is not below the prefix")

    first = rig.run(rig.task(prefix="set", rate_line_s=0.01)).done
    assert rig.files() == wanted
    assert (first.files, first.bytes, first.kept, first.skipped) == (4, sum(map(len, wanted.values())), 0, 0)

    rig.proxy.given.clear()
    second = rig.run(rig.task(prefix="set/"))
    assert (second.done.files, second.done.bytes, second.done.kept) == (4, 0, 4)
    assert not any("deep" in path for path in rig.proxy.given)
    assert second.of(Progress)[-1] == replace(
        second.of(Progress)[-1], files=4, files_total=4, bytes=first.bytes, bytes_total=first.bytes
    )


def test_stage_in_downloads_again_what_changed_remotely_or_locally(rig: StagingRig) -> None:
    for name in ("a", "b", "c"):
        rig.put(name, name.encode())
    rig.run(rig.task())
    rig.put("a", b"A")
    (rig.local / "b").write_bytes(b"x")
    outcome = rig.run(rig.task())
    assert rig.files() == {"a": b"A", "b": b"b", "c": b"c"}
    assert outcome.done.kept == 1


def test_stage_in_downloads_single_named_object_with_its_mtime(rig: StagingRig) -> None:
    rig.put("some/where/one.bin", b"1")
    rig.put("some/where/one.bin.old", b"2")
    assert rig.run(rig.task(prefix="some/where/one.bin")).done.files == 1
    assert rig.files() == {"one.bin": b"1"}
    found = rig.client.head_object(Bucket=rig.bucket, Key="some/where/one.bin")
    assert (rig.local / "one.bin").stat().st_mtime == found["LastModified"].timestamp()


def test_stage_in_downloads_only_objects_that_match_patterns(rig: StagingRig) -> None:
    for name in ("x/a.txt", "x/deep/b.txt", "x/c.bin"):
        rig.put(name, b"1")
    assert rig.run(rig.task(prefix="x", only=("*.txt",))).done.files == 2
    assert set(rig.files()) == {"a.txt", "deep/b.txt"}


ODD = ("/lead", "a//b", "../up", "x/../y", "x/./y", "n" * 256, "..", "z/.ffdl-0123456789abcdef01234567.part")
EVEN = ("sp ace", "n" * 255, "ünï/cödé", "tab\tname", "-rf", "$(id)", "q'uo\"te", "a+b&c=d%20e", "back\\slash")


def test_stage_in_stores_unusual_names_and_skips_unsafe_keys_with_note(rig: StagingRig) -> None:
    for name in EVEN:
        rig.put(f"p/{name}", name.encode())
    for n in range(len(ODD)):
        rig.put(f"p/ODD{n}", b"1")

    def rename(path: str, data: bytes) -> bytes:
        """The server at hand takes no such keys; others do."""
        for n, name in enumerate(ODD if "list-type=2" in path else ()):
            data = data.replace(b"<Key>p/ODD%d<" % n, f"<Key>p/{name}<".encode())
        return data

    rig.proxy.edit = rename
    rig.put("p/marked/", b"")
    rig.put("p/both", b"file")
    rig.put("p/both/below", b"1")
    outcome = rig.run(rig.task(prefix="p"))
    assert rig.files() == {name: name.encode() for name in EVEN} | {"both/below": b"1"}
    assert (rig.local / "marked").is_dir()
    assert outcome.done.skipped == len(ODD) + 1
    notes = [note.why for note in outcome.of(Note)]
    assert len(notes) == len(ODD) + 1
    assert any("it is a directory's name, too" in why for why in notes)
    assert sorted(path.name for path in rig.directory.iterdir()) == [
        "data", "output", "secrets.json", "state", "task.json",
    ]  # fmt: skip


def test_stage_in_does_not_follow_links_out_of_data_directory(
    rig: StagingRig, tmp_path_factory: pytest.TempPathFactory
) -> None:
    outside = tmp_path_factory.mktemp("outside")
    (outside / "kept").write_bytes(b"theirs")
    rig.put("dir/kept", b"new")
    rig.put("file", b"new")
    rig.local.mkdir()
    (rig.local / "dir").symlink_to(outside)
    (rig.local / "file").symlink_to(outside / "kept")
    temporary = f".ffdl-{hashlib.sha256(b'kept').hexdigest()[:24]}.part"
    (outside / temporary).write_bytes(b"theirs, too")
    rig.run(rig.task())
    assert rig.files() == {"dir/kept": b"new", "file": b"new"}
    assert (outside / "kept").read_bytes() == b"theirs"
    assert (outside / temporary).read_bytes() == b"theirs, too"


def test_stage_in_writes_zero_blocks_as_sparse_file(rig: StagingRig) -> None:
    data = b"begin" + bytes(12 * MIB) + b"end"
    rig.put("sparse", data)
    rig.run(rig.task())
    assert rig.files() == {"sparse": data}
    assert (rig.local / "sparse").stat().st_blocks * 512 < 4 * MIB


@pytest.mark.parametrize("spoiled", [False, True])
def test_stage_in_verifies_multipart_object_with_uneven_parts(rig: StagingRig, spoiled: bool) -> None:
    long = random.Random(3).randbytes(13 * MIB)
    rig.put_in_parts("parts", long[: 5 * MIB], long[5 * MIB : 12 * MIB], long[12 * MIB :])
    times = [1] if spoiled else []

    def spoil(path: str, data: bytes) -> bytes:
        if path.endswith("/parts") and data and times:
            return bytes([data[0] ^ times.pop()]) + data[1:]
        return data

    rig.proxy.edit = spoil
    outcome = rig.run(rig.task(parallel=1))
    assert rig.files() == {"parts": long}
    assert len(outcome.of(Retry)) == spoiled


def test_stage_in_guesses_part_size_when_store_does_not_report_parts(
    rig: StagingRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = random.Random(4).randbytes(17 * MIB)
    rig.put_in_parts("parts", long[: 8 * MIB], long[8 * MIB : 16 * MIB], long[16 * MIB :])
    rig.proxy.rules = [Rule("HEAD", "partNumber", status=400)]
    monkeypatch.setattr("ffdl_batch.staging.transfer.partial_download.digest_of", None)
    rig.run(rig.task(part_bytes=4 * MIB))
    assert rig.files() == {"parts": long}
    ranges = [asked for method, path, asked in rig.proxy.requests if method == "GET" and path.endswith("/parts")]
    assert sorted(ranges) == ["bytes=0-8388607", "bytes=16777216-17825791", "bytes=8388608-16777215"]


def test_stage_in_computes_whole_checksum_without_rereading_file(
    rig: StagingRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.put("whole", NOISE)
    monkeypatch.setattr("ffdl_batch.staging.transfer.partial_download.digest_of", None)
    assert rig.run(rig.task()).done.bytes == len(NOISE)
    assert rig.files() == {"whole": NOISE}


class Spoiling:
    """Somebody who replaces an object with its reverse each time before it is read, as often as told."""

    def __init__(self, rig: StagingRig, key: str, good: bytes, times: int) -> None:
        self._rig, self._key, self._good, self._times = rig, key, good, times
        self._lock = threading.Lock()  # parts are asked for at once

    def __call__(self, method: str, path: str) -> None:
        if method != "GET" or not path.endswith(f"/{self._key}"):
            return
        with self._lock:
            if self._times:
                self._times -= 1
                self._good = self._good[::-1]
                self._rig.put(self._key, self._good)


def test_stage_in_retries_object_that_changes_during_download(rig: StagingRig) -> None:
    rig.put("moving", NOISE)
    rig.proxy.before = Spoiling(rig, "moving", NOISE, 1)
    outcome = rig.run(rig.task())
    assert rig.files() == {"moving": NOISE[::-1]}
    assert any("changed while it was read" in retry.why for retry in outcome.of(Retry))
    assert outcome.of(Progress)[-1].bytes == len(NOISE)


def test_stage_in_fails_when_object_changes_on_every_read(rig: StagingRig) -> None:
    rig.put("moving", b"01")
    rig.proxy.before = Spoiling(rig, "moving", b"01", 1000)
    outcome = rig.run(rig.task())
    assert (outcome.status, outcome.failed.class_, outcome.failed.code) == (65, FaultClass.CORRUPT, "S302")
    assert rig.bucket in outcome.failed.message
    assert "key moving" in outcome.failed.message
    assert "moving" not in rig.files()


@pytest.fixture
def checked(s3_server: S3Server) -> Iterator[S3Server]:
    """The server, which checks keys as long as the test runs."""
    yield s3_server
    s3_server.check_keys(False)


def test_stage_in_fails_without_retry_when_s3_keys_are_wrong(rig: StagingRig, checked: S3Server) -> None:
    rig.put("a", b"1")
    key, secret = checked.make_user("somebody")
    checked.check_keys(True)
    good = f'{{"the-key": "{key}", "the-secret": "{secret}"}}'
    rig.secrets.write_text(good)
    assert rig.run(rig.task()).done.files == 1

    for wrong in (good.replace(secret, "x" * len(secret)), good.replace(key, "AKIAIOSFODNN7EXAMPLE")):
        rig.secrets.write_text(wrong)
        for check in (True, False):
            outcome = rig.run(rig.task(), check=check)
            assert (outcome.status, outcome.failed.class_, outcome.failed.code) == (77, FaultClass.CREDENTIALS, "C103")
            assert outcome.of(Retry) == []


@pytest.mark.parametrize("check", [True, False])
def test_stage_in_reports_missing_bucket_or_key(rig: StagingRig, check: bool) -> None:
    no_bucket = rig.run(rig.task(store=replace(rig.store, container="there-is-none")), check=check)
    assert (no_bucket.status, no_bucket.failed.class_, no_bucket.failed.code) == (66, FaultClass.MISSING, "C103")
    assert "bucket there-is-none" in no_bucket.failed.message
    no_key = rig.run(rig.task(prefix="nothing/here"), check=check)
    assert (no_key.status, no_key.failed.class_) == (66, FaultClass.MISSING)
    assert "key nothing/here" in no_key.failed.message


def test_stage_in_check_transfers_nothing_and_detects_full_disk(
    rig: StagingRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.put("a", NOISE)
    assert rig.run(rig.task(), check=True).done.bytes == 0
    assert not rig.local.exists()
    assert not any(path.endswith("/a") for _, path, _ in rig.proxy.requests)
    real = os.statvfs(rig.directory)
    full = os.statvfs_result((real.f_bsize, real.f_frsize, real.f_blocks, 0, 0, *tuple(real)[5:]))
    monkeypatch.setattr(os, "statvfs", lambda _path: full)
    for check in (True, False):
        outcome = rig.run(rig.task(), check=check)
        assert (outcome.status, outcome.failed.class_, outcome.failed.code) == (73, FaultClass.FULL, "S302")
    assert not any(path.endswith("/a") for _, path, _ in rig.proxy.requests)


@pytest.fixture
def quick(tmp_path: Path) -> Iterator[QuickServer]:
    server = QuickServer(tmp_path / "quick")
    yield server
    server.stop()


@pytest.mark.timeout(600 + MANY // 20)
def test_stage_in_downloads_many_small_files_in_bounded_memory(rig: StagingRig, quick: QuickServer) -> None:
    quick.put_many(rig.bucket, ((f"many/{n % 50:02}/{n:06}", b"%d" % n) for n in range(MANY)))
    store = replace(rig.store, endpoint=quick.endpoint)
    process = rig.start(rig.task(prefix="many", parallel=8, store=store))
    peak_kib = 0
    while process.poll() is None:
        found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process.pid}/status").read_text())
        peak_kib = max(peak_kib, int(found[1]) if found else 0)
        time.sleep(0.1)
    assert process.returncode == 0, rig.said()[-1]
    assert sum(1 for path in rig.local.rglob("*") if path.is_file()) == MANY
    assert (rig.local / "07" / "000107").read_bytes() == b"107"
    assert 0 < peak_kib < 200 * 1024
    print(f"{MANY} files, {peak_kib // 1024} MiB, {rig.said()[-1]}")


def test_staging_program_names_extra_when_library_is_missing(rig: StagingRig, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> object:
        raise ImportError(name)

    monkeypatch.setattr("ffdl_batch.staging.stores.store.importlib.import_module", missing)
    outcome = rig.run(rig.task())
    assert (outcome.status, outcome.failed.class_, outcome.failed.code) == (69, FaultClass.LIBRARY, "S306")
    assert "[s3]" in outcome.failed.message


def test_staging_program_masks_secrets_in_internal_errors(rig: StagingRig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.put("a", b"1")

    def fail(*_: object) -> None:
        raise KeyError(SECRET)

    monkeypatch.setattr("ffdl_batch.staging.transfer.download.Download._whole", fail)
    outcome = rig.run(rig.task())
    assert (outcome.status, outcome.failed.class_, outcome.failed.code) == (70, FaultClass.INTERNAL, "S306")
    assert "KeyError: '***'" in outcome.failed.message


def test_staging_program_rejects_invalid_task_without_request(rig: StagingRig, tmp_path: Path) -> None:
    rig.proxy.rules = [Rule(status=500)]
    outcome = rig.run(rig.task(state_dir="relative"))
    assert (outcome.status, outcome.failed.code) == (70, "S306")
    assert rig.proxy.requests == []


def test_stage_in_accepts_missing_prefix_if_transfer_is_optional(rig: StagingRig) -> None:
    task = rig.task(prefix="not-there")
    assert rig.run(task).failed.class_ is FaultClass.MISSING
    task = replace(task, transfers=(replace(task.transfers[0], optional=True),))
    assert rig.run(task).done.files == 0
    assert rig.run(task, check=True).status == 0


def has_open(pid: int, path: Path) -> bool:
    """Return whether the process has the file open."""
    return any(link.exists() and link.samefile(path) for link in Path(f"/proc/{pid}/fd").iterdir())


def test_staging_program_waits_for_state_lock_or_refuses_without_wait(rig: StagingRig) -> None:
    rig.put("a", b"1")
    rig.state.mkdir()
    with (rig.state / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert rig.run(rig.task()).failed.class_ is FaultClass.REFUSED
        waiting = rig.start(rig.task(wait_s=600.0))
        until(lambda: has_open(waiting.pid, rig.state / "lock"), "the program to open the lock")
        with pytest.raises(subprocess.TimeoutExpired):
            waiting.wait(1.0)
    assert waiting.wait(180) == 0
    assert rig.files() == {"a": b"1"}


def test_stage_in_keeps_files_with_matching_content_without_journal(rig: StagingRig) -> None:
    """Its journal knows nothing of it."""
    whole, parts = NOISE[:MIB], (NOISE[: 5 * MIB], b"the rest")
    rig.put("a", whole)
    rig.put("b", b"1")
    rig.put_in_parts("c", *parts)
    assert rig.run(rig.task()).done.files == 3
    shutil.rmtree(rig.state)
    (rig.local / "b").write_bytes(b"2")
    done = rig.run(rig.task()).done
    assert (done.files, done.kept, done.bytes) == (3, 2, 1)
    assert rig.files() == {"a": whole, "b": b"1", "c": b"".join(parts)}


def test_stage_in_disk_check_excludes_files_already_in_place(rig: StagingRig, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b", "c"):
        rig.put(name, NOISE[:MIB])
    assert rig.run(rig.task()).done.files == 3
    shutil.rmtree(rig.state)
    real = os.statvfs(rig.local)
    free = types.SimpleNamespace(f_bavail=3 * MIB // 2, f_frsize=1, f_bsize=real.f_bsize)
    monkeypatch.setattr(os, "statvfs", lambda _path: free)
    assert rig.run(rig.task(parallel=1)).done.kept == 3
    rig.put("d", NOISE[: 2 * MIB])
    assert rig.run(rig.task(parallel=1)).failed.class_ is FaultClass.FULL


def test_stage_in_error_mentions_kept_files_only_after_partial_transfer(rig: StagingRig) -> None:
    rig.put("a", b"1")
    rig.put("zz", b"2")
    rig.proxy.rules = [Rule(status=500, path="/zz", times=9)]
    broken = rig.run(rig.task(tries=2, parallel=1))
    assert broken.failed.message.endswith("whether the store runs; what has moved is kept for the next attempt")
    rig.proxy.rules = [Rule(status=500, times=9)]
    for outcome in (rig.run(rig.task(state_dir=str(rig.directory / "new"), tries=1)), rig.run(rig.task(), check=True)):
        assert outcome.failed.message.endswith("check the address and whether the store runs")
