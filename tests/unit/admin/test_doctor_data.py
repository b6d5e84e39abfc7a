"""What ffdl-admin doctor says of the staging program on nodes, and of nodes that are to mount data stores."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

import pytest

from ffdl_batch.domain.mounting import Mounting
from ffdl_batch.ports.examination import Item, Verdict
from ffdl_slurm.data_look import data_items
from tests.unit.admin.test_doctor import Site, site

__all__ = ["site"]
ABLE = {"fuse": "yes", "fusermount": "yes", "rclone": "1.60.1", "mounts_epilog": "yes", "staging": "ffdl_batch=0.1.0"}
PYTHON = "/opt/ffdl/bin/python"
FUSE = os.access("/dev/fuse", os.R_OK | os.W_OK)


def without(*names: str, **changed: str) -> dict[str, str]:
    return {name: value for name, value in {**ABLE, **changed}.items() if name not in names}


def mounts(told: Mapping[str, Mapping[str, str]], mounting: Mounting = Mounting.AUTO) -> list[tuple[Verdict, str]]:
    items = data_items(told, mounting, PYTHON)
    return [(item.verdict, item.text) for item in items if item.about == "data mounts"]


def test_data_items_reports_ok_if_all_nodes_can_mount() -> None:
    assert data_items({"n1": ABLE, "n2": ABLE}, Mounting.AUTO, PYTHON) == [
        Item("staging", Verdict.OK),
        Item("data mounts", Verdict.OK, "on all 2 nodes that were asked"),
    ]
    assert data_items({}, Mounting.AUTO, "") == []


@pytest.mark.parametrize(
    ("told", "why"),
    [
        (without("fuse"), "/dev/fuse is not there, or closed to this user,"),
        (without("fusermount"), "fusermount3 (package fuse3) is not installed"),
        (without("rclone"), "rclone is not installed"),
        (without(rclone=""), "rclone does not start"),
    ],
)
def test_data_items_judges_missing_mount_tools_by_data_mount_setting(told: dict[str, str], why: str) -> None:
    nodes = {"n1": ABLE, "n2": told, "n3": told}
    brought = f'{why} on n2, n3: data are brought there, as data_mount = "auto" has it'
    fails = f'{why} on n2, n3: jobs that read from stores fail there with S302, as data_mount = "always" has it'
    assert mounts(nodes) == [(Verdict.NOTE, brought)]
    assert mounts(nodes, Mounting.ALWAYS) == [(Verdict.WRONG, fails)]
    assert mounts(nodes, Mounting.NEVER) == []


def test_data_items_notes_missing_epilog_and_old_rclone() -> None:
    (first, second) = mounts({"n1": without("mounts_epilog", rclone="1.53.3-DEV"), "n2": ABLE}, Mounting.ALWAYS)
    assert first[0] is second[0] is Verdict.NOTE
    assert first[1].startswith("Epilog of slurm.conf has no 60-ffdl-mounts on n1: put that file of slurm-configs there")
    assert second[1].startswith("rclone 1.53.3-DEV on n1 does not look whether a host is known: SFTP")


def test_data_items_reports_missing_or_broken_staging_program() -> None:
    told = {"n1": ABLE, "n2": without(staging="No module named 'ffdl_batch'"), "n3": without(staging="")}
    (one, other) = data_items(told, Mounting.NEVER, PYTHON)
    assert (one.about, one.verdict) == ("staging", Verdict.WRONG)
    assert one.text.startswith(f"{PYTHON} does not start it on n2 (No module named 'ffdl_batch'): name the interpreter")
    assert "on n3 (it said nothing)" in other.text
    (note,) = data_items(told, Mounting.NEVER, "")
    assert (note.verdict, "are refused when they are submitted" in note.text) == (Verdict.NOTE, True)


def said(site: Site) -> list[str]:
    """Of the two, by a job on n1."""
    return [line for line in site.run("--nodes=n1")[1] if line[7:].startswith(("staging", "data mounts"))]


def test_doctor_checks_staging_and_data_mounts_on_node(site: Site) -> None:
    """The step that is sent there, really run."""
    (site.place / "epilogs").mkdir()
    hook = site.place / "epilogs" / "60-ffdl-mounts"
    site.slurm_conf(**{"Epilog[0]": f"{site.place}/epilogs/*"})
    site.program("rclone", "#!/bin/sh\necho rclone v1.60.1-DEV\necho '- os: debian'\n")
    site.program("fusermount3", "#!/bin/sh\n")
    site.settings(f'staging_python = "{sys.executable}"\n')
    lacks = "Epilog of slurm.conf has no 60-ffdl-mounts on n1" if FUSE else "/dev/fuse is not there"
    (staging, mounted) = said(site)
    assert staging == "ok     staging"
    assert mounted.startswith(f"note   data mounts: {lacks}"), mounted
    hook.write_text("#!/bin/sh\n")
    hook.chmod(0o755)
    site.settings('staging_python = "/nowhere/python"\n')
    (staging, mounted) = said(site)
    assert staging.startswith("wrong  staging: /nowhere/python does not start it on n1 (")
    assert mounted.startswith("ok     data mounts" if FUSE else "note   data mounts: /dev/fuse"), mounted
