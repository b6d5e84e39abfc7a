"""`make trial-kubernetes`: one command starts a cluster, and the commands of docs/kubernetes.md run on it."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ffdl_kubernetes.client import ClusterClient
from ffdl_kubernetes.settings import KubernetesSettings
from tests.fakes.kubernetes.rig import ROOT, eventually

pytestmark = pytest.mark.full
PAGE = ROOT / "docs" / "kubernetes.md"


@pytest.fixture
def variables(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Of a trial that serves."""
    argv = [sys.executable, "-m", "tests.fakes.kubernetes.trial", "--place", str(tmp_path)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as trial:
        assert trial.stdout is not None and trial.stdin is not None
        lines = [trial.stdout.readline() for _ in range(7)]
        found = dict(line.removeprefix("export ").strip().split("=", 1) for line in lines)
        proof = {f"FFDL_PROOF_{name}" for name in ("CONTROLLER_IMAGE", "LEARNER_IMAGE", "PYTHON", "CLAIM_CLASS")}
        assert set(found) == {"KUBECONFIG", "FFDL_CONFIG", "FFDL_STATE_DIR", *proof}
        yield found
        trial.stdin.close()
        assert trial.wait(180) == 0


def run(command: str, variables: dict[str, str]) -> str:
    program, *arguments = shlex.split(command)
    argv = [str(Path(sys.executable).with_name(program)), *arguments]
    env = {name: value for name, value in os.environ.items() if not name.startswith("FFDL_")} | variables
    done = subprocess.run(argv, env=env, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout


def test_kubernetes_docs_commands_run_on_trial_cluster(variables: dict[str, str]) -> None:
    shown = re.findall(r"^\$ (ffdl.* --backend kubernetes .*)$", PAGE.read_text(), re.MULTILINE)
    assert len(shown) == 3
    first, dry, plan = shown
    assert "\n---\napiVersion: batch/v1\nkind: Job\n" in run(dry, variables)
    run(plan, variables)
    job_id = run(first, variables).split()[-1]
    eventually(lambda: "step 3" in run(f"ffdl logs {job_id}", variables), "the training prints")
    run(f"ffdl halt --wait {job_id}", variables)


def test_kubernetes_trial_serves_in_background_until_sigterm(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "tests.fakes.kubernetes.trial", "--place", str(tmp_path)]
    with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, cwd=ROOT) as trial:
        assert trial.stdout is not None
        kubeconfig = trial.stdout.readline().strip().partition("=")[2]
        client = ClusterClient(KubernetesSettings(kubeconfig=kubeconfig))
        served = client.raw("GET", "openapi/v3")["paths"]["apis/batch/v1"]["serverRelativeURL"]
        paths = client.raw("GET", served.removeprefix("/"))["paths"]
        checked = paths["/apis/batch/v1/namespaces/{namespace}/jobs/{name}"]["patch"]["parameters"]
        assert "fieldValidation" in {one["name"] for one in checked}, "kubectl would want schemas"
        client.close()
        trial.terminate()
        assert trial.wait(180) == 0
