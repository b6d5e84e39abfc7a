"""The command `ffdl` with a real spawner, hub and daemons: on the hub's host, on another machine, and for operators."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.mail_server import mail_relay
from tests.site.rig import ADA, BOB, OUTSIDER, ROOT, Host, Hub, Spawner, until
from tests.site.shell import FFDL, FFDL_ADMIN, Shell


@pytest.fixture
def ada(host: Host) -> Shell:
    return Shell(host, ADA)


def test_commands_on_host_of_hub_use_daemon_of_spawner(host: Host, spawner: Spawner, ada: Shell) -> None:
    assert ada.ffdl("daemon", "status").returncode == 1
    assert spawner.daemons() == []
    listed = ada.ffdl("list")
    assert (listed.returncode, listed.stderr) == (0, "")
    status = ada.ffdl("daemon", "status")
    (pid,) = spawner.daemons()
    assert f"Daemon:              process {pid} on " in status.stdout
    assert "Started by:          the spawner of this host" in status.stdout
    restarted = ada.ffdl("daemon", "restart")
    assert restarted.stdout.startswith(f"stopped process {pid}, ") and len(spawner.daemons()) == 2, restarted.stderr
    assert not (ada.home / ".local").exists()


def test_user_whom_spawner_refuses_gets_reason_and_77(host: Host, spawner: Spawner) -> None:
    done = Shell(host, OUTSIDER).ffdl("list")
    assert (done.returncode, done.stdout) == (77, "")
    assert f"the spawner of this host starts no daemon for you: user {OUTSIDER} is in none of the groups" in done.stderr


def test_laptop_uses_hub_with_token_until_it_is_revoked(host: Host, hub: Hub, ada: Shell) -> None:
    made = ada.ffdl("token", "create", "laptop", "--scope", "read")
    assert made.returncode == 0, made.stderr
    laptop = Shell(host, BOB, is_near=False)
    url = f"https://127.0.0.1:{hub.port}"
    done = laptop.ffdl("login", url, "--token-stdin", "--ca", str(hub.certificate), text=made.stdout)
    assert (done.returncode, done.stdout.startswith(f"logged in to {url} as ada (read), until ")) == (0, True), done
    assert laptop.ffdl("list").returncode == 0
    assert "Hub:                 https://" in laptop.ffdl("daemon", "status").stdout
    refused = laptop.ffdl("cancel", "training-000000000")
    assert (refused.returncode, "token" in refused.stderr) == (77, True)
    assert ada.ffdl("token", "revoke", made.stdout.split("_")[1]).returncode == 0
    refused = laptop.ffdl("list")
    assert (refused.returncode, f"log in again: ffdl login {url}" in refused.stderr) == (77, True)


def test_operator_at_host_of_hub_lists_jobs_of_user_without_token(host: Host, hub: Hub) -> None:
    operator = Shell(host, OUTSIDER)
    assert operator.ffdl("--user", "ada", "list").returncode == 0
    refused = operator.ffdl("--user", str(ADA), "cancel", "training-000000000")
    assert (refused.returncode, "training-000000000" in refused.stderr) == (1, True)
    seen = [(line["caller"], line["user"], line["role"]) for line in hub.audit() if line["user"] == ADA]
    assert (OUTSIDER, ADA, "operator") in seen


def test_new_jobs_wait_for_quota_and_while_an_operator_stops_submissions(host: Host, hub: Hub, ada: Shell) -> None:
    operator = Shell(host, OUTSIDER)

    def manage(*words: str) -> None:
        done = operator.ffdl(*words, program=FFDL_ADMIN)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), words

    def submit() -> str:
        done = ada.ffdl("submit", "--parsable", "--backend=local", "/mnt/ada/wait.yml", "/mnt/ada/waiting")
        assert done.returncode == 0, done
        return done.stdout.strip()

    def state(job_id: str) -> tuple[str, str]:
        shown = json.loads(ada.ffdl("show", "--json", job_id).stdout)["job"]
        return shown["state"], shown["pending_reason"]

    files = host.place / "home/ada"
    (files / "waiting").mkdir()
    (files / "waiting/empty").touch()
    (files / "wait.yml").write_text(JOB.replace("finish", "go-on"))
    try:
        manage("tenant", "add", "vision")
        manage("member", "add", "vision", "ada")
        manage("quota", "set", "vision", "jobs", "1")
        manage("emergency", "stop", "--why", "power failure")
        first = submit()
        until(lambda: state(first) == ("PENDING", "oskar has stopped all submissions: power failure"), "the reason")
        manage("emergency", "undo", "stop")
        until(lambda: "begun" in ada.ffdl("logs", first).stdout, "the first learner's start")
        second = submit()
        reason = "waiting for quota of tenant vision: jobs limit 1, in use 1, requested 1"
        until(lambda: state(second) == ("PENDING", reason), "the reason")
    finally:
        (files / "go-on").touch()
    for job_id in (first, second):
        waited = ada.ffdl("wait", "--timeout", "200", job_id)
        assert waited.returncode == 0, (waited, ada.ffdl("show", job_id))
    done = [line["what"] for line in hub.audit() if line["role"] == "operator"]
    assert done == [
        f"{method} /api/site/v1/{path}"
        for method, path in (
            ("PUT", "tenants/vision"),
            ("PUT", "tenants/vision/members/ada"),
            ("PUT", "tenants/vision/quotas/jobs"),
            ("PUT", "levers/site"),
            ("DELETE", "levers/site"),
        )
    ]


def test_crontab_entry_of_operator_mails_incidents_of_all_users_once(
    host: Host, hub: Hub, ada: Shell, tmp_path: Path
) -> None:
    """The line as it is rendered with REPORT_OF=--site, with the variables that cron sets."""
    files = host.place / "home/ada"
    (files / "failing").mkdir()
    (files / "failing/empty").touch()
    (files / "fail.yml").write_text(FAILING)
    done = ada.ffdl("submit", "--parsable", "--backend=local", "/mnt/ada/fail.yml", "/mnt/ada/failing")
    job_id = done.stdout.strip()
    assert ada.ffdl("wait", "--timeout", "200", job_id).returncode != 0
    operator = Shell(host, OUTSIDER)
    until(lambda: job_id in operator.ffdl("report", "faults", "--site").stdout, "the incident at the hub")
    with mail_relay() as relay:
        values = {"ACCOUNTING_STORAGE_HOST": "db", "FFDL_BIN": operator.home, "REPORT_OF": "--site",
                  "REPORT_MAIL": "ops@example.org",
                  "REPORT_RELAY": f"--smtp 127.0.0.1:{relay.port} --from ffdl@example.org"}  # fmt: skip
        (tmp_path / "site.env").write_text("".join(f"{name}={value}\n" for name, value in values.items()))
        configs = ROOT / "slurm-configs"
        given = f"--values {configs}/values.env --values {tmp_path}/site.env --out {tmp_path}/etc"
        subprocess.run([sys.executable, configs / "render.py", *given.split()], check=True)
        text = (tmp_path / "etc/cron/ffdl-report-faults").read_text()
        (line,) = re.findall(r"^[*]/10(?: [*]){4} (.*)$", text, re.MULTILINE)
        program = operator.home / "ffdl"
        named = " ".join(f"{name}={value}" for name, value in operator.env.items())
        program.write_text(f'#!/bin/sh\nexec env {named} {sys.executable} -I -c "{FFDL}" "$@"\n')
        program.chmod(0o755)
        cron = ["env", "-i", f"HOME={operator.home}", "LOGNAME=oskar", "PATH=/usr/bin:/bin", "/bin/sh", "-c", line]
        ends = [
            subprocess.run(host.inside(cron, OUTSIDER), capture_output=True, timeout=300, check=False) for _ in range(2)
        ]
        assert [(end.returncode, end.stdout, end.stderr) for end in ends] == [(1, b"", b""), (0, b"", b"")]
        (mail,) = relay.taken
    body = mail.message.get_body()
    assert body is not None and job_id in body.get_content() and "ada" in body.get_content()


FAILING = """\
name: failing
framework: {name: custom, version: python-numpy, command: exit 7}
"""
JOB = """\
name: long
framework:
  name: custom
  version: python-numpy
  command: echo begun; while [ ! -e /mnt/ada/finish ]; do sleep 0.1; done; echo ended
