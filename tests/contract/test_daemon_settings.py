"""Changed configuration files: ffdl-submitd restarts between requests, and keeps its settings if they are wrong."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contract.daemon_rig import Site, UnixHttp, site_in, until


class _Configured:
    """A daemon that was started with a configuration file."""

    def __init__(self, site: Site, file: Path) -> None:
        self.site, self.file = site, file
        self.file.write_text("lease_s = 20\n")
        self.process = site.launch(start=subprocess.Popen)
        until(site.is_served, lambda: f"the daemon to answer:\n{site.log}")
        self.first = self.read_digest("lease_s")

    def read_lock(self) -> dict[str, Any]:
        """The content of the lock file; {} if there is none."""
        with contextlib.suppress(FileNotFoundError, ValueError):
            return dict(json.loads((self.site.state / "daemon.lock").read_text()))
        return {}

    def read_digest(self, key: str) -> str:
        """The digest of a setting of the running daemon; "" if none has the lock."""
        return str(self.read_lock().get("settings", {}).get(key, ""))

    def has_changed(self) -> bool:
        """Whether the daemon answers with another value than at first."""
        return self.read_digest("lease_s") not in ("", self.first) and self.site.is_served()

    def read_problem(self) -> str:
        """Why the daemon does not use the file; "" also while it restarts."""
        with contextlib.suppress(OSError):
            return str(self.site.ask("GET", "/api/v1/health")[1]["settings_problem"])
        return ""


@pytest.fixture
def configured(tmp_path: Path) -> Iterator[_Configured]:
    file = tmp_path / "own.toml"
    with site_in(tmp_path, more_environment={"FFDL_CONFIG": str(file)}) as site:
        yield _Configured(site, file)


def test_daemon_restarts_in_its_process_with_changed_settings_and_keeps_jobs(configured: _Configured) -> None:
    site = configured.site
    job_id = str(site.submit("k1")["id"])
    until(lambda: site.state_of(job_id) == "QUEUED", "the job to be deployed")
    configured.file.write_text("lease_s = 25\n")
    until(configured.has_changed, lambda: f"the daemon to restart:\n{site.log}")
    assert configured.read_lock()["pid"] == configured.process.pid
    assert configured.process.poll() is None
    assert site.ask("GET", f"/api/v1/jobs/{job_id}")[0] == 200
    assert "changed settings: lease_s; restarting when no command is connected" in site.log
    assert "lease_s" not in site.run("daemon", "status")  # it would be named as different


def test_daemon_does_not_restart_while_command_is_connected(configured: _Configured) -> None:
    site = configured.site
    job_id = str(site.submit("k1")["id"])
    with contextlib.closing(UnixHttp(site.socket)) as waiting:
        waiting.request("GET", f"/api/v1/jobs/{job_id}/logs?follow=true")
        response = waiting.getresponse()
        configured.file.write_text("lease_s = 25\n")
        until(lambda: "changed settings: lease_s" in site.log, "the change to be found")
        assert site.ask("POST", f"/api/v1/jobs/{job_id}/cancel")[0] == 200
        response.read()  # to its end: no restart has broken it off
        assert configured.read_digest("lease_s") == configured.first
    until(configured.has_changed, lambda: f"the daemon to restart:\n{site.log}")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("leese_s = 1\n", "own.toml: unknown key 'leese_s'; did you mean lease_s?"),
        ("lease_s = [\n", "own.toml: "),
        ('lease_s = 25\njobs_dir = "/elsewhere"\n', "jobs_dir would change; to apply it: ffdl daemon restart"),
        ("lease_s = 25\n[backend.fake]\npace = 1\n", "there is no backend 'fake'"),
    ],
    ids=["unknown-key", "syntax", "other-jobs", "no-adapter"],
)
def test_daemon_keeps_settings_if_changed_file_cannot_be_used(configured: _Configured, text: str, why: str) -> None:
    site = configured.site
    configured.file.write_text(text)
    problem = until(configured.read_problem, lambda: f"the file to be refused:\n{site.log}")
    assert problem.startswith("the daemon keeps its settings, because the changed ones cannot be used: ")
    assert why in problem
    assert configured.process.poll() is None
    assert configured.read_digest("lease_s") == configured.first
    status = site.try_to("daemon", "status")
    assert why in status.stdout + status.stderr
    configured.file.write_text("lease_s = 25\n")
    until(configured.has_changed, lambda: f"the daemon to restart:\n{site.log}")
    assert configured.read_problem() == ""
