"""The fragments of slurm-configs/: rendered for real, refused with a place, and prolog and epilog run as programs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.rig.site import overlay_for

CONFIGS = Path(__file__).resolve().parents[3] / "slurm-configs"
OVERLAYS = sorted(path.stem for path in (CONFIGS / "overlays").glob("*.env"))


def render(out: Path, *arguments: str, values: Path = CONFIGS / "values.env") -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, str(CONFIGS / "render.py"), "--values", str(values), *arguments, "--out", str(out)]
    return subprocess.run(argv, capture_output=True, text=True, check=False)


def site_values(path: Path, **values: str) -> list[str]:
    path.write_text("".join(f"{name}={value}\n" for name, value in values.items()))
    return ["--values", str(path)]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_overlay_renders_without_a_placeholder_left(tmp_path: Path, overlay: str) -> None:
    site = site_values(tmp_path / "site.env", ACCOUNTING_STORAGE_HOST="db")
    done = render(tmp_path / "out", "--overlay", overlay, *site)
    assert (done.returncode, done.stderr) == (0, "")
    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert len(files) == 7
    assert not [path for path in files if re.search("@[A-Z_]+@", path.read_text())]


def test_only_new_slurm_is_told_a_requeue_delay(tmp_path: Path) -> None:
    site = site_values(tmp_path / "site.env", ACCOUNTING_STORAGE_HOST="db", REQUEUE_DELAY_S="7")
    texts = {}
    for overlay in OVERLAYS:
        render(tmp_path / overlay, "--overlay", overlay, *site)
        texts[overlay] = (tmp_path / overlay / "slurm.conf.d" / "ffdl.conf").read_text()
    assert [name for name, text in texts.items() if "requeue_delay=7" in text] == ["slurm-26.05"]


def test_the_signal_at_preemption_is_asked_for_where_the_release_reads_it(tmp_path: Path) -> None:
    """Until 23.02 by SlurmctldParameters; slurmctld takes the same word in SchedulerParameters and ignores it there."""
    site = site_values(tmp_path / "site.env", ACCOUNTING_STORAGE_HOST="db")
    found = {}
    for overlay in OVERLAYS:
        render(tmp_path / overlay, "--overlay", overlay, *site)
        text = (tmp_path / overlay / "slurm.conf.d" / "ffdl.conf").read_text()
        found[overlay] = [line for line in text.splitlines() if "send_user_signal" in line]
    old, new = "SlurmctldParameters=preempt_send_user_signal", "PreemptParameters=send_user_signal"
    assert found == {"slurm-20.11": [old], "slurm-22.05": [old], "slurm-24.11": [new], "slurm-26.05": [new]}


def test_a_value_that_the_site_must_set_is_named_with_its_place(tmp_path: Path) -> None:
    done = render(tmp_path / "out")
    assert done.returncode == 78
    assert "ffdl-accounting.conf:4: ACCOUNTING_STORAGE_HOST has no value yet" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("KILL_WIAT_S=3", ":1: KILL_WIAT_S is not a known value"),
        ("not an assignment", ":1: expected NAME=value"),
        ("KILL_WAIT_S=1\nKILL_WAIT_S=2", ":2: KILL_WAIT_S is set twice"),
        ("KILL_WAIT_S=@KILL_WAIT_S@", ":1: KILL_WAIT_S refers to itself"),
        ("KILL_WAIT_S=@NOWHERE@", ":1: unknown placeholder @NOWHERE@"),
    ],
)
def test_a_mistake_in_a_values_file_is_status_78_with_file_and_line(tmp_path: Path, line: str, message: str) -> None:
    site = tmp_path / "site.env"
    site.write_text(f"{line}\nACCOUNTING_STORAGE_HOST=db\n")
    done = render(tmp_path / "out", "--values", str(site))
    assert done.returncode == 78
    assert f"{site}{message}" in done.stderr


def test_a_later_values_file_wins_over_the_overlay(tmp_path: Path) -> None:
    site = site_values(tmp_path / "site.env", ACCOUNTING_STORAGE_HOST="db", JOB_MARK_SOURCE="env")
    render(tmp_path / "out", "--overlay", "slurm-20.11", *site)
    assert 'case "env" in' in (tmp_path / "out" / "prolog.d" / "50-ffdl").read_text()


def test_an_unknown_overlay_lists_the_known_ones(tmp_path: Path) -> None:
    done = render(tmp_path / "out", "--overlay", "slurm-19.05")
    assert done.returncode == 78
    assert all(name in done.stderr for name in OVERLAYS)


@pytest.mark.parametrize(
    ("version", "overlay"),
    [
        ("26.05.5", "slurm-26.05"),
        ("25.05.1", "slurm-24.11"),
        ("22.05.8", "slurm-22.05"),
        ("20.11.7", "slurm-20.11"),
        ("19.05.1", "slurm-20.11"),
    ],
)
def test_the_newest_overlay_that_is_not_newer_is_chosen(version: str, overlay: str) -> None:
    assert overlay_for(version) == overlay


class Hooks:
    """Rendered prolog and epilog with their places below a temporary directory."""

    def __init__(self, tmp_path: Path) -> None:
        self.run_dir, self.libexec, self.out = tmp_path / "run", tmp_path / "libexec", tmp_path / "out"
        self.libexec.mkdir()
        places = {"FFDL_RUN": str(self.run_dir), "FFDL_LIBEXEC": str(self.libexec)}
        assert render(self.out, *site_values(tmp_path / "v", ACCOUNTING_STORAGE_HOST="db", **places)).returncode == 0

    def install(self, name: str, script: str) -> None:
        path = self.libexec / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def call(self, name: str, comment: str | None) -> int:
        env = {"SLURM_JOB_ID": "41"} | ({} if comment is None else {"SLURM_JOB_COMMENT": comment})
        return subprocess.run([str(self.out / f"{name}.d" / "50-ffdl")], env=env, check=False).returncode


@pytest.mark.parametrize("comment", [None, "", "my run", "not ffdl-batch:x"])
def test_the_prolog_leaves_other_jobs_alone(tmp_path: Path, comment: str | None) -> None:
    hooks = Hooks(tmp_path)
    hooks.install("prolog", f"touch {tmp_path}/ran")
    assert hooks.call("prolog", comment) == 0
    assert not (tmp_path / "ran").exists()
    assert not hooks.run_dir.exists()


def test_a_failing_prolog_exits_0_and_leaves_the_error_until_the_epilog(tmp_path: Path) -> None:
    hooks = Hooks(tmp_path)
    hooks.install("prolog", "echo no slot is free; exit 3")
    hooks.install("epilog", "exit 4")
    assert hooks.call("prolog", "ffdl-batch:token") == 0
    assert (hooks.run_dir / "job-41" / "error").read_text() == "no slot is free\n"
    assert hooks.call("epilog", None) == 0
    assert not (hooks.run_dir / "job-41").exists()


def test_a_working_prolog_leaves_no_error(tmp_path: Path) -> None:
    hooks = Hooks(tmp_path)
    hooks.install("prolog", "exit 0")
    assert hooks.call("prolog", "ffdl-batch:token") == 0
    assert not (hooks.run_dir / "job-41" / "error").exists()
