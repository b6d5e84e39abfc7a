"""The pure parts of the test cluster: apt sources, cache keys, layers, the boot script, records, command lines."""

from __future__ import annotations

import os
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cluster.rig import layers, record
from tests.cluster.rig.access import enter_argv
from tests.cluster.rig.boot import Bind, NodeLayout, boot_script
from tests.cluster.rig.errors import RigError
from tests.cluster.rig.processes import Process
from tests.cluster.rig.python_layers import Project, write_project_layer
from tests.cluster.rig.record import Blueprint, Record
from tests.cluster.rig.rootfs import Recipe
from tests.cluster.rig.sources import choose_mirror, parse_deb822, parse_one_line
from tests.cluster.rig.topology import NODES

DEB822 = """\
# written by a person
Types: deb deb-src
URIs: http://mirror.example/debian
Suites: bookworm
 bookworm-updates
Components: main contrib
# a comment inside
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://mirror.example/debian-security
Suites: bookworm-security
Components: main

Enabled: no
Types: deb
URIs: http://off.example/debian
Suites: sid
Components: main
"""


def test_deb822_parser_reads_continued_lines_and_comments() -> None:
    found = list(parse_deb822(DEB822))
    assert [source.uri for source in found] == ["http://mirror.example/debian", "http://mirror.example/debian-security"]
    assert found[0].suites == ("bookworm", "bookworm-updates")


def test_one_line_source_parser_reads_options_and_skips_comments() -> None:
    text = "# deb http://no.example x main\ndeb [arch=amd64 trusted=yes] http://yes.example/debian sid main # why\n"
    (source,) = parse_one_line(text)
    assert (source.uri, source.suites, source.components, source.trusted) == (
        "http://yes.example/debian",
        ("sid",),
        ("main",),
        True,
    )


def test_choose_mirror_prefers_main_archive_over_security_archive() -> None:
    security_first = list(reversed(list(parse_deb822(DEB822))))
    chosen = choose_mirror(security_first)
    assert chosen is not None
    assert chosen.uri == "http://mirror.example/debian"
    assert choose_mirror(list(parse_one_line("deb file:/srv/mirror sid main\n"))) is None


def test_recipe_key_depends_on_suite_and_apptainer() -> None:
    keys = {Recipe(suite, apptainer).key for suite in ("sid", "trixie") for apptainer in (None, "sid")}
    assert len(keys) == 4


def test_layer_digest_depends_on_boundaries_between_list_items() -> None:
    assert layers.digest(["ab", "c"]) != layers.digest(["a", "bc"])


def test_layer_cache_discards_interrupted_build(tmp_path: Path) -> None:
    def fail(directory: Path, _log: Path) -> None:
        (directory / "half").touch()
        raise RigError("the network went away")

    def succeed(directory: Path, _log: Path) -> None:
        (directory / "whole").touch()

    with pytest.raises(RigError):
        layers.obtain(tmp_path, "thing", "k", fail)
    layer = layers.obtain(tmp_path, "thing", "k", succeed)
    assert [path.name for path in layer.path.iterdir()] == ["whole"]
    assert layers.obtain(tmp_path, "thing", "k", fail) == layer


@pytest.mark.parametrize("spec", NODES, ids=lambda spec: spec.name)
def test_boot_script_is_valid_shell_for_paths_with_special_characters(tmp_path: Path, spec: object) -> None:
    odd = tmp_path / "a b$(id)'\""
    node = next(node for node in NODES if node == spec)
    binds = (Bind(odd, "/home"), Bind(odd, "/opt/ffdl/src", read_only=True))
    layout = NodeLayout(node, (odd,), odd, odd, binds, "one", confined=True)
    script = boot_script(layout)
    assert subprocess.run(["sh", "-n"], input=script, text=True, check=False).returncode == 0
    assert shlex.quote(str(odd)) in script


def test_enter_argv_gives_user_a_clean_login_environment() -> None:
    argv = enter_argv(42, ["true"], user="alice", env={"X": "1"})
    bare = argv[argv.index("env") :]
    assert bare == [
        "env", "-i", "--chdir=/home/alice", "HOME=/home/alice", "USER=alice", "LOGNAME=alice", "SHELL=/bin/bash",
        "PATH=/opt/ffdl/venv/bin:/usr/local/bin:/usr/bin:/bin", "X=1", "true",
    ]  # fmt: skip


def test_enter_argv_rejects_unknown_user() -> None:
    with pytest.raises(KeyError, match="alice, bob"):
        enter_argv(42, ["true"], user="mallory")


def test_process_alive_requires_recorded_start_time() -> None:
    me = Process.current()
    assert me.alive()
    assert not replace(me, start_ticks=me.start_ticks + 1).alive()


def test_record_survives_round_trip_and_detects_dead_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "RUN_DIR", tmp_path)
    plan = Blueprint("sid", ("/a", "/b"), "/src", "26.05.5", True, True, {"KILL_WAIT_S": "1"})
    mine = Record("one", tmp_path / "state", Process.current(), True, plan)
    record.write(mine)
    assert record.all_records() == [mine]
    assert not mine.abandoned()
    assert replace(mine, owner=Process(os.getpid(), 1)).abandoned()
    assert not replace(mine, owner=None).abandoned()


def test_remove_state_keeps_directory_that_rig_did_not_create(tmp_path: Path) -> None:
    (tmp_path / "precious").touch()
    record.remove_state(tmp_path)
    assert (tmp_path / "precious").exists()


def test_project_layer_contains_live_paths_scripts_and_entry_points(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(
        '[project]\nname = "a-b"\nversion = "1.2"\ndependencies = ["click>=8"]\n'
        '[project.scripts]\ndo = "a_b.cli:main"\n[project.entry-points."a_b.adapters"]\nlocal = "x:create"\n'
        '[tool.hatch.build.targets.wheel.shared-scripts]\n"bin/other" = "ready"\n'
    )
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/other").write_text("#!/bin/sh\n")
    write_project_layer(tmp_path / "layer", Project.read(tmp_path), (3, 14))
    venv = tmp_path / "layer/opt/ffdl/venv"
    packages = venv / "lib/python3.14/site-packages"
    assert (packages / "ffdl-checkout.pth").read_text() == "/opt/ffdl/src\n/opt/ffdl/src/adapters\n"
    assert "[a_b.adapters]\nlocal = x:create\n" in (packages / "a_b-1.2.dist-info/entry_points.txt").read_text()
    assert "from a_b.cli import main" in (venv / "bin/do").read_text()
    assert (venv / "bin/ready").read_text() == "#!/bin/sh\n"
    assert all(os.access(venv / "bin" / name, os.X_OK) for name in ("do", "ready"))
