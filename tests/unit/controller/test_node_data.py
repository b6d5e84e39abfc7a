"""A node mounts stores or copies their data, and records which and why."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ffdl_batch.attempt.event_journal import Journal
from ffdl_batch.attempt.layout import AttemptDir, JobDir
from ffdl_batch.attempt.phase_files import PhaseFailed
from ffdl_batch.controller.data import input_loading, transfers
from ffdl_batch.controller.data.cache_entries import Entries
from ffdl_batch.controller.data.input_loading import NodeData
from ffdl_batch.controller.mounts.node_mounts import NodeMounts
from ffdl_batch.domain.data.mounts import Brought, Mounts
from ffdl_batch.domain.data.staging_protocol import Cached, StageTask, Transfer
from ffdl_batch.domain.data.store_kinds import StoreAddress, StoreKind
from ffdl_batch.domain.launch.launch_file import Pod
from ffdl_batch.domain.launch.placeholders import literal
from tests.unit.controller.rig import launch_file

STORE = StoreAddress(StoreKind.S3, container="sets")


class Node:
    """A node with two fetches: `lacks` and `fails` say why it mounts nothing at all, or not this."""

    def __init__(self, base: Path, monkeypatch: pytest.MonkeyPatch, mounts: Mounts, lacks: str, fails: str) -> None:
        self.attempt = AttemptDir(str(base / "a"))
        for directory in (self.attempt.learner_logs(1), self.attempt.events):
            Path(directory).mkdir(parents=True)
        fetches = tuple(Transfer(STORE, name, str(base / name)) for name in ("one", "two"))
        launch = launch_file(self.attempt.path, fetches=fetches, mounts=mounts)
        self.brought: list[str] = []
        self.journal = Journal(str(base / "node-0.jsonl"), "node-0")
        self.data = NodeData(launch, 0, str(base), self.journal)
        monkeypatch.setattr(input_loading, "lacking", lambda: lacks)
        monkeypatch.setattr(input_loading, "check_mountable", lambda *_: None)
        monkeypatch.setattr(input_loading, "bring_data", self.bring)
        monkeypatch.setattr(NodeMounts, "mount", lambda *_: fails)

    def bring(self, *given: Any, **_: object) -> None:
        self.brought += [fetch.prefix for fetch in given[4]]

    def told(self) -> list[tuple[object, ...]]:
        return [(one.fields["fetch"], one.fields["how"], one.fields["message"]) for one in self.journal.events]

    def log(self) -> str:
        return Path(self.attempt.training_log(1)).read_text()


FTP = "stores of the protocol ftp are not mounted"


@pytest.mark.parametrize(
    ("mounts", "lacks", "fails", "brought", "why"),
    [
        (Mounts((0,)), "", "", ["two"], ""),
        (Mounts((0,)), "rclone is not installed", "", ["one", "two"], "rclone is not installed"),
        (Mounts((0,)), "", "rclone exited with status 3", ["one", "two"], "rclone exited with status 3"),
        (Mounts((), True, brought=(Brought(0, FTP),)), "", "", ["one", "two"], FTP),
    ],
    ids=["mounted", "lacking", "failing", "never mounted"],
)
def test_node_data_records_whether_data_is_mounted_or_copied_and_why(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mounts: Mounts,
    lacks: str,
    fails: str,
    brought: list[str],
    why: str,
) -> None:
    node = Node(tmp_path, monkeypatch, mounts, lacks, fails)
    node.data.have(lambda: None)
    assert node.brought == brought
    message = f"sets/one is not mounted: {why}" if why else "sets/one is mounted"
    assert node.told() == [(0, "staged" if why else "mounted", message)]
    assert node.log() == f"ffdl: loading data: {message}{'; its data are copied' if why else ''}\n"


@pytest.mark.parametrize(("lacks", "fails"), [("no device", ""), ("", "no device")])
def test_node_data_fails_with_s302_when_required_mount_is_impossible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lacks: str, fails: str
) -> None:
    node = Node(tmp_path, monkeypatch, Mounts((0,), True), lacks, fails)
    with pytest.raises(PhaseFailed, match="sets/one cannot be mounted: no device") as caught:
        node.data.have(lambda: None)
    assert (caught.value.code, node.brought, node.told()) == ("S302", [], [])


def test_cache_entry_is_held_only_when_tree_and_lock_exist(tmp_path: Path) -> None:
    tree, lock = tmp_path / "tree", tmp_path / "lock"
    found = Cached(0, "k", str(tree), str(lock), 1, False)
    entries = Entries()
    assert not entries.hold(found)
    lock.touch()
    assert not entries.hold(found)
    tree.mkdir()
    assert entries.hold(found)
    assert entries.hold(replace(found, filled=True))


@pytest.mark.parametrize("apart", [True, False])
def test_pods_with_copies_of_checkpoints_store_none_that_they_only_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, apart: bool
) -> None:
    job = JobDir(str(tmp_path))
    Path(job.checkpoints).mkdir()
    launch = replace(
        launch_file(job.attempt(2).path, job_dir=job.path, uploads=(Transfer(STORE, "p", literal(job.checkpoints)),)),
        pod=Pod(str(tmp_path), apart=apart),
    )
    sent: list[StageTask] = []
    monkeypatch.setattr(transfers, "run_staging", lambda _, task, *more: sent.append(task))
    transfers.send_results(launch, 1, lambda: None)
    assert [task.brought_dir for task in sent] == [job.staging if apart else ""]