"""


def test_jobs_of_personal_daemon_continue_under_daemon_of_site(host: Host, spawner: Spawner, ada: Shell) -> None:
    """Nothing is copied by hand: the first command after the site has installed the spawner is enough."""
    ada.home, ada.env["HOME"] = host.place / "home/ada", "/mnt/ada"
    personal = Shell(host, ADA, is_near=False)
    personal.env |= {"HOME": "/mnt/ada", "XDG_RUNTIME_DIR": "/mnt/ada"}
    (ada.home / "model").mkdir()
    (ada.home / "model/empty").touch()
    (ada.home / "job.yml").write_text(JOB)
    for place in (host.place / f"state/{ADA}/state", ada.home / ".local"):
        shutil.rmtree(place, ignore_errors=True)
    try:
        continue_personal_job(personal, ada)
    finally:
        (ada.home / "finish").touch()
        personal.ffdl("daemon", "stop")


def continue_personal_job(personal: Shell, ada: Shell) -> None:
    submitted = personal.ffdl("submit", "--parsable", "--backend=local", "/mnt/ada/job.yml", "/mnt/ada/model")
    assert submitted.returncode == 0, submitted
    job_id = submitted.stdout.strip()
    until(lambda: "begun" in personal.ffdl("logs", job_id).stdout, "the learner's start")
    assert "spawner" not in personal.ffdl("daemon", "status").stdout

    listed = ada.ffdl("list")
    assert (listed.returncode, job_id in listed.stdout) == (0, True), listed
    assert "the spawner of this host" in ada.ffdl("daemon", "status").stdout
    refused = personal.ffdl("list")
    assert (refused.returncode, "the site's daemon has taken over the jobs" in refused.stderr) == (69, True), refused
    (ada.home / "finish").touch()
    waited = ada.ffdl("wait", "--timeout", "100", job_id)
    assert waited.returncode == 0, (waited, ada.ffdl("show", job_id))
    assert ada.ffdl("logs", job_id).stdout == "begun\nended\n"
    assert json.loads(ada.ffdl("show", "--json", job_id).stdout)["job"]["attempt"] == 1
