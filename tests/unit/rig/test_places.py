"""Two clusters on one machine: who gets a place, which cluster is meant, and whose cgroups are whose."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from tests.cluster.rig import ClusterOptions, cgroups, record
from tests.cluster.rig import __main__ as rig
from tests.cluster.rig.boot import NodeLayout, boot_script
from tests.cluster.rig.errors import RigError
from tests.cluster.rig.processes import Process
from tests.cluster.rig.record import Blueprint, Record
from tests.cluster.rig.topology import NODES

PLAN = Blueprint("sid", (), "/src", "26.05.5", True, True, {})
KEPT = Record("kept", Path("/nowhere"), None, True, PLAN)
OWNED = Record("owned", Path("/nowhere"), Process.current(), True, PLAN)
LEFT = Record("left", Path("/nowhere"), Process(Process.current().pid, 1), True, PLAN)


@pytest.fixture(autouse=True)
def own_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records of this test alone."""
    monkeypatch.setattr(record, "RUN_DIR", tmp_path)


@pytest.mark.parametrize("other", [KEPT, OWNED])
def test_place_on_host_admits_second_cluster_and_returns_abandoned_ones(other: Record) -> None:
    record.write(other)
    record.write(LEFT)
    with record.place_on_host("new", 0) as abandoned:
        assert abandoned == [LEFT]


def test_place_on_host_rejects_third_cluster_without_waiting_for_retained_ones() -> None:
    record.write(KEPT)
    record.write(replace(KEPT, cluster_id="second"))
    told = r"'kept' .*--id kept down.*'second' .*room for 2"
    with pytest.raises(RigError, match=told), record.place_on_host("new", 600):
        pass
    record.write(replace(OWNED, cluster_id="second"))
    with pytest.raises(RigError, match="room for 2"), record.place_on_host("new", 0):
        pass


def test_place_on_host_rejects_cluster_id_in_use() -> None:
    record.write(KEPT)
    with pytest.raises(RigError, match=r"'kept' .* must end"), record.place_on_host("kept", 600):
        pass


def test_only_one_prefers_cluster_of_up_and_asks_for_an_id_if_several_fit() -> None:
    assert record.only_one([]) == "ffdl"
    assert record.only_one([KEPT]) == "kept"
    assert record.only_one([OWNED, KEPT]) == "kept"
    with pytest.raises(RigError, match=r"kept, kept; name one: .*--id"):
        record.only_one([KEPT, OWNED, KEPT])


def test_cluster_options_take_cluster_id_from_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FFDL_TEST_CLUSTER", raising=False)
    assert ClusterOptions().cluster_id == "ffdl"
    monkeypatch.setenv("FFDL_TEST_CLUSTER", "ffdl2")
    assert ClusterOptions().cluster_id == "ffdl2"


def test_boot_script_binds_confined_node_to_cgroup_of_its_cluster() -> None:
    assert cgroups.own_name("a", "n1") != cgroups.own_name("b", "n1")
    ctl, node = NODES[0], NODES[-1]
    layout = NodeLayout(node, (), Path("/e"), Path("/p"), (), "a", confined=True)
    script = boot_script(layout)
    assert f"mount --bind ffdl-a-{node.name} slurm_{node.name}" in script
    assert script.index("mount --rbind /sys/fs/cgroup") < script.index("mount --bind ffdl-a-") < script.index("pivot")
    for other in (replace(layout, spec=ctl), replace(layout, confined=False)):
        assert "ffdl-a" not in boot_script(other)


def test_cgroup_removal_keeps_cgroups_of_other_clusters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroups, "CGROUP_ROOT", tmp_path)
    for name in ("ffdl-a-n1", "ffdl-b-n1", "slurm_n1"):
        (tmp_path / "memory" / name / "uid_1").mkdir(parents=True)
    cgroups.remove("a", "n1")
    assert {path.name for path in (tmp_path / "memory").iterdir()} == {"ffdl-b-n1", "slurm_n1"}
    assert (tmp_path / "memory" / "ffdl-b-n1" / "uid_1").is_dir()


@pytest.mark.parametrize("words", [["up", "--id", "second"], ["--id", "second", "up"], ["up"]])
@pytest.mark.parametrize("is_up", [False, True])
def test_rig_up_prints_hints_that_name_its_cluster(
    words: list[str], is_up: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "second" if "--id" in words else "ffdl"
    cluster = Mock(**{"versions.return_value": {"slurm": "26.05.5"}, "run.return_value.stdout": "main* up\n"})
    monkeypatch.setattr(rig, "Cluster", Mock(**{"up.return_value": cluster, "attach.return_value": cluster}))
    record.write(replace(KEPT, cluster_id="other"))
    if is_up:
        record.write(replace(KEPT, cluster_id=name, blueprint=replace(PLAN, suite=ClusterOptions().suite)))
    assert rig.main(words) == 0
    hints = capsys.readouterr().out.splitlines()[2:]
    commands = [hint for hint in hints if "sudo" in hint]
    assert len(commands) == 3 and all(f"--id {name}" in hint for hint in commands)
    assert "NAME" not in "".join(hints)
    down = next(shlex.split(hint) for hint in commands if "make cluster-down" in hint)
    assert down[-1] == f"CLUSTER=--id {name}"


@pytest.mark.parametrize("words", [["--id", "b", "down"], ["down", "--id", "b"]])
def test_rig_accepts_id_before_and_after_command(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert rig.main(words) == 0
    assert "cluster 'b' is not up" in "".join(capsys.readouterr())
