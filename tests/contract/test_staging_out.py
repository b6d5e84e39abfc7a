"""Results go to a real S3 server: what changed, as it was at one time, and nothing is ever deleted there."""

from __future__ import annotations

import os
import random
from dataclasses import replace
from pathlib import Path

import pytest

from ffdl_batch.domain.data.staging_protocol import Direction, FaultClass, Note, Progress, Retry
from ffdl_batch.domain.data.store_kinds import StoreAddress, StoreKind
from tests.cache_rig import until
from tests.fakes.fault_proxy import Rule
from tests.staging_rig import MIB, StagingRig, rig

__all__ = ["rig"]
NOISE = random.Random(8).randbytes(12 * MIB + 77)
IN, OUT = Direction.IN, Direction.OUT


def lay(rig: StagingRig, files: dict[str, bytes]) -> None:
    for name, data in files.items():
        path = rig.local / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def puts(rig: StagingRig) -> list[str]:
    return [path for method, path, _ in rig.proxy.requests if method in ("PUT", "POST")]


def test_stage_out_uploads_changed_files_and_never_deletes_objects(rig: StagingRig) -> None:
    rig.put("job/old", b"of an earlier attempt")
    lay(rig, {"model.pt": b"weights", "empty": b"", "logs/learner-1/training-log.txt": b"line\n", "ünï q'&%": b"1"})
    first = rig.run(rig.task(OUT, "job")).done
    assert (first.files, first.kept, first.skipped) == (4, 0, 0)
    assert set(rig.keys()) == {
        "job/old", "job/model.pt", "job/empty", "job/logs/learner-1/training-log.txt", "job/ünï q'&%",
    }  # fmt: skip
    assert rig.get("job/model.pt") == b"weights"

    rig.proxy.requests.clear()
    assert rig.run(rig.task(OUT, "job")).done.kept == 4
    (rig.local / "model.pt").write_bytes(b"weightier")
    (rig.local / "empty").unlink()
    assert rig.run(rig.task(OUT, "job")).done.kept == 2
    assert len(puts(rig)) == 1
    assert (rig.get("job/model.pt"), rig.get("job/empty")) == (b"weightier", b"")


@pytest.mark.parametrize("size", [MIB, len(NOISE)])
def test_stage_out_keeps_identical_object_without_journal(rig: StagingRig, size: int) -> None:
    lay(rig, {"big": NOISE[:size]})
    rig.run(rig.task(OUT, "job"))
    assert rig.get("job/big") == NOISE[:size]
    rig.proxy.requests.clear()
    other = rig.task(OUT, "job", state_dir=str(rig.directory / "elsewhere"))
    assert rig.run(other).done.kept == 1
    assert puts(rig) == []


def test_stage_out_replaces_file_of_same_size_in_directory(rig: StagingRig) -> None:
    store = rig.directory / "store"
    for place, data in ((store / "job", b"other"), (rig.local, b"these")):
        place.mkdir(parents=True)
        (place / "weights").write_bytes(data)
    outcome = rig.run(rig.task(OUT, "job", store=StoreAddress(StoreKind.FILE, container=str(store))))
    assert (outcome.done.files, outcome.done.kept) == (1, 0)
    assert (store / "job" / "weights").read_bytes() == b"these"


def test_stage_out_keeps_identical_object_with_other_part_sizes(rig: StagingRig) -> None:
    lay(rig, {"big": NOISE})
    rig.put_in_parts("job/big", NOISE[: 8 * MIB], NOISE[8 * MIB :])
    assert rig.run(rig.task(OUT, "job")).done.kept == 1
    assert puts(rig) == []


def test_stage_out_keeps_newer_object_with_keep_newer(rig: StagingRig) -> None:
    lay(rig, {"late": b"earlier", "mine": b"1"})
    os.utime(rig.local / "late", (1_000_000_000, 1_000_000_000))
    rig.put("job/late", b"later")
    rig.run(rig.task(OUT, "job", keep_newer=True))
    assert (rig.get("job/late"), rig.get("job/mine")) == (b"later", b"1")
    rig.run(rig.task(OUT, "job"))
    assert rig.get("job/late") == b"earlier"


def test_stage_out_puts_no_file_that_was_only_brought_over_another_object(rig: StagingRig) -> None:
    for name in ("of-other", "own", "same", "gone"):
        rig.put(f"job/{name}", b"brought")
    brought = str(rig.directory / "brought")
    rig.run(rig.task(IN, "job", state_dir=brought))
    rig.put("job/of-other", b"stored by another learner")
    rig.client.delete_object(Bucket=rig.bucket, Key="job/gone")
    (rig.local / "own").write_bytes(b"saved here")
    outcome = rig.run(rig.task(OUT, "job", brought_dir=brought))
    assert {name: rig.get(f"job/{name}") for name in ("of-other", "own", "same", "gone")} == {
        "of-other": b"stored by another learner", "own": b"saved here", "same": b"brought", "gone": b"brought",
    }  # fmt: skip
    assert outcome.done.kept == 2


