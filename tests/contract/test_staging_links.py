"""What stores do not keep of a tree, and whoever brings it back has all the same: links, modes, empty directories."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest

from ffdl_batch.domain.data.staging_protocol import Note
from ffdl_batch.domain.data.store_kinds import StoreAddress, StoreKind
from tests.contract.linked_tree import IN, INDEX, KEPT_LINKS, OUT, check_back, lay, links_of, task_of
from tests.staging_rig import StagingRig, rig

__all__ = ["rig"]


def notes_of(lines: list[Note]) -> str:
    return "\n".join(note.why for note in lines)


@pytest.mark.usefixtures("bound_by_modes")
@pytest.mark.parametrize("kind", [StoreKind.S3, StoreKind.FILE])
def test_stored_tree_comes_back_with_links_modes_holes_and_empty_directories(
    rig: StagingRig, tmp_path: Path, kind: StoreKind
) -> None:
    lay(rig.local / "job" if kind is StoreKind.FILE else rig.local)
    store, place = rig.store, tmp_path / "back"
    if kind is StoreKind.FILE:
        store = StoreAddress(kind, container=str(rig.local))
    else:
        assert rig.run(task_of(rig, OUT)).done.skipped == 0
        assert rig.proxy.requests[-1][:1] == ("PUT",) and rig.proxy.requests[-1][1].endswith(INDEX)
    for _ in range(2):
        assert rig.run(task_of(rig, IN, place, store=store)).done.skipped == 0
        check_back(place)
    assert ".ffdl-index" not in str(rig.run(task_of(rig, IN, place), lists=True).lines)


def test_stage_out_updates_index_and_keeps_entries_of_other_senders(rig: StagingRig, tmp_path: Path) -> None:
    lay(rig.local)
    rig.run(task_of(rig, OUT))
    index = json.loads(rig.get(INDEX))
    index["entries"].append({"name": "theirs", "target": "epoch3"})
    rig.put(INDEX, json.dumps(index).encode())
    (rig.local / "latest").unlink()
    (rig.local / "latest").symlink_to("deep")
    (rig.local / "dangling").unlink()
    (rig.local / "dangling").write_text("a file now")
    before = len(rig.proxy.requests)
    for _ in range(2):
        rig.run(task_of(rig, OUT))
    assert sum(method == "PUT" and path.endswith(INDEX) for method, path, *_ in rig.proxy.requests[before:]) == 1
    rig.run(task_of(rig, IN, tmp_path / "back"))
    wanted = {**KEPT_LINKS, "latest": "deep", "theirs": "epoch3"}
    del wanted["dangling"]
    assert links_of(tmp_path / "back") == wanted


def test_stage_out_while_running_stores_index_when_a_link_changes(rig: StagingRig) -> None:
    lay(rig.local)
    for target in ("epoch3", "epoch3", "deep"):
        (rig.local / "latest").unlink()
        (rig.local / "latest").symlink_to(target)
        rig.run(task_of(rig, OUT, rest_s=1.0))
    assert sum(method == "PUT" and path.endswith(INDEX) for method, path, *_ in rig.proxy.requests) == 2


@pytest.mark.parametrize("above", ["", "deep/er/"])
def test_stage_in_from_directory_names_pipes_and_sockets_that_it_leaves_out(
    rig: StagingRig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, above: str
) -> None:
    (rig.local / "job" / above).mkdir(parents=True)
    (rig.local / "job" / above / "file").write_text("x")
    os.mkfifo(rig.local / "job" / above / "pipe")
    monkeypatch.chdir(rig.local / "job" / above)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("talk")
    store = StoreAddress(StoreKind.FILE, container=str(rig.local))
    outcome = rig.run(task_of(rig, IN, tmp_path / "back", store=store))
    assert (outcome.done.files, outcome.done.skipped) == (1, 2)
    assert [note.why for note in outcome.of(Note)] == [
        f"{above}pipe is left out: it is a named pipe",
        f"{above}talk is left out: it is a socket",
    ]


def test_stage_out_notes_links_that_lead_out_and_special_files(rig: StagingRig) -> None:
    (rig.local / "deep").mkdir(parents=True)
    for name, target in {"a": "/etc", "b": "..", "deep/\x1b[2J": "../../x"}.items():
        (rig.local / name).symlink_to(target)
    os.mkfifo(rig.local / "pipe")
    outcome = rig.run(task_of(rig, OUT))
    assert rig.keys() == []
    notes = notes_of(outcome.of(Note))
    for words in ("a is left out: it is a link that leads out of the directory, to /etc", "to ..", "deep/\\x1b[2J"):
        assert words in notes
    assert outcome.done.skipped == 4


HOSTILE: dict[str, dict[str, str]] = {
    "absolute": {"name": "x", "target": "/etc"},
    "upwards": {"name": "y", "target": "../outside"},
    "through a link": {"name": "z", "target": "inner/../../outside"},
    "name upwards": {"name": "../x", "target": "data"},
    "absolute name": {"name": "/x", "target": "data"},
    "over an object": {"name": "data", "target": "other"},
    "over a directory": {"name": "sub", "target": "other"},
    "below an object": {"name": "data/x", "target": "other"},
    "below a link": {"name": "inner/x", "target": "other"},
    "directory over an object": {"name": "data/", "mode": "755"},
}


def test_stage_in_restores_no_entry_that_leads_out_or_replaces_data(rig: StagingRig) -> None:
    for name in ("data", "other", "sub/file"):
        rig.put(f"job/{name}", name.encode())
    entries = [{"name": "inner", "target": "sub"}, *HOSTILE.values()]
    rig.put(INDEX, json.dumps({"format": 1, "entries": entries}).encode())
    outcome = rig.run(task_of(rig, IN))
    assert outcome.done.skipped == len(HOSTILE)
    notes = notes_of(outcome.of(Note))
    for entry in HOSTILE.values():
        assert f"{entry['name'].rstrip('/')} is left out: " in notes, entry
    assert links_of(rig.local) == {"inner": "sub"}
    assert {path.name for path in rig.directory.iterdir()} == {"data", "state", "secrets.json", "task.json", "output"}
    assert rig.files() == {name: name.encode() for name in ("data", "other", "sub/file")}


@pytest.mark.parametrize(
    "index",
    [
        b"{",
        b"[]",
        b'{"format": 2, "entries": []}',
        b'{"format": 1, "entries": [{"name": "a", "mode": "7755"}]}',
        b'{"format": 1, "entries": [{"name": "a", "mode": "1755"}]}',
        b'{"format": 1, "entries": [{"name": "a/", "mode": "3755"}]}',
        b'{"format": 1, "entries": [{"name": 1}]}',
        b'{"format": 1, "entries": [{"target": "a"}]}',
        b'{"format": 1, "entries": [{"name": "a", "mode": "rwx"}]}',
        b" " * (17 << 20),
    ],
    ids=["cut", "list", "newer", "setuid", "sticky file", "setgid directory", "number", "nameless", "letters", "large"],
)
def test_stage_in_brings_data_beside_damaged_index_and_notes_it(rig: StagingRig, index: bytes) -> None:
    rig.put("job/data", b"1")
    rig.put(INDEX, index)
    outcome = rig.run(task_of(rig, IN))
    assert "job/.ffdl-index.json, the index of links, modes and empty directories, cannot be used" in notes_of(
        outcome.of(Note)
    )
    assert (rig.files(), outcome.done.files) == ({"data": b"1"}, 1)


def test_stage_in_replaces_only_links_that_it_has_made(rig: StagingRig) -> None:
    lay(rig.local)
    rig.run(task_of(rig, OUT))
    mine = rig.directory / "mine"
    (mine / "contained").mkdir(parents=True)
    (mine / "dangling").symlink_to("of the user")
    outcome = rig.run(task_of(rig, IN, mine, replaces=False))
    assert outcome.done.skipped == 2
    assert links_of(mine) == {**{k: v for k, v in KEPT_LINKS.items() if k != "contained"}, "dangling": "of the user"}
    for name in ("latest", "contained", "run.sh"):
        (rig.local / name).unlink()
    (rig.local / "latest").symlink_to("deep")
    (rig.local / "contained").write_text("a file now")
    (rig.local / "run.sh").symlink_to("secret")
    (mine / "contained").rmdir()
    (mine / "contained").symlink_to("epoch3")
    rig.client.delete_object(Bucket=rig.bucket, Key="job/run.sh")
    rig.run(task_of(rig, OUT))
    rig.run(task_of(rig, IN, mine, replaces=False)).failed  # noqa: B018 - the link is the user's
    (mine / "contained").unlink()
    rig.run(task_of(rig, IN, mine, replaces=False)).done  # noqa: B018
    assert links_of(mine) == {**links_of(mine), "latest": "deep", "run.sh": "secret"}
    (rig.local / "latest").unlink()
    (rig.local / "latest").write_text("a file now")
    rig.run(task_of(rig, OUT))
    rig.run(task_of(rig, IN, mine, replaces=False)).done  # noqa: B018
    assert (mine / "latest").read_text() == (mine / "contained").read_text() == "a file now"
