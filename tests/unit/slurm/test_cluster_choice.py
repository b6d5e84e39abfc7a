"""Whether a submitter's shell and the daemon choose the same cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from ffdl_slurm.gateways.command_runner import compare_cluster


@pytest.mark.parametrize(
    ("shell", "own", "words"),
    [
        ({}, {}, ""),
        ({"SLURM_CONF": "", "SLURM_CLUSTERS": ""}, {"SLURM_CONF": "/a"}, ""),  # cron's shell
        ({"SLURM_CONF": "/a"}, {"SLURM_CONF": "/a"}, ""),
        ({"SLURM_CONF": "/a"}, {"SLURM_CONF": "/b"}, "SLURM_CONF is '/a' in this shell and '/b' for"),
        ({"SLURM_CONF": "/a"}, {}, "SLURM_CONF is '/a' in this shell and not set for the running daemon"),
        ({"SLURM_CLUSTERS": "one"}, {"SLURM_CLUSTERS": "one"}, ""),
        ({"SLURM_CLUSTERS": "two"}, {"SLURM_CLUSTERS": "one"}, "SLURM_CLUSTERS is 'two' in this shell and 'one' for"),
        ({"SLURM_CLUSTERS": "two"}, {}, "and not set for the running daemon"),
        ({"SLURM_CLUSTERS": ""}, {"SLURM_CLUSTERS": "one"}, "SLURM_CLUSTERS is not set in this shell and 'one' for"),
        ({"SLURM_CLUSTERS": "one,two"}, {"SLURM_CLUSTERS": "one,two"}, "names several clusters"),
        ({"SLURM_CLUSTERS": "all"}, {"SLURM_CLUSTERS": "all"}, "names several clusters"),
    ],
)  # fmt: skip
def test_compare_cluster_reports_shell_that_chooses_another_cluster(
    shell: dict[str, str], own: dict[str, str], words: str
) -> None:
    why, cure = compare_cluster(shell, own)
    assert (words in why, bool(why), bool(cure)) == (True, bool(words), bool(words))


def test_compare_cluster_follows_links_and_quotes_value_in_cure(tmp_path: Path) -> None:
    file, link = tmp_path / "slurm conf", tmp_path / "link"
    link.symlink_to(file)
    assert compare_cluster({"SLURM_CONF": str(link)}, {"SLURM_CONF": str(file)}) == ("", "")
    assert f"run: export SLURM_CONF='{file}'; " in compare_cluster({"SLURM_CONF": "/a"}, {"SLURM_CONF": str(file)})[1]
