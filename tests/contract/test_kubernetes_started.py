"""A daemon that a command starts by itself, with nothing but KUBECONFIG to find the cluster by."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import preloaded
from tests.fakes.kubernetes.rig import FakeCluster, cluster
from tests.preloaded import FFDL

MANIFEST = """\
name: a
version: "1.0"
framework: {name: custom, version: python-numpy, command: "true"}
"""
IMAGES = '[frameworks.custom.oci]\npython-numpy = "registry.example.com/learner:1"\n'
Ask = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def k8s(tmp_path: Path) -> Iterator[FakeCluster]:
    with cluster(tmp_path) as found:
        yield found


@pytest.fixture
def ask(tmp_path: Path) -> Iterator[Ask]:
    """Runs `ffdl` with these words in `tmp_path`, with a bare environment and `more`."""
    bare = {"PATH": os.defpath, "HOME": str(tmp_path)}
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "train.py").touch()
    (tmp_path / "manifest.yml").write_text(MANIFEST)
    (tmp_path / ".config/ffdl").mkdir(parents=True)
    (tmp_path / ".config/ffdl/config.toml").write_text(IMAGES)

    def run(*words: str, **more: str) -> subprocess.CompletedProcess[str]:
        return preloaded.run(
            [*FFDL, *words], env=bare | more, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
        )

    yield run
    stopped = run("daemon", "stop")
    assert "stopped process" in stopped.stdout, stopped


def test_auto_started_daemon_uses_kubeconfig_of_calling_shell(tmp_path: Path, k8s: FakeCluster, ask: Ask) -> None:
    (tmp_path / "mine").symlink_to(k8s.kubeconfig)
    plan = ("plan", "--server", "--backend", "kubernetes", "manifest.yml", "model")
    taken = ask(*plan, KUBECONFIG="mine")  # as kubectl, which takes it to be here
    assert (taken.returncode, "KUBECONFIG" in taken.stderr) == (0, False), taken
    assert "kind: Job" in taken.stdout
    # Without one in the shell the daemon's is taken, as by a job of cron; and another one is told.
    assert ask(*plan).returncode == 0
    (tmp_path / "ffdl.toml").write_text('backend = "kubernetes"\n')
    other = ask("list", KUBECONFIG="other")
    assert other.returncode == 0
    assert "KUBECONFIG (environment)" in other.stderr and "to apply the new ones: ffdl daemon restart" in other.stderr
