"""``ffdl report faults`` from a real daemon with the local backend, in an environment as bare as cron's."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import re
import shlex
import socket
import socketserver
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email import message_from_bytes
from email.message import EmailMessage, Message
from email.policy import default
from pathlib import Path
from typing import Any

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session

from tests import preloaded
from tests.contract.daemon_rig import LIMIT_S, PLAIN, REPOSITORY, Site, site_in, until
from tests.fakes.certificates import certificate_for
from tests.preloaded import FFDL

HOSTILE = "<script>alert('x')</script> =HYPERLINK(1) \x1b[31m"
TRAIN = """\
import os, signal, sys, time
how = sys.argv[1]
while how.startswith("/") and not os.path.exists(how):
    time.sleep(0.05)
if how == "exit":
    sys.exit(7)
if how == "raise":
    raise ValueError({hostile!r})
if how == "signal":
    os.kill(os.getpid(), signal.SIGSEGV)
print("done")
"""
MANIFEST = """\
name: faulty
framework: {{name: custom, version: python-numpy, command: exec python3 train.py {how}}}
cpus: 1
memory: 100MB
{more}"""
DATA = """\
data_stores:
- type: directory
  training_data: {{container: shards}}
  connection: {{path: '{base}'}}
batch: {{dependency: 'afterok:{first}'}}
"""


@dataclass
class Desk:
    """A user's place beside a daemon."""

    site: Site
    base: Path

    def ask(self, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        """One command, which ends with that code."""
        done = self.site.try_to(*words)
        assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}{done.stderr}\n{self.site.log}"
        return done

    def submit(self, how: str, more: str = "") -> str:
        path = self.base / "manifest.yml"
        path.write_text(MANIFEST.format(how=how, more=more))
        return self.ask("submit", "--parsable", str(path), str(self.base / "model")).stdout.strip()

    def fails(self, how: str, more: str = "") -> str:
        """A job that has ended; its id."""
        job_id = self.submit(how, more)
        self.await_end(job_id)
        return job_id

    def await_end(self, job_id: str) -> None:
        until(lambda: self.show(job_id)["ended_at"], f"{job_id} to end")

    def loses_its_data(self) -> str:
        """A job whose data went while it waited for another one."""
        (self.base / "shards").mkdir()
        first = self.submit(str(self.base / "go"))
        job_id = self.submit("exit", DATA.format(base=self.base, first=first))
        (self.base / "shards").rmdir()
        (self.base / "go").touch()
        self.await_end(job_id)
        return job_id

    def show(self, job_id: str) -> dict[str, Any]:
        job: dict[str, Any] = json.loads(self.ask("show", "--json", job_id).stdout)["job"]
        return job

    def report(self, *words: str, code: int = 1) -> str:
        return self.ask("report", "faults", *words, code=code).stdout


@contextmanager
def desk_in(base: Path) -> Iterator[Desk]:
    (base / "model").mkdir()
    (base / "model" / "train.py").write_text(TRAIN.format(hostile=HOSTILE))
    with site_in(base, more_environment={"FFDL_BACKEND": "local"}) as site:
        site.launch(program=PLAIN)
        until(site.is_served, f"the daemon to answer; its log:\n{site.log}")
        yield Desk(site, base)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    with desk_in(tmp_path_factory.mktemp("desk")) as made:
        yield made


@pytest.fixture(scope="module")
def failed(shared: Desk) -> str:
    """A job of the shared desk."""
    return shared.fails("exit")


