"""Whether a submitter's shell and the daemon choose the same cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from ffdl_slurm.gateways import command_runner
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


def write_conf(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize(
    ("here", "there", "words"),
    [
        ("ClusterName=one\n", "# a copy\n clustername = One # comment\n", ""),
        ("ClusterName=one\n", "ClusterName=two\n", "would run on another cluster"),
        ("ClusterName=one\n", "SlurmctldHost=c\n", "may run on another cluster"),
        ("#ClusterName=one\n", "ClusterName=one\n", "may run on another cluster"),
    ],
)
@pytest.mark.parametrize("is_default", [False, True])
def test_compare_cluster_compares_names_of_two_configuration_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, here: str, there: str, words: str, is_default: bool
) -> None:
    shell, daemon = write_conf(tmp_path / "a", here), write_conf(tmp_path / "b", there)
    monkeypatch.setattr(command_runner, "_DEFAULT_CONFS", (daemon,))
    why, _ = compare_cluster({"SLURM_CONF": shell}, {} if is_default else {"SLURM_CONF": daemon})
    assert (words in why, bool(why)) == (True, bool(words))


@pytest.mark.parametrize(
    ("shell", "own", "words"),
    [
        ("one", "", ""),
        ("", "one", ""),
        ("ONE", "one", ""),
        ("two", "", "would run on another cluster"),
        ("", "two", "would run on another cluster"),
    ],
)
def test_compare_cluster_compares_slurm_clusters_with_name_in_configuration(
    tmp_path: Path, shell: str, own: str, words: str
) -> None:
    conf = {"SLURM_CONF": write_conf(tmp_path / "a", "ClusterName=one\n")}
    why, _ = compare_cluster({**conf, "SLURM_CLUSTERS": shell}, {**conf, "SLURM_CLUSTERS": own})
    assert (words in why, bool(why)) == (True, bool(words))


def test_compare_cluster_accepts_default_configuration_file_that_shell_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, link = tmp_path / "slurm.conf", tmp_path / "link"
    link.symlink_to(file)
    file.write_text("")
    monkeypatch.setattr(command_runner, "_DEFAULT_CONFS", (str(tmp_path / "missing"), str(file)))
    assert compare_cluster({"SLURM_CONF": str(link)}, {}) == ("", "")


def test_compare_cluster_follows_links_and_quotes_value_in_cure(tmp_path: Path) -> None:
    file, link = tmp_path / "slurm conf", tmp_path / "link"
    link.symlink_to(file)
    assert compare_cluster({"SLURM_CONF": str(link)}, {"SLURM_CONF": str(file)}) == ("", "")
    assert f"run: export SLURM_CONF='{file}'; " in compare_cluster({"SLURM_CONF": "/a"}, {"SLURM_CONF": str(file)})[1]
