"""Runs commands from outside of the cluster, over the sshd of a login node."""

from __future__ import annotations

import pytest

from tests.cluster.people import Person

pytestmark = pytest.mark.full

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