def test_stage_out_stores_all_without_journal_of_what_was_brought(rig: StagingRig) -> None:
    lay(rig, {"state": b"here"})
    rig.put("job/state", b"there")
    rig.run(rig.task(OUT, "job", brought_dir=str(rig.directory / "never")))
    assert rig.get("job/state") == b"here" and not (rig.directory / "never").exists()


def test_stage_out_skips_links_pipes_and_invalid_names_with_note(rig: StagingRig, tmp_path: Path) -> None:
    secret = tmp_path / "outside"
    secret.mkdir()
    (secret / "theirs").write_bytes(b"not for the store")
    lay(rig, {"kept": b"1", "x" * 200 + "/" + "y" * 200 + "/" + "z" * 200 + "/" + "w" * 200 + "/" + "v" * 240: b"1"})
    (rig.local / "link").symlink_to(secret / "theirs")
    (rig.local / "directory").symlink_to(secret)
    os.mkfifo(rig.local / "pipe")
    Path(os.fsdecode(os.fsencode(rig.local) + b"/\xff\xfe")).write_bytes(b"1")
    outcome = rig.run(rig.task(OUT, "job"))
    assert rig.keys() == ["job/kept"]
    assert outcome.done.skipped == 5
    whys = " ".join(note.why for note in outcome.of(Note))
    assert all(
        part in whys for part in ("is a symbolic link", "is a named pipe", "not UTF-8", "longer than 1024 bytes")
    )


@pytest.mark.usefixtures("bound_by_modes")
@pytest.mark.parametrize(
    ("modes", "only", "stored"),
    [
        ({"small": 0}, (), {"big", "d/in"}),
        ({"big": 0}, (), {"small", "d/in"}),
        ({"d": 0}, (), {"small", "big"}),
        ({"d": 0o400}, (), {"small", "big"}),
        ({"small": 0, "big": 0, "d": 0}, (), set()),
        ({"d": 0}, ("d/in", "small"), {"small"}),
        ({".": 0}, (), set()),
    ],
)
def test_stage_out_blames_user_for_entries_that_deny_access_and_stores_others(
    rig: StagingRig, modes: dict[str, int], only: tuple[str, ...], stored: set[str]
) -> None:
    lay(rig, {"small": b"1", "big": NOISE, "d/in": b"2"})
    for name, mode in modes.items():
        (rig.local / name).chmod(mode)
    outcome = rig.run(rig.task(OUT, "job", only=only))
    for name in modes:
        (rig.local / name).chmod(0o700)
    assert (outcome.status, outcome.failed.class_, outcome.failed.code) == (71, FaultClass.UNREADABLE, "C205")
    assert all(name in outcome.failed.message for name in modes if name != ".")
    assert set(rig.keys()) == {f"job/{name}" for name in stored}
    rig.run(rig.task(OUT, "job"))
    assert set(rig.keys()) == {"job/small", "job/big", "job/d/in"}


def test_stage_out_uploads_large_file_in_parts_and_small_file_at_once_with_signed_md5(rig: StagingRig) -> None:
    """The MD5 stands in for a digest of the body in the signature. Nothing is asked before a body is sent."""
    lay(rig, {"small": b"1", "big": NOISE})
    outcome = rig.run(rig.task(OUT, "job"))
    assert (rig.get("job/small"), rig.get("job/big")) == (b"1", NOISE)
    assert sum("partNumber=" in path for path in puts(rig)) == 3
    assert outcome.of(Progress)[-1].bytes == len(NOISE) + 1
    assert rig.uploads() == []
    asked = zip(rig.proxy.requests, rig.proxy.authorizations, strict=True)
    signed = [by for (method, _, _), by in asked if method == "PUT"]
    assert len(signed) == 4
    assert all("content-md5;" in by for by in signed)
    assert not any("small" in path for path in rig.proxy.expected)


def test_stage_out_resends_file_that_is_written_during_upload(rig: StagingRig) -> None:
    lay(rig, {"log": b"line 1\n", "big": NOISE})
    left = {"/log": 1, "partNumber=2": 1}

    def write(method: str, path: str) -> None:
        for text, times in left.items():
            if method == "PUT" and text in path and times:
                left[text] -= 1
                with (rig.local / ("log" if text == "/log" else "big")).open("ab") as file:
                    file.write(b"more\n")

    rig.proxy.before = write
    outcome = rig.run(rig.task(OUT, "job"))
    assert rig.get("job/log") == b"line 1\nmore\n"
    assert rig.get("job/big") == NOISE + b"more\n"
    assert sum("written while it was read" in retry.why for retry in outcome.of(Retry)) == 2
    assert rig.uploads() == []


