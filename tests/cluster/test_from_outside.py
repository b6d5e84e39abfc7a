"""From outside of the cluster: another host's commands over its sshd, and Slurm's over that of a login node."""

from __future__ import annotations

import subprocess

import pytest

from tests.cluster.contract_runs import AT_LEAST, count_passed, start_contract
from tests.cluster.executions import wait_until
from tests.cluster.people import Person
from tests.cluster.rig import Cluster

LAPTOP = ("env", "FFDL_HOST=ctl", "FFDL_HOST_PROGRAM=/opt/ffdl/venv/bin/ffdl", "FFDL_STATE_DIR=/tmp/laptop")
"""A state directory of its own, which stays empty, and a program that no login's PATH has."""


def test_remote_client_runs_job_through_login_node_daemon_over_ssh(bob: Person) -> None:
    model = bob.model("empty", {"README": "nothing here\n"})
    manifest = bob.manifest("outside", "echo said on a node; echo 42 > $RESULT_DIR/answer")

    def ask(*words: str) -> str:
        return bob.run(*LAPTOP, *words, node="login2").stdout

    job_id = ask("ffdl-submit", "--parsable", manifest, model).strip()
    ask("ffdl", "wait", job_id)
    assert "said on a node" in ask("ffdl", "logs", job_id)
    ask("ffdl", "download", job_id, "--out", f"{bob.home}/brought")
    assert bob.run("sh", "-c", "cat $(find brought -name answer)").stdout == "42\n"
    assert "on ctl" in ask("ffdl", "daemon", "status")
    assert bob.run("ls", "/tmp/laptop", node="login2", check=False).returncode != 0


def test_remote_client_runs_and_cancels_jobs_on_login_node_without_ffdl(bob: Person) -> None:
    """No login's PATH has our programs; the model and the results go over SSH, and the image is the host's."""
    model = bob.model("code", {"train.py": "print('said on a node', flush=True)\n"})
    manifest = bob.manifest("plain", "python3 train.py; echo 42 > $RESULT_DIR/answer")
    laptop = ("env", "FFDL_HOST=ctl", "FFDL_STATE_DIR=/tmp/laptop")

    def ask(*words: str) -> str:
        return bob.run(*laptop, *words, node="login2").stdout

    job_id = ask("ffdl-submit", "--parsable", manifest, model).strip()
    ask("ffdl", "wait", "--timeout=280", job_id)
    assert "said on a node" in ask("ffdl", "logs", job_id)
    assert "COMPLETED" in ask("ffdl", "show", job_id) and job_id in ask("ffdl", "list")
    ask("ffdl", "download", job_id, "--results", "--out", f"{bob.home}/plainly")
    assert bob.run("sh", "-c", "cat $(find plainly -name answer)").stdout == "42\n"
    long = bob.manifest("long", "echo begin; sleep 600")
    job_id = ask("ffdl-submit", "--parsable", long, model).strip()
    ask("ffdl", "cancel", job_id)
    assert bob.run(*laptop, "ffdl", "wait", "--timeout=280", job_id, node="login2", check=False).returncode != 0
    assert "CANCELLED" in ask("ffdl", "show", job_id)
    wait_until(lambda: job_id not in bob.run("squeue", "-h", "-o", "%A").stdout.split(), "its end in Slurm")
    assert bob.run("ls", "/tmp/laptop", node="login2", check=False).returncode != 0, "a daemon was begun here"


@pytest.mark.full
def test_slurm_ssh_gateway_passes_scheduler_contract(cluster: Cluster, alice: Person) -> None:
    """Every command of Slurm goes to the other login node."""
    process = start_contract(alice, "slurm-ssh", "/opt/ffdl/venv/bin/python")
    try:
        text, _ = process.communicate(timeout=1200)
    finally:
        cluster.kill(process)
    done = subprocess.CompletedProcess([], process.returncode, text, "")
    assert count_passed(done) >= AT_LEAST
