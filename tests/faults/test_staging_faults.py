"""Stores that fail under staging: what passes is tried again and told, what does not ends it with its reason."""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from ffdl_batch.domain.data.staging_protocol import Direction, Done, Failed, FaultClass, Note, Progress, Retry
from tests.fakes.fault_proxy import Rule
from tests.private_mounts import SmallDisk
from tests.staging_rig import KEY, MIB, SECRET, Outcome, StagingRig, rig

__all__ = ["rig"]
NOISE = random.Random(9).randbytes(6 * MIB + 5)
RUN = "import sys; sys.argv[0] = 'ffdl'; from ffdl_batch.cli.main import main; main()"
PASSING = {
    "an error of the store": Rule("GET", "/big", times=2, status=500, code="InternalError"),
    "too fast for the store": Rule("GET", "/big", times=3, status=503, code="SlowDown"),
    "an error of the request that is none": Rule("GET", "/big", times=2, status=400, code="RequestTimeout"),
    "a listing that fails": Rule("GET", "list-type", times=2, status=502, code="BadGateway"),
    "a body that ends early": Rule("GET", "/big", times=3, cut_at=300_000),
    "nothing of the body": Rule("GET", "/big", times=2, cut_at=0),
    "a reset in the body": Rule("GET", "/big", times=3, cut_at=200_000, reset=True),
    "a store that hangs": Rule("GET", "/big", times=1, hang_s=600),
    "a store that is slow": Rule("GET", "/big", pause_s=0.01),
}


def patience(rule: Rule) -> str:
    """Return the time limit of a request: short only if the store hangs, as answers of a busy machine take long."""
    return "5" if rule.hang_s else "60"


def assert_retried(outcome: Outcome, rule: Rule) -> None:
    """Check that each fault led to one retry. A busy machine may add some if the time limit is short."""
    retries, faults = len(outcome.of(Retry)), 0 if rule.pause_s else rule.times
    assert retries == faults or (rule.hang_s and retries > faults)


@pytest.mark.parametrize("what", PASSING)
def test_stage_in_retries_and_reports_transient_store_faults(rig: StagingRig, what: str) -> None:
    rig.put("big", NOISE)
    rule = PASSING[what]
    rule.seen = rule.done = 0
    rig.proxy.rules = [rule]
    rig.store = replace(rig.store, options={"timeout_s": patience(rule)})
    outcome = rig.run(rig.task())
    assert rig.files() == {"big": NOISE}
    assert_retried(outcome, rule)
    assert outcome.of(Progress)[-1].bytes == len(NOISE)
    assert all(retry.in_s > 0 for retry in outcome.of(Retry))


@pytest.mark.parametrize(
    "rule",
    [
        Rule("PUT", times=2, status=503, code="SlowDown"),
        Rule("PUT", times=1, status=400, code="BadDigest"),
        Rule("PUT", times=1, hang_s=600),
    ],
)
def test_stage_out_retries_transient_store_faults(rig: StagingRig, rule: Rule) -> None:
    rule.seen = rule.done = 0
    rig.local.mkdir()
    (rig.local / "big").write_bytes(NOISE)
    (rig.local / "small").write_bytes(b"1")
    rig.proxy.rules = [rule]
    rig.store = replace(rig.store, options={"timeout_s": patience(rule)})
    outcome = rig.run(rig.task(Direction.OUT, "job"))
    assert (rig.get("job/big"), rig.get("job/small")) == (NOISE, b"1")
    assert_retried(outcome, rule)


def test_stage_out_completes_when_reply_to_multipart_completion_is_lost(rig: StagingRig) -> None:
    rig.local.mkdir()
    (rig.local / "big").write_bytes(NOISE)
    rig.proxy.rules = [
        Rule("POST", "uploadId=", times=1, cut_at=0, reset=True),
        Rule("POST", "uploadId=", times=1, status=404, code="NoSuchUpload"),
    ]
    outcome = rig.run(rig.task(Direction.OUT, "job"))
    assert rig.get("job/big") == NOISE
    assert sum(method == "PUT" and "partNumber=1" in path for method, path, _ in rig.proxy.requests) == 1
    assert outcome.done.bytes == len(NOISE)


def test_stage_in_resets_retry_count_after_progress(rig: StagingRig) -> None:
    rig.put("big", NOISE)
    rig.proxy.rules = [Rule("GET", "/big", cut_at=MIB + 10)]
    outcome = rig.run(rig.task(tries=2, part_bytes=16 * MIB))
    assert rig.files() == {"big": NOISE}
    assert len(outcome.of(Retry)) == 5


def test_stage_in_stops_all_transfers_after_first_fatal_fault(rig: StagingRig) -> None:
    for n in range(60):
        rig.put(f"{n:02}", b"1")
    rig.proxy.rules = [Rule("GET", "/02", status=403, code="InvalidAccessKeyId")]
    assert rig.run(rig.task(parallel=1)).status == 77
    assert len(rig.files()) < 10