def test_stage_out_notes_file_that_is_written_during_every_upload(rig: StagingRig) -> None:
    lay(rig, {"log": b"0"})

    def write(method: str, path: str) -> None:
        if method == "PUT":
            with (rig.local / "log").open("ab") as file:
                file.write(b"+")

    rig.proxy.before = write
    outcome = rig.run(rig.task(OUT, "job"))
    assert outcome.done.files == 1
    assert rig.get("job/log") == b"0++"
    assert any("written each time" in note.why for note in outcome.of(Note))
    rig.proxy.before = lambda _method, _path: None
    assert rig.run(rig.task(OUT, "job")).done.kept == 0
    assert rig.get("job/log") == b"0+++"


def test_stage_out_resumes_multipart_upload_after_kill(rig: StagingRig) -> None:
    lay(rig, {"big": NOISE})
    rig.proxy.rules = [Rule("PUT", "partNumber", after=2, hang_s=600)]
    killed = rig.start(rig.task(OUT, "job", parallel=1))
    until(lambda: any("partNumber=3" in path for _, path, _ in list(rig.proxy.requests)), "the third part")
    killed.kill()
    killed.wait()
    rig.proxy.rules.clear()
    rig.proxy.requests.clear()
    rig.proxy.taken.clear()
    outcome = rig.run(rig.task(OUT, "job"))
    assert rig.get("job/big") == NOISE
    assert [path.partition("partNumber=")[2][:1] for path in puts(rig) if "partNumber" in path] == ["3"]
    assert outcome.of(Progress)[-1].bytes == len(NOISE)
    assert outcome.done.bytes == len(NOISE) - 10 * MIB
    assert rig.uploads() == []


def test_stage_out_aborts_multipart_upload_of_changed_or_deleted_file(rig: StagingRig) -> None:
    lay(rig, {"big": NOISE, "gone": NOISE[::-1]})
    rig.proxy.rules = [Rule("POST", "uploadId=", status=403, code="ExpiredToken")]
    assert rig.run(rig.task(OUT, "job", parallel=1)).status == 77
    assert rig.uploads() != []
    rig.proxy.rules.clear()
    (rig.local / "big").write_bytes(NOISE[:-1])
    (rig.local / "gone").unlink()
    rig.run(rig.task(OUT, "job"))
    assert rig.get("job/big") == NOISE[:-1]
    assert rig.uploads() == []


def test_stage_out_restarts_multipart_upload_that_store_no_longer_knows(rig: StagingRig) -> None:
    lay(rig, {"big": NOISE})
    rig.proxy.rules = [Rule("POST", "uploadId=", status=403, code="ExpiredToken")]
    assert rig.run(rig.task(OUT, "job")).status == 77
    rig.proxy.rules = [Rule("POST", "uploadId=", times=1, status=404, code="NoSuchUpload")]
    assert rig.run(rig.task(OUT, "job")).done.files == 1
    assert rig.get("job/big") == NOISE


def test_stage_out_classifies_missing_bucket_and_full_store(rig: StagingRig) -> None:
    lay(rig, {"a": b"1"})
    none = replace(rig.store, container="there-is-none")
    for check in (True, False):
        outcome = rig.run(rig.task(OUT, "job", store=none), check=check)
        assert (outcome.status, outcome.failed.class_, outcome.failed.code) == (66, FaultClass.MISSING, "S303")
    rig.proxy.rules = [Rule("PUT", status=507, code="XMinioStorageFull")]
    outcome = rig.run(rig.task(OUT, "job"))
    assert (outcome.status, outcome.failed.class_) == (73, FaultClass.FULL)
    assert "key job/a" in outcome.failed.message


def test_stage_out_uploads_other_files_when_store_rejects_one_name(rig: StagingRig) -> None:
    """Such a store is the test's own server, whose paths end at a line's end; S3 takes any name in UTF-8."""
    for name in ("a", "odd\nname", "z"):
        (rig.local / name).parent.mkdir(parents=True, exist_ok=True)
        (rig.local / name).write_bytes(name.encode())
    outcome = rig.run(rig.task(Direction.OUT, "out"))
    assert sorted(rig.keys()) == ["out/a", "out/z"]
    assert outcome.failed.class_ is FaultClass.REFUSED
    assert "key out/odd\\nname: it answered 404 (Not Found); give it another name" in outcome.failed.message
    (note,) = outcome.of(Note)
    assert note.why.startswith("out/odd\\nname cannot be stored: it answered 404")
    again = rig.run(rig.task(Direction.OUT, "out"))
    assert again.failed.message == outcome.failed.message
    (rig.local / "odd\nname").unlink()
    assert rig.run(rig.task(Direction.OUT, "out")).done.kept == 2
