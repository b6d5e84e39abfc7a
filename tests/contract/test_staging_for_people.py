"""What commands of people ask of staging: listings, single files, and that nothing of theirs is replaced."""

from __future__ import annotations

import glob
import os
import random

import pytest

from ffdl_batch.domain.data.staging_protocol import Direction, Entry, FaultClass
from ffdl_batch.domain.data.store_kinds import StoreAddress, StoreKind
from tests.staging_rig import MIB, Outcome, StagingRig, rig

__all__ = ["rig"]
NOISE = random.Random(14).randbytes(6 * MIB + 5)
OUT = Direction.OUT


def test_staging_list_prints_names_and_sizes_without_transfer(rig: StagingRig) -> None:
    for key, data in {"set/a": b"1", "set/deep/b c": b"22", "set/empty/": b"", "other": b"333"}.items():
        rig.put(key, data)

    def listed(prefix: str, *only: str) -> Outcome:
        return rig.run(rig.task(prefix=prefix, only=only), lists=True)

    outcome = listed("set")
    assert [(entry.name, entry.size) for entry in outcome.of(Entry)] == [("a", 1), ("deep/b c", 2)]
    assert all(entry.mtime > 1e9 for entry in outcome.of(Entry))
    assert outcome.done.files == 2
    assert [entry.name for entry in listed("set/a").of(Entry)] == ["a"]
    assert [entry.name for entry in listed("", "set/deep/*").of(Entry)] == ["set/deep/b c"]
    assert not rig.local.exists()
    assert listed("none").failed.class_ is FaultClass.MISSING


def test_stage_out_sends_single_named_file_without_listing(rig: StagingRig) -> None:
    name = "odd [1]*?.txt"
    (rig.local / "deep").mkdir(parents=True)
    for other in (name, "other", "deep/c"):
        (rig.local / other).write_bytes(b"1")
    task = rig.task(OUT, "here", only=(glob.escape(name),))
    assert rig.run(task).done.files == 1
    assert rig.keys() == [f"here/{name}"]
    assert [path for _, path, _ in rig.proxy.requests if "list-type" in path] == []
    assert rig.run(task).done.kept == 1
    elsewhere = rig.task(OUT, "here", only=(glob.escape(name),), state_dir=str(rig.directory / "elsewhere"))
    assert rig.run(elsewhere).done.kept == 1


def test_stage_in_refuses_to_replace_existing_local_file(rig: StagingRig) -> None:
    rig.put("set/a", b"theirs")
    rig.put("set/b", b"theirs")
    rig.local.mkdir()
    (rig.local / "a").write_bytes(b"mine!!")
    kind = rig.task(prefix="set", replaces=False)
    outcome = rig.run(kind)
    assert (outcome.status, outcome.failed.class_) == (76, FaultClass.REFUSED)
    assert "(a)" in outcome.failed.message and "name another directory" in outcome.failed.message
    assert rig.files() == {"a": b"mine!!"}
    assert rig.run(rig.task(prefix="set")).done.files == 2
    assert rig.files() == {"a": b"theirs", "b": b"theirs"}


def test_stage_in_replaces_own_earlier_download_but_not_edited_file(rig: StagingRig) -> None:
    rig.put("set/a", b"first")
    task = rig.task(prefix="set", replaces=False)
    rig.run(task)
    rig.put("set/a", b"second")
    assert rig.run(task).done.files == 1
    assert rig.files() == {"a": b"second"}
    (rig.local / "a").write_bytes(b"by hand")
    rig.put("set/a", b"third")
    assert rig.run(task).failed.class_ is FaultClass.REFUSED


def test_stage_in_keeps_identical_local_files_without_journal(rig: StagingRig) -> None:
    rig.put("set/a", b"1")
    rig.put("set/empty", b"")
    rig.put_in_parts("set/parts", NOISE[: 5 * MIB], NOISE[5 * MIB :])
    rig.run(rig.task(prefix="set"))
    again = rig.task(prefix="set", replaces=False, state_dir=str(rig.directory / "elsewhere"))
    outcome = rig.run(again).done
    assert (outcome.kept, outcome.bytes) == (3, 0)
    with (rig.local / "parts").open("r+b") as file:
        file.write(b"x")
    os.utime(rig.local / "parts", (1, 1))
    third = rig.task(prefix="set", replaces=False, state_dir=str(rig.directory / "third"))
    assert rig.run(third).failed.class_ is FaultClass.REFUSED


def test_stage_in_refuses_to_replace_file_or_link_with_directory(rig: StagingRig) -> None:
    rig.put("set/deep/a", b"1")
    rig.local.mkdir()
    elsewhere = rig.directory / "elsewhere"
    elsewhere.mkdir()
    (rig.local / "deep").symlink_to(elsewhere)
    task = rig.task(prefix="set", replaces=False)
    assert rig.run(task).failed.class_ is FaultClass.REFUSED
    assert (rig.local / "deep").is_symlink()
    (rig.local / "deep").unlink()
    (rig.local / "deep").write_bytes(b"a file")
    assert rig.run(task).failed.class_ is FaultClass.REFUSED
    assert rig.files() == {"deep": b"a file"}


@pytest.mark.usefixtures("bound_by_modes")
@pytest.mark.parametrize("lists", [False, True])
@pytest.mark.parametrize("mode", [0, 0o444, 0o111])
def test_stage_in_names_directory_of_prefix_that_cannot_be_read(rig: StagingRig, mode: int, lists: bool) -> None:
    store = rig.directory / "store"
    (store / "set").mkdir(parents=True)
    (store / "set" / "a").write_text("1")
    (store / "set").chmod(mode)
    task = rig.task(prefix="set", store=StoreAddress(StoreKind.FILE, container=str(store)))
    outcome = rig.run(task, lists=lists)
    (store / "set").chmod(0o700)
    assert (outcome.status, outcome.failed.class_) == (76, FaultClass.REFUSED)
    assert f"1 file or directory was not read ({store}/set: Permission denied)" in outcome.failed.message
