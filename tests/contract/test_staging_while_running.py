"""Results that go out while learners run: what is new, once, and large files when they rest."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from ffdl_batch.domain.data.staging_protocol import Direction, Note, Progress
from ffdl_batch.domain.data.store_kinds import StoreAddress, StoreKind
from tests.contract.test_staging_out import lay
from tests.staging_rig import MIB, StagingRig, rig

__all__ = ["rig"]
RESTING = 3600.0
LONG_AGO = 1_700_000_000
NOISE = random.Random(8).randbytes(12 * MIB + 77)
OUT = Direction.OUT


def requests_of(rig: StagingRig) -> list[tuple[str, str]]:
    """Methods, and whether it was a part of an upload, a listing, or else an object."""
    found = []
    for method, path, _ in rig.proxy.requests:
        kind = "part" if "partNumber=" in path else "list" if "list-type=" in path else path.rpartition("/")[2]
        found.append((method, kind.partition("?")[0]))
    rig.proxy.requests.clear()
    return found


def test_running_upload_sends_only_changed_files_without_listing(rig: StagingRig) -> None:
    lay(rig, {f"results/{n}": b"%d" % n for n in range(20)})
    task = rig.task(OUT, "job", rest_s=RESTING)
    rig.run(task)
    rig.proxy.requests.clear()
    assert rig.run(task).done.kept == 20
    assert requests_of(rig) == []
    (rig.local / "results" / "7").write_bytes(b"seven")
    outcome = rig.run(task)
    assert outcome.done.kept == 19
    told = outcome.of(Progress)[-1]
    assert (told.files, told.files_total, told.bytes, told.bytes_total) == (20, 20, 34, 34)
    assert requests_of(rig) == [("PUT", "7")]
    assert rig.get("job/results/7") == b"seven"
    named = rig.task(OUT, "job", only=("results/8",), rest_s=RESTING)
    assert rig.run(named).done.kept == 1
    assert requests_of(rig) == []
    rig.client.delete_object(Bucket=rig.bucket, Key="job/results/8")
    assert rig.run(rig.task(OUT, "job")).done.kept == 19
    assert rig.get("job/results/8") == b"8"


def test_running_upload_defers_growing_large_file_until_it_is_unchanged(
    rig: StagingRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    lay(rig, {"checkpoint": NOISE[: 6 * MIB], "log": b"line\n"})
    task = rig.task(OUT, "job", rest_s=RESTING)
    read: list[int] = []
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda file, size, at: read.append(size) or pread(file, size, at))  # type: ignore[func-returns-value]
    for _ in range(3):
        with (rig.local / "checkpoint").open("ab") as file:
            file.write(NOISE[: 2 * MIB])
        assert rig.run(task).done.later == 1
    assert rig.keys() == ["job/log"]
    assert sum(read) == len(b"line\n")
    os.utime(rig.local / "checkpoint", (LONG_AGO, LONG_AGO))
    assert rig.run(task).done.later == 0
    assert rig.get("job/checkpoint") == NOISE[: 6 * MIB] + NOISE[: 2 * MIB] * 3
    rig.proxy.requests.clear()
    assert rig.run(task).done.kept == 2
    assert requests_of(rig) == []


def test_running_upload_sends_large_file_that_is_unchanged_since_previous_run(rig: StagingRig) -> None:
    """Whatever the clock of the file's server says."""
    lay(rig, {"checkpoint": NOISE})
    os.utime(rig.local / "checkpoint", (LONG_AGO * 2, LONG_AGO * 2))
    assert rig.run(rig.task(OUT, "job", rest_s=RESTING)).done.later == 1
    assert rig.run(rig.task(OUT, "job", rest_s=RESTING)).done.later == 0
    assert rig.get("job/checkpoint") == NOISE


def test_running_upload_sends_ever_changing_large_file_after_longest_wait(
    rig: StagingRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    lay(rig, {"checkpoint": NOISE})
    task = rig.task(OUT, "job", rest_s=RESTING)
    assert rig.run(task).done.later == 1
    monkeypatch.setattr("ffdl_batch.staging.transfer.upload.LONGEST_WAIT_S", 0.0)

    def write(method: str, path: str) -> None:
        if "partNumber=1" in path:
            with (rig.local / "checkpoint").open("ab") as file:
                file.write(b"more\n")

    rig.proxy.before = write
    (rig.local / "checkpoint").write_bytes(NOISE[::-1])
    outcome = rig.run(task)
    assert (outcome.done.later, outcome.of(Note)) == (1, [])
    assert rig.get("job/checkpoint") == NOISE[::-1]
    rig.proxy.before = lambda _method, _path: None
    assert rig.run(rig.task(OUT, "job")).done.later == 0
    assert rig.get("job/checkpoint") == NOISE[::-1] + b"more\n"


def test_running_upload_aborts_large_file_that_is_written_during_upload(rig: StagingRig) -> None:
    lay(rig, {"checkpoint": NOISE})
    os.utime(rig.local / "checkpoint", (LONG_AGO, LONG_AGO))

    def write(method: str, path: str) -> None:
        if method == "PUT" and "partNumber=1" in path:
            (rig.local / "checkpoint").write_bytes(b"short")

    rig.proxy.before = write
    outcome = rig.run(rig.task(OUT, "job", rest_s=RESTING, parallel=1))
    assert outcome.done.later == 1
    assert requests_of(rig).count(("PUT", "part")) == 1
    assert (rig.keys(), rig.uploads()) == ([], [])
    rig.proxy.before = lambda _method, _path: None
    assert rig.run(rig.task(OUT, "job", rest_s=RESTING)).done.later == 0
    assert rig.get("job/checkpoint") == b"short"


def test_running_upload_sends_ever_changing_small_file_once_per_run(rig: StagingRig) -> None:
    lay(rig, {"log": b"0"})

    def write(method: str, path: str) -> None:
        if method == "PUT":
            with (rig.local / "log").open("ab") as file:
                file.write(b"+")

    rig.proxy.before = write
    outcome = rig.run(rig.task(OUT, "job", rest_s=RESTING))
    assert (outcome.done.files, outcome.done.later, outcome.of(Note)) == (1, 1, [])
    assert rig.get("job/log") == b"0"
    rig.run(rig.task(OUT, "job", rest_s=RESTING))
    assert rig.get("job/log") == b"0+"
    rig.proxy.before = lambda _method, _path: None
    assert rig.run(rig.task(OUT, "job")).done.kept == 0
    assert rig.get("job/log") == b"0++"


def test_running_upload_defers_large_file_to_store_without_parts(rig: StagingRig, tmp_path: Path) -> None:
    lay(rig, {"checkpoint": NOISE})
    store = StoreAddress(StoreKind.FILE, container=str(tmp_path / "store"))
    (tmp_path / "store").mkdir()
    task = rig.task(OUT, "job", rest_s=RESTING, store=store)
    assert rig.run(task).done.later == 1
    assert list((tmp_path / "store").rglob("*")) == []
    os.utime(rig.local / "checkpoint", (LONG_AGO, LONG_AGO))
    assert rig.run(task).done.later == 0
    assert (tmp_path / "store" / "job" / "checkpoint").read_bytes() == NOISE
