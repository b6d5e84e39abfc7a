"""What lasts on a node now is in a file of its own: while it does, once each, and for everybody."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.unit.rig.test_node_health import OFF_THE_BUS, Node

STALE = 'case "$*" in */shared) cat "$HERE/answer"; exit 1;; *) echo "100 2 100 50";; esac'


def lasting(node: Node) -> list[Mapping[str, Any]]:
    path = node.incidents.with_name("lasting")
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def devices(node: Node) -> list[str]:
    return [str(one["device"]) for one in lasting(node)]


def test_lasting_file_lists_condition_with_its_start_while_it_lasts(tmp_path: Path) -> None:
    node = Node(tmp_path, HEALTH_MOUNTS="/shared", HEALTH_DISKS="/data")
    node.program("stat", STALE)
    node.write("answer", "stat: Stale file handle\n")
    node.look()
    mount, full = lasting(node)  # what drains comes first
    assert (mount["kind"], mount["lasts"], mount["drains"], mount["device"]) == ("mount", True, True, "/shared")
    assert (full["kind"], full["drains"]) == ("full", False)
    (began,) = [one for one in node.found() if one["kind"] == "mount"]
    assert {name: mount[name] for name in began} == began
    inode = node.incidents.with_name("lasting").stat().st_ino
    node.look_a_minute_later()
    assert node.incidents.with_name("lasting").stat().st_ino == inode  # nothing is new: nothing is written
    node.write("answer", "100 50 100 50\n")
    node.look_a_minute_later()
    assert devices(node) == ["/data"]
    node.program("stat", "echo 100 50 100 50")
    node.look_a_minute_later()
    assert node.incidents.with_name("lasting").read_text() == ""


def test_lasting_file_keeps_draining_event_until_reboot(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.logs(OFF_THE_BUS, "EXT4-fs error (device sda1): bad block")
    node.look()
    node.look()
    assert [(one["kind"], one["drains"]) for one in lasting(node)] == [("gpu", True)]
    state_file = node.incidents.with_name("state.json")
    state_file.write_text(json.dumps(json.loads(state_file.read_text()) | {"boot_id": "an earlier one"}))
    node.log.write_text("")
    node.look()
    assert lasting(node) == []


def test_lasting_file_is_readable_by_all_and_bounded(tmp_path: Path) -> None:
    places = [f"/m{number}" for number in range(60)]
    node = Node(tmp_path, HEALTH_MOUNTS=":".join(places))
    node.program("stat", 'echo "Stale file handle"; exit 1')
    node.logs(*(OFF_THE_BUS.replace("3b", f"{number:02x}") for number in range(30)))
    node.look()
    path = node.incidents.with_name("lasting")
    assert path.stat().st_mode & 0o777 == 0o644
    assert len(lasting(node)) == 64


def test_lasting_file_is_written_again_if_it_is_missing(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.logs(OFF_THE_BUS)
    node.look()
    node.incidents.with_name("lasting").unlink()
    node.look()
    assert devices(node) == ["0000:3b:00"]


def test_lasting_file_includes_condition_remembered_by_earlier_release(tmp_path: Path) -> None:
    node = Node(tmp_path, HEALTH_MOUNTS="/shared")
    node.program("stat", 'echo "Stale file handle"; exit 1')
    node.look()
    state_file = node.incidents.with_name("state.json")
    state = json.loads(state_file.read_text())
    del state["lasting"], state["lasts_until_reboot"]
    state_file.write_text(json.dumps(state))
    node.look_a_minute_later()
    assert devices(node) == ["/shared"]
    assert len(node.found()) == 1