@dataclass
class Mailbox:
    """What a mail server on loopback took; `refuse` is what it says instead."""

    refuse: str = ""
    unknown: frozenset[str] = frozenset()
    taken: list[Envelope] = field(default_factory=list)
    logins: list[str] = field(default_factory=list)
    encrypted: list[bool] = field(default_factory=list)

    async def handle_RCPT(  # noqa: N802 - its name
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        if address in self.unknown:
            return "550 no such user"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:  # noqa: N802 - its name
        if self.refuse:
            return self.refuse
        self.encrypted.append(session.ssl is not None)
        self.taken.append(envelope)
        return "250 taken"

    def check(self, server: SMTP, session: Session, envelope: Envelope, mechanism: str, data: Any) -> AuthResult:
        assert isinstance(data, LoginPassword)
        self.logins.append(data.login.decode())
        known = data.password == b"s3cret"
        return AuthResult(success=known, handled=known)

    def message(self, number: int = -1) -> EmailMessage:
        content = self.taken[number].content
        assert isinstance(content, bytes)
        found: Message = message_from_bytes(content, policy=default)
        assert isinstance(found, EmailMessage)
        return found


class OnAFreePort(Controller):
    """Asks itself whether it serves where it does."""

    def _trigger_server(self) -> None:
        assert isinstance(self.server, asyncio.Server)
        self.port = self.server.sockets[0].getsockname()[1]
        super()._trigger_server()  # type: ignore[no-untyped-call]


@dataclass
class Server:
    """A mail server, and what it took."""

    box: Mailbox
    controller: Controller
    certificate: Path

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.controller.port}"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    box = Mailbox()
    certificate, key = certificate_for("127.0.0.1", tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    controller = OnAFreePort(
        box, hostname="127.0.0.1", port=0, tls_context=context, authenticator=box.check, auth_require_tls=True,
        ready_timeout=100,
    )  # fmt: skip
    controller.start()
    try:
        yield Server(box, controller, certificate)
    finally:
        controller.stop(no_assert=True)


def test_report_faults_lists_incidents_and_escapes_log_text_in_every_format(tmp_path: Path) -> None:
    with desk_in(tmp_path) as desk:
        assert desk.report(code=0).count("no new incidents") == 1
        jobs = {how: desk.fails(how) for how in ("exit", "raise", "signal")}
        jobs["data"] = desk.loses_its_data()
        assert desk.fails("none")
        found = json.loads(desk.report("--json"))["faults"]
        kinds = {row["job"]: row["kind"] for row in found["rows"]}
        assert kinds == {
            jobs["exit"]: "user.exit",
            jobs["raise"]: "user.traceback",
            jobs["signal"]: "user.signal",
            jobs["data"]: "data.missing",
        }
        assert (found["incidents"], found["jobs"], found["left_out"]) == (4, 4, 0)
        text = desk.report()
        assert "4 new incidents." in text and jobs["raise"] in text and "\x1b" not in text
        rows = list(csv.DictReader(io.StringIO(desk.report("--format", "csv"))))
        assert {row["job"]: row["kind"] for row in rows} == kinds
        page = desk.report("--format", "html")
        assert (
            page.startswith("<!doctype html>") and "<script" not in page and "&lt;script&gt;" in page and "<svg" in page
        )
        assert "\\<script\\>" in desk.report("--format", "markdown")
        out = desk.base / "page.html"
        assert desk.report("--format", "html", "--output", str(out)) == ""
        assert jobs["data"] in out.read_text()
        shown = desk.show(jobs["raise"])
        assert [one["kind"] for one in shown["incidents"]] == ["user.traceback"]
        words = desk.ask("show", jobs["raise"]).stdout
        assert "user.traceback: learner 1: ValueError: <script>" in words


def test_report_faults_with_state_file_reports_each_incident_once_whatever_its_age(
    shared: Desk, tmp_path: Path
) -> None:
    state, other = tmp_path / "faults.state", tmp_path / "other.state"
    cron = ("--since", "24h", "--quiet", "--state-file", str(state))
    for path in (state, other):
        shared.site.try_to("report", "faults", "--state-file", str(path))  # what other tests made
    assert shared.report(*cron, code=0) == ""
    first = shared.fails("exit")
    assert first in shared.report(*cron)
    assert [shared.report(*cron, code=0) for _ in range(2)] == ["", ""]
    second = shared.fails("raise")
    told = shared.report(*cron)
    assert second in told and first not in told
    assert "no new incidents" in shared.report("--state-file", str(state), code=0)
    assert first in shared.report()  # without one, all of the period are told

    def recent(*more: str) -> set[str]:
        done = shared.site.try_to("report", "faults", "--since", "1s", "--json", *more)
        return {row["job"] for row in json.loads(done.stdout)["faults"]["rows"]}

    until(lambda: not recent(), "the incidents to be older than the period, as if cron had been off for longer")
    assert recent("--state-file", str(other)) == {first, second}


def test_report_faults_reports_incident_once_when_two_run_at_once(shared: Desk, failed: str, tmp_path: Path) -> None:
    state = tmp_path / "faults.state"
    argv = [*FFDL, "report", "faults", "--quiet", "--state-file", str(state)]
    both = [
        preloaded.Popen(
            argv, cwd="/", env=shared.site.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    said = [process.communicate(timeout=2 * LIMIT_S) for process in both]
    assert sorted(process.returncode for process in both) == [0, 1], said
    assert sum(failed in out for out, _ in said) == 1


def test_report_faults_rejects_damaged_state_file_and_keeps_it(shared: Desk, tmp_path: Path) -> None:
    state = tmp_path / "faults.state"
    state.write_text("{")
    told = shared.ask("report", "faults", "--quiet", "--state-file", str(state), code=78)
    assert str(state) in told.stderr and "remove it" in told.stderr
    assert state.read_text() == "{"


def test_report_faults_mails_report_over_tls_when_server_offers_it(shared: Desk, failed: str, server: Server) -> None:
    mail = ("--mail", "ops@example.org,second@example.org", "--mail", "third@example.org", "--smtp", server.address)
    assert shared.report(*mail, "--from", "ffdl@example.org") == ""
    assert server.box.encrypted == [True]
    assert server.box.taken[0].rcpt_tos == ["ops@example.org", "second@example.org", "third@example.org"]
    message = server.box.message()
    assert re.fullmatch(r"\[ffdl\] faults: \d new, all of users", message["Subject"])
    assert message["From"] == "ffdl@example.org"
    assert failed in message.get_content()
    shared.report(*mail, "--format", "html")
    page = next(iter(server.box.message().iter_attachments()))
    assert (page.get_filename(), page.get_content_type()) == ("faults.html", "text/html")
    assert "@" in server.box.message()["From"]


def test_report_faults_sends_smtp_password_only_to_verified_server(
    shared: Desk, failed: str, tmp_path: Path, server: Server
) -> None:
    login = tmp_path / "login"
    login.write_text("ffdl\ns3cret\n")
    mail = ("--mail", "ops@example.org", "--smtp", server.address, "--smtp-login", str(login))
    login.chmod(0o640)
    assert "chmod 600" in shared.ask("report", "faults", *mail, code=2).stderr
    login.chmod(0o600)
    refused = shared.ask("report", "faults", *mail, code=77)
    assert "cannot be verified" in refused.stderr
    assert (server.box.logins, server.box.taken) == ([], [])
    shared.report(*mail, "--smtp-ca", str(server.certificate))
    assert (server.box.logins, len(server.box.taken)) == (["ffdl"], 1)
    login.write_text("ffdl\nwrong\n")
    told = shared.ask("report", "faults", *mail, "--smtp-ca", str(server.certificate), code=77)
    assert "535" in told.stderr and "wrong" not in told.stderr


@pytest.mark.parametrize(("said", "code"), [("451 try later", 75), ("554 no thanks", 69)])
def test_report_faults_repeats_incidents_after_failed_mail_delivery(
    shared: Desk, failed: str, tmp_path: Path, server: Server, said: str, code: int
) -> None:
    state = tmp_path / "faults.state"
    mail = ("--mail", "ops@example.org", "--smtp", server.address, "--quiet", "--state-file", str(state))
    server.box.refuse = said
    told = shared.ask("report", "faults", *mail, code=code)
    assert said.split(maxsplit=1)[0] in told.stderr
    assert not state.exists()
    server.box.refuse = ""
    shared.report(*mail)
    assert failed in server.box.message().get_content()
    shared.report(*mail, code=0)
    assert len(server.box.taken) == 1


def test_report_faults_mails_each_recipient_once_when_another_is_rejected(
    shared: Desk, tmp_path: Path, server: Server
) -> None:
    state = tmp_path / "faults.state"
    shared.site.try_to("report", "faults", "--state-file", str(state))  # what other tests made
    first = shared.fails("exit")
    to = ("--mail", "ops@example.org,gone@example.org", "--smtp", server.address)
    mail = (*to, "--quiet", "--state-file", str(state))
    server.box.unknown = frozenset({"gone@example.org"})
    told = shared.ask("report", "faults", *mail, code=69)
    sent = "550 no such user; it was sent to ops@example.org; the next report has the same incidents for the others"
    assert sent in told.stderr
    shared.ask("report", "faults", *mail, code=69)
    assert [one.rcpt_tos for one in server.box.taken] == [["ops@example.org"]]
    second = shared.fails("exit")
    shared.ask("report", "faults", *mail, code=69)
    text = server.box.message().get_content()
    assert second in text and first not in text
    server.box.unknown = frozenset()
    shared.report(*mail)
    text = server.box.message().get_content()
    assert server.box.taken[-1].rcpt_tos == ["gone@example.org"] and first in text and second in text
    shared.report(*mail, code=0)
    assert len(server.box.taken) == 3


def test_report_faults_exits_75_when_mail_relay_is_unreachable(shared: Desk) -> None:
    with socket.socket() as held:  # nobody else listens there meanwhile
        held.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{held.getsockname()[1]}"
        told = shared.ask("report", "faults", "--mail", "ops@example.org", "--smtp", address, code=75)
    assert "cannot be reached" in told.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("--mail", "nobody"),
        ("--mail", "a@b", "--smtp", "host:0"),
        ("--mail", "a@b", "--from", "x y@z"),
        ("--json", "--format", "csv"),
        ("--until", "2d"),
        ("--since", "2999-01-01"),
        ("--since", "2999-01-01", "--until", "2999-01-02"),
        ("--state-file", "/nowhere/state"),
    ],
)
def test_report_faults_rejects_invalid_command_line(shared: Desk, words: tuple[str, ...]) -> None:
    told = shared.ask("report", "faults", *words, code=2)
    assert told.stdout == ""
    assert "Error" in told.stderr or "error" in told.stderr or "Usage" in told.stderr


def test_report_faults_starts_daemon_when_none_runs(shared: Desk, failed: str) -> None:
    process = shared.site.processes[0]
    process.terminate()
    process.wait(LIMIT_S)
    assert failed in shared.report("--since", "1h")


def test_report_faults_exits_75_when_daemon_or_output_file_fails(shared: Desk, tmp_path: Path) -> None:
    class HangsUp(socketserver.BaseRequestHandler):
        """Whoever asks gets no answer."""

    path = tmp_path / "mute.sock"
    with socketserver.UnixStreamServer(str(path), HangsUp) as mute:
        thread = threading.Thread(target=mute.serve_forever)
        thread.start()
        try:
            environment = {**shared.site.environment(), "FFDL_SOCKET": str(path)}
            done = shared.site.try_to("report", "faults", "--quiet", env=environment)
        finally:
            mute.shutdown()
            thread.join()
    assert (done.returncode, done.stdout) == (75, "")
    assert done.stderr != ""
    full = shared.ask("report", "faults", "--output", "/dev/full", code=75)
    assert "/dev/full" in full.stderr


def test_crontab_entry_mails_incident_once_in_cron_environment(
    shared: Desk, failed: str, tmp_path: Path, server: Server
) -> None:
    """The line as it is rendered, by cron's shell, with the variables that cron sets."""
    configs = REPOSITORY / "slurm-configs"
    values = tmp_path / "site.env"
    relay = f"--smtp {server.address} --from ffdl@example.org"
    values.write_text(
        f"ACCOUNTING_STORAGE_HOST=db\nFFDL_BIN={tmp_path}\nREPORT_MAIL=ops@example.org\nREPORT_RELAY={relay}\n"
    )
    argv = [
        sys.executable,
        str(configs / "render.py"),
        "--values",
        str(configs / "values.env"),
        "--values",
        str(values),
    ]
    preloaded.run([*argv, "--out", str(tmp_path / "etc")], check=True)
    (line,) = re.findall(
        r"^[*]/10(?: [*]){4} (.*)$", (tmp_path / "etc/cron/ffdl-report-faults").read_text(), re.MULTILINE
    )
    given = " ".join(f"{name}={shlex.quote(value)}" for name, value in shared.site.environment().items())
    program = tmp_path / "ffdl"  # where a site's daemon listens is in its configuration; here nothing is installed
    program.write_text(f'#!/bin/sh\nexec env {given} {shlex.join(FFDL)} "$@"\n')
    program.chmod(0o755)
    cron = {"HOME": str(tmp_path), "LOGNAME": "root", "PATH": "/usr/bin:/bin", "SHELL": "/bin/sh"}
    ends = [
        preloaded.run(
            ["/bin/sh", "-c", line], cwd=tmp_path, env=cron, capture_output=True, timeout=LIMIT_S, check=False
        )
        for _ in range(2)
    ]
    assert [(end.returncode, end.stdout, end.stderr) for end in ends] == [(1, b"", b""), (0, b"", b"")]
    assert len(server.box.taken) == 1
    assert failed in server.box.message().get_body().get_content()  # type: ignore[union-attr]