def test_stage_in_fails_as_network_fault_when_retries_are_exhausted(rig: StagingRig) -> None:
    rig.put("a", b"1")
    rig.proxy.rules = [Rule("GET", "/a", status=503, code="SlowDown")]
    outcome = rig.run(rig.task(tries=3))
    assert (outcome.status, outcome.failed.class_, outcome.failed.code) == (75, FaultClass.NETWORK, "S302")
    assert len(outcome.of(Retry)) == 2
    assert all(word in outcome.failed.message for word in (rig.bucket, "key a", "503 SlowDown", "3 tries"))


def test_stage_in_fails_as_network_fault_when_store_is_down(rig: StagingRig) -> None:
    rig.proxy.stop()
    for check in (True, False):
        outcome = rig.run(rig.task(tries=3), check=check)
        assert (outcome.status, outcome.failed.class_) == (75, FaultClass.NETWORK)


@pytest.mark.parametrize("code", ["ExpiredToken", "AccessDenied"])
def test_stage_in_fails_without_retry_and_resumes_after_credentials_expire(rig: StagingRig, code: str) -> None:
    rig.put("big", NOISE)
    rig.proxy.rules = [Rule("GET", "/big", after=3, status=403 if code != "ExpiredToken" else 400, code=code)]
    outcome = rig.run(rig.task(parallel=1))
    assert (outcome.status, outcome.failed.class_, outcome.failed.code) == (77, FaultClass.CREDENTIALS, "C103")
    assert outcome.of(Retry) == []
    assert code in outcome.failed.message

    rig.proxy.rules.clear()
    rig.proxy.given.clear()
    rig.run(rig.task())
    assert rig.files() == {"big": NOISE}
    assert sum(size for path, size in rig.proxy.given.items() if path.endswith("/big")) == len(NOISE) - 3 * MIB


def test_stage_in_resumes_from_journal_after_kill(rig: StagingRig) -> None:
    rig.put("big", NOISE)
    for n in range(20):
        rig.put(f"a/{n}", b"%d" % n)
    rig.proxy.rules = [Rule("GET", "/big", after=4, hang_s=600), Rule("GET", "/a/19", hang_s=600)]
    process = rig.start(rig.task(parallel=2))
    wait_for(rig, lambda ranges: len(ranges) == 5 and sum("/a/" in path for path in rig.proxy.given) == 19)
    process.kill()
    process.wait()
    rig.proxy.rules.clear()
    rig.proxy.given.clear()

    outcome = rig.run(rig.task())
    assert rig.files() == {"big": NOISE} | {f"a/{n}": b"%d" % n for n in range(20)}
    given = Counter({path.rsplit("/", 1)[-1]: size for path, size in rig.proxy.given.items()})
    assert given["big"] == len(NOISE) - 4 * MIB
    assert [name for name in given if name.isdigit()] == ["19"]
    assert outcome.done.kept == 19
    assert outcome.of(Progress)[-1].bytes == len(NOISE) + sum(len(b"%d" % n) for n in range(20))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_staging_program_ends_on_signal_while_store_hangs(rig: StagingRig, number: signal.Signals) -> None:
    rig.put("big", NOISE)
    rig.proxy.rules = [Rule("GET", "/big", after=1, hang_s=600)]
    process = rig.start(rig.task())
    wait_for(rig, lambda ranges: len(ranges) >= 4)
    process.send_signal(number)
    assert process.wait(180) == 128 + number
    assert set(rig.files()) == {next(iter(rig.files()))}
    rig.proxy.rules.clear()
    assert rig.run(rig.task()).done.files == 1
    assert rig.files() == {"big": NOISE}


def wait_for(rig: StagingRig, holds: object) -> None:
    """Wait until it holds of the ranges of the large object that were asked for."""
    assert callable(holds)
    for _ in range(2400):
        if holds(
            [asked for method, path, asked in list(rig.proxy.requests) if method == "GET" and path.endswith("/big")]
        ):
            return
        time.sleep(0.05)
    raise TimeoutError(rig.said())


def test_stage_in_retries_then_fails_when_content_does_not_match_etag(rig: StagingRig) -> None:
    rig.put("big", NOISE)
    rig.put("small", b"good")
    spoiled = {"big": 1, "small": 1}

    def spoil(path: str, data: bytes) -> bytes:
        name = path.partition("?")[0].rsplit("/", 1)[-1]
        if spoiled.get(name, 0) and data:
            spoiled[name] -= 1
            return bytes([data[0] ^ 1]) + data[1:]
        return data

    rig.proxy.edit = spoil
    outcome = rig.run(rig.task())
    assert rig.files() == {"big": NOISE, "small": b"good"}
    assert sum("ETag" in retry.why for retry in outcome.of(Retry)) == 2

    spoiled["small"] = 99
    (rig.local / "small").unlink()
    outcome = rig.run(rig.task())
    assert (outcome.status, outcome.failed.class_) == (65, FaultClass.CORRUPT)
    assert "small" not in rig.files()


def test_stage_in_reports_full_disk_and_keeps_finished_files(rig: StagingRig, disk: SmallDisk) -> None:
    """In processes of its own: a thread of this one that lives on would keep the mounts."""
    rig.local = disk.point / "data"
    rig.put("small", b"1")
    assert rig.start(rig.task()).wait(180) == 0
    rig.put("large", NOISE)
    asked, full = threading.Event(), threading.Event()

    def hold(_method: str, path: str) -> None:
        if path.endswith("/large"):
            asked.set()
            full.wait(180)

    rig.proxy.before = hold
    process = rig.start(rig.task())
    assert asked.wait(180)
    disk.fill()
    full.set()
    assert process.wait(180) == 73
    failed = rig.said()[-1]
    assert isinstance(failed, Failed)
    assert (failed.class_, failed.code) == (FaultClass.FULL, "S302")
    assert os.strerror(errno.ENOSPC) in failed.message
    assert "large" not in rig.files()
    disk.free()
    assert rig.start(rig.task()).wait(180) == 0
    assert rig.said()[-1] == replace(cast(Done, rig.said()[-1]), files=2, kept=1)
    assert rig.files()["large"] == NOISE


@pytest.mark.parametrize("kind", ["full", "ro"])
@pytest.mark.parametrize("name", ["state", "data"])
def test_staging_names_directory_that_takes_nothing(rig: StagingRig, disk: SmallDisk, kind: str, name: str) -> None:
    place = disk.point / name
    place.mkdir()
    rig.state, rig.local = (place, rig.local) if name == "state" else (rig.state, place)
    rig.put("large", NOISE)
    disk.fill() if kind == "full" else disk.make("ro")
    assert rig.start(rig.task()).wait(180) == (73 if kind == "full" else 76)
    failed = rig.said()[-1]
    assert isinstance(failed, Failed)
    assert (failed.class_, failed.code) == (FaultClass.FULL if kind == "full" else FaultClass.REFUSED, "S302")
    assert str(disk.point) in failed.message and "failed:" not in failed.message
    cure = "free some space" if kind == "full" else "use another directory, or have it mounted for writing again"
    assert cure in failed.message
    if kind == "ro":
        disk.make("rw")


@pytest.mark.parametrize("kind", ["full", "ro"])
def test_data_get_exits_75_and_names_directory_that_takes_nothing(
    rig: StagingRig, disk: SmallDisk, kind: str, tmp_path: Path
) -> None:
    """The state of transfers is on that disk, and cannot be made."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "a").write_text("1")
    disk.fill() if kind == "full" else disk.make("ro")
    done = subprocess.run(
        [sys.executable, "-c", RUN, "data", "get", source.as_uri(), "--out", str(tmp_path / "got")],
        env={**os.environ, "XDG_CACHE_HOME": str(disk.point)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if kind == "ro":
        disk.make("rw")
    assert done.returncode == 75, done.stderr
    assert f"{disk.point}/ffdl" in done.stderr and "defect" not in done.stderr
    assert ("free some space" if kind == "full" else "its file system is read-only: use another") in done.stderr


def test_staging_program_never_prints_or_writes_secrets(rig: StagingRig) -> None:
    rig.put("big", NOISE)
    rig.put(f"named/{SECRET.replace('/', '')}", b"1")
    # what the store says is not ours to choose
    spiteful = Rule("GET", "/big", times=2, status=500, code=f"Wrong{KEY}and{SECRET}")
    rig.proxy.rules = [spiteful, Rule("GET", "/big", after=1, status=403, code=f"InvalidAccessKeyId {KEY} {SECRET}")]
    process = rig.start(rig.task(prefix="", rate_line_s=0.01))
    shown = b"".join(Path(f"/proc/{process.pid}/{name}").read_bytes() for name in ("cmdline", "environ"))
    assert process.wait(180) == 77
    assert SECRET.encode() not in shown
    assert KEY.encode() not in shown
    assert "***" in (rig.directory / "output").read_text()
    assert (rig.directory / "errors").read_text() == ""
    rig.require_no_secret()
    rig.proxy.rules.clear()
    assert rig.start(rig.task()).wait(180) == 0
    rig.require_no_secret()


def test_staging_program_refuses_state_directory_in_use(rig: StagingRig) -> None:
    rig.put("big", NOISE)
    rig.proxy.rules = [Rule("GET", "/big", hang_s=600)]
    first = rig.start(rig.task())
    wait_for(rig, len)
    second = rig.run(rig.task())
    first.kill()
    first.wait()
    assert (second.status, second.failed.class_) == (76, FaultClass.REFUSED)


def test_staging_program_limits_number_of_notes(rig: StagingRig) -> None:
    rig.local.mkdir()
    for n in range(120):
        (rig.local / f"link{n}").symlink_to("nowhere")
    outcome = rig.run(rig.task(Direction.OUT, "job"))
    assert outcome.done.skipped == 120
    assert len(outcome.of(Note)) == 51
    assert "70 more" in outcome.of(Note)[-1].why
