"""`ffdl web` over HTTP: a real daemon, local jobs, and no browser."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from urllib.parse import urlencode

import pytest

from tests.contract.daemon_rig import until
from tests.contract.test_daemon_logs import Desk, desk_in
from tests.contract.web_rig import Page, page_of, run_sweep
from tests.fakes.mail_server import mail_relay
from tests.unit.services.test_notices import web_server

TRAIN = """\
import os, pathlib, sys, time
print("\\x1b[31mred\\x1b[0m <script>alert(1)</script>", flush=True)
for step in range(3):
    print(f"step {step} loss={1 / (step + 1)}", flush=True)
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.05)
print("last", flush=True)
"""
OTHER_UID = 65534
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="becoming another user needs root")


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    tmp_path.chmod(0o700)
    with desk_in(tmp_path, {"train.py": TRAIN}, max_jobs=2) as made:
        yield made


@pytest.fixture
def page(desk: Desk) -> Iterator[Page]:
    with page_of(desk) as made:
        made.sign_in()
        yield made


def start(desk: Desk, name: str) -> str:
    job_id = desk.submit(name, f"python3 train.py '{desk.base}/{name}-ends'")
    desk.await_state(job_id, "PROCESSING")
    return job_id


def test_page_prints_ssh_command_for_socket_that_only_user_can_open(desk: Desk) -> None:
    with page_of(desk) as page:
        assert f"ssh -N -L 8470:{page.socket} " in page.said
        assert page.socket.stat().st_mode & 0o777 == 0o600
        assert page.ask("/")[0] == 403, "without the cookie"
        page.sign_in()
        assert page.ask(page.address)[0] == 403, "the address works once"
        status, text, _ = page.ask("/")
        assert (status, "No jobs yet" in text) == (200, True)
        second = subprocess.run(
            [sys.executable, "-P", "-m", "ffdl_batch.web.main"], cwd="/", capture_output=True, text=True, check=False,
            env={**desk.site.environment(), "XDG_RUNTIME_DIR": str(desk.base)},
        )  # fmt: skip
        assert (second.returncode, "another ffdl web serves the page" in second.stderr) == (75, True)
        path = page.socket
        assert page.end() == 0
        assert not path.exists()


def test_page_replaces_socket_of_server_that_was_killed(desk: Desk) -> None:
    with page_of(desk) as killed:
        killed.process.send_signal(signal.SIGKILL)
        killed.process.wait()
        assert killed.socket.exists()
        with page_of(desk) as page:
            page.sign_in()
            assert page.ask("/")[0] == 200


ASK = """\
import encodings.idna, http.client, os, sys
os.setuid(int(sys.argv[4]))
connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]), timeout=60)
connection.request("GET", sys.argv[2], headers={"Host": "localhost", "Cookie": sys.argv[3]})
answer = connection.getresponse()
print(answer.status, answer.read().decode())
"""


def ask_as(uid: int, port: int, path: str, cookie: str) -> str:
    """What a program of that user gets from the page."""
    argv = [sys.executable, "-I", "-S", "-c", ASK, str(port), path, cookie, str(uid)]
    return subprocess.run(argv, cwd="/", capture_output=True, text=True, check=True).stdout


@needs_root
def test_port_gives_other_users_nothing(desk: Desk) -> None:
    job_id = start(desk, "mine")
    with page_of(desk, "--tcp", "0") as page:
        page.sign_in()
        assert job_id in ask_as(os.geteuid(), page.port, "/", page.cookie)
        for path in ("/", f"/jobs/{job_id}", "/static/app.css", "/open?token=x"):
            refused = ask_as(OTHER_UID, page.port, path, page.cookie)
            assert refused.strip() == "403 This page belongs to another user."


def test_overview_shows_job_and_escapes_its_texts(desk: Desk, page: Page) -> None:
    job_id = start(desk, "digits")
    renamed = desk.submit("'<b>&x'", "sleep 600")
    status, text, headers = page.ask(f"/jobs/{job_id}")
    assert status == 200
    assert headers["Content-Security-Policy"].startswith("default-src 'none'")
    assert '<span class="state processing">PROCESSING</span>' in text
    assert "<h2>Attempts</h2>" in text
    assert "&lt;b&gt;&amp;x" in page.ask("/")[1]
    assert "<b>&x" not in page.ask(f"/jobs/{renamed}")[1]
    assert page.ask("/jobs/training-000000000")[0] == 404
    assert "sleep 600" in page.ask(f"/jobs/{renamed}/submitted")[1]


def test_table_filters_by_state_and_text_and_links_pages(
    desk: Desk, page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, waiting = start(desk, "alpha"), desk.submit("beta", "sleep 600")
    desk.await_state(waiting, "PROCESSING")
    later = desk.submit("gamma", "sleep 600")
    desk.await_state(later, "QUEUED")
    text = page.ask("/?state=PROCESSING")[1]
    assert (running in text, waiting in text, later in text) == (True, True, False)
    text = page.ask("/?text=ALPH")[1]
    assert (running in text, waiting in text) == (True, False)
    assert "No job matches" in page.ask("/?text=nothing")[1]
    text = page.ask(f"/?after={later}")[1]
    assert (running in text, later in text) == (True, False)


def test_actions_ask_first_and_then_act(desk: Desk, page: Page) -> None:
    job_id = start(desk, "digits")
    other = desk.submit("other", "sleep 600")
    form = [("verb", "cancel"), ("id", job_id), ("id", other)]
    status, text, _ = page.ask("/act", form)
    assert (status, "Cancel 2 jobs and arrays?" in text) == (200, True)
    assert desk.show(other)["state"] != "CANCELLED"
    status, _, headers = page.ask("/act", [*form, ("confirmed", "yes")])
    assert (status, headers["Location"]) == (303, "/")
    desk.await_state(job_id, "CANCELLED")
    desk.await_state(other, "CANCELLED")
    status, text, _ = page.ask("/act", [("verb", "resume"), ("id", job_id), ("confirmed", "yes")])
    assert (status, job_id in text) == (409, True)
    assert page.ask("/act", [("verb", "cancel")])[0] == 400
    assert page.ask("/act", [("verb", "format"), ("id", job_id)])[0] == 400
    assert page.ask("/act", form, headers={"Origin": "http://evil.example"})[0] == 403


def test_halted_job_continues_with_other_resources(desk: Desk, page: Page) -> None:
    job_id = start(desk, "digits")
    page.ask("/act", [("verb", "halt"), ("id", job_id), ("confirmed", "yes")])
    desk.await_state(job_id, "HALTED")
    assert "GPUs of each learner" in page.ask("/act", [("verb", "resume"), ("id", job_id)])[1]
    bad = page.ask("/act", [("verb", "resume"), ("id", job_id), ("confirmed", "yes"), ("gpus", "many")])
    assert (bad[0], "number of GPUs" in bad[1]) == (409, True)
    (desk.base / "digits-ends").touch()
    status, _, headers = page.ask("/act", [("verb", "resume"), ("id", job_id), ("confirmed", "yes"), ("time", "30:00")])
    assert (status, headers["Location"]) == (303, f"/jobs/{job_id}")
    desk.await_state(job_id, "COMPLETED")
    assert desk.show(job_id)["overrides"]["batch.time"] == "00:30:00"


def test_log_page_shows_colours_finds_lines_and_downloads_all(desk: Desk, page: Page) -> None:
    job_id = start(desk, "digits")
    until(lambda: "step 2" in page.ask(f"/jobs/{job_id}/log")[1], "the log")
    text = page.ask(f"/jobs/{job_id}/log")[1]
    assert '<span class="fg1">red</span> &lt;script&gt;alert(1)&lt;/script&gt;' in text
    found = page.ask(f"/jobs/{job_id}/log?text=STEP+1")[1]
    assert ("step 1" in found, "step 2" in found) == (True, False)
    (desk.base / "digits-ends").touch()
    desk.await_state(job_id, "COMPLETED")
    whole, headers = page.ask(f"/jobs/{job_id}/log/download")[1:]
    assert whole.splitlines() == [
        "\x1b[31mred\x1b[0m <script>alert(1)</script>", "step 0 loss=1.0", "step 1 loss=0.5",
        "step 2 loss=0.3333333333333333", "last",
    ]  # fmt: skip
    assert headers["Content-Disposition"] == f'attachment; filename="{job_id}.log"'
    live = page.ask(f"/jobs/{job_id}/log/live?read=")[1]
    assert live.count("event: lines") >= 1
    assert live.rstrip().endswith('data: ""')


MAKE_FILES = """\
import os, pathlib, sys
results = pathlib.Path(os.environ["RESULT_DIR"])
(results / "below").mkdir()
(results / "below" / "a <b>&.html").write_text("<script>alert(1)</script>")
(results / "model.bin").write_bytes(bytes(3000))
(results / "outside").symlink_to(sys.argv[1])
(results / "inside").symlink_to("model.bin")
(results / "away").symlink_to(pathlib.Path(sys.argv[1]).parent)
os.mkfifo(results / "pipe")
"""


def test_files_are_listed_and_sent_as_attachments_without_links(desk: Desk, page: Page) -> None:
    secret = desk.base / "secret.txt"
    secret.write_text("secret")
    (desk.base / "model" / "make.py").write_text(MAKE_FILES)
    job_id = desk.submit("files", f"python3 make.py '{secret}'")
    desk.await_state(job_id, "COMPLETED")
    status, text, _ = page.ask(f"/jobs/{job_id}/results")
    rows = re.findall(r"<tr><td><a href=\"([^\"]+)\" download>([^<]+)</a></td><td class=\"number\">([^<]+)</td>", text)
    assert (status, [(name, size) for _, name, size in rows]) == (
        200, [("model.bin", "2.93 KiB"), ("below/a &lt;b&gt;&amp;.html", "25 B")],
    )  # fmt: skip
    status, body, headers = page.ask(unescape(rows[1][0]))
    assert (status, body) == (200, "<script>alert(1)</script>")
    assert headers["Content-Type"] == "application/octet-stream"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Content-Disposition"] == "attachment; filename*=UTF-8''a%20%3Cb%3E%26.html"
    for name in (
        "outside", "inside", "away/secret.txt", "pipe", "below", "", "..", "../secret.txt", str(secret), "/", "a\0b",
        "below/../model.bin", "nothing", "below//a <b>&.html",
    ):  # fmt: skip
        status, body, _ = page.ask(f"/jobs/{job_id}/results/file?{urlencode({'name': name})}")
        assert (status, "Not done" in body) == (404, True), name
    assert page.ask(f"/jobs/{job_id}/results/file?kind=model&name=model.zip")[0] == 200
    assert "learner-1/training-log.txt" in page.ask(f"/jobs/{job_id}/results?kind=logs")[1]
    assert page.ask("/jobs/training-000000000/results")[0] == 404


def test_files_of_waiting_and_running_jobs(desk: Desk, page: Page) -> None:
    running = [start(desk, "one"), start(desk, "two")]
    waiting = desk.submit("three", "sleep 600")
    desk.await_state(waiting, "QUEUED")
    assert "none of its attempts got as far as its learners" in page.ask(f"/jobs/{waiting}/results")[1]
    text = page.ask(f"/jobs/{running[0]}/results")[1]
    assert ("its output is not complete" in text, "There are no files." in text) == (True, True)


def test_reports_show_usage_and_failures(desk: Desk, page: Page) -> None:
    failed = desk.submit("fails", "exit 3")
    desk.await_state(failed, "FAILED")
    status, text, _ = page.ask("/reports?days=1")
    assert (status, "1, 1 of them submitted in this time" in text) == (200, True)
    until(lambda: "<code>user." in page.ask("/reports?days=1")[1], "the incident in the report")
    assert '<a href="/reports?days=7" aria-current="page">' in page.ask("/reports?days=<b>")[1]


def test_cluster_page_shows_capacity_and_queue_for_request(desk: Desk, page: Page) -> None:
    start(desk, "one")
    start(desk, "two")
    waiting = desk.submit("three", "sleep 600")
    desk.await_state(waiting, "QUEUED")
    status, text, _ = page.ask("/cluster")
    assert (status, "Capacity now" in text, "2 of 2 in use" in text) == (200, True, True)
    queue = re.search(r"<tr><td>local</td>" + r"<td class=\"number\">([^<]*)</td>" * 3, text)
    assert queue is not None
    assert queue.groups() == ("2", "1", "1, 1 yours")
    status, text, _ = page.ask("/cluster?learners=<b>&partition=<i>")
    assert (status, "<b>" in text.replace("<b>error", ""), 'value="&lt;i&gt;"' in text) == (422, False, True)


def test_notices_page_lists_addresses_without_secrets_and_tests_each(desk: Desk, page: Page) -> None:
    assert "names no address" in page.ask("/notices")[1]
    with web_server() as hook, mail_relay() as relay:
        server = hook.address.partition("/hooks")[0]
        with (desk.base / "ffdl.toml").open("a") as config:
            config.write(
                f'[notices]\nsmtp = "127.0.0.1:{relay.port}"\nfrom = "ffdl@example.org"\nmail = ["ops@example.org"]\n'
                f'webhooks = ["{hook.address}", "slack+{server}/s3cret"]\norigins = ["node", "platform"]\n'
            )
        status, text, _ = page.ask("/notices")
        assert (status, text.count("Send a test</button></td>"), "s3cret" in text) == (200, 3, False)
        assert "incidents of node, platform" in text
        for number in range(3):
            status, text, _ = page.ask("/notices", [("target", str(number))])
            assert (status, "accepted the test." in text, "s3cret" in text) == (200, True, False), text
        (mail,) = relay.taken
        assert "a test of the notices" in mail.message["Subject"]
        assert json.loads(hook.posts[0][2])["incident"]["message"] == "This is a test from the page of ffdl."
        assert hook.posts[1][0] == "/s3cret"
        assert page.ask("/notices", [("webhook", f"ntfy+{server}/topic")])[0] == 200
        assert json.loads(hook.posts[2][2])["topic"] == "topic"
        for name, text in (("target", "3"), ("target", "x"), ("webhook", "me@example.org"), ("webhook", "file:///x")):
            assert page.ask("/notices", [(name, text)])[0] == 422
        other_page = {"Origin": "http://evil.example"}
        assert page.ask("/notices", [("target", "1")], headers=other_page)[0] == 403
        hook.status = 500
        status, text, _ = page.ask("/notices", [("target", "1")])
        assert (status, "answered 500" in text, len(hook.posts)) == (502, True, 4)


def test_comparison_has_best_metric_of_each_job_and_points_of_sweep(desk: Desk, page: Page) -> None:
    array = run_sweep(desk)
    status, text, _ = page.ask(f"/compare?array={array}")
    cells = re.findall(r'<td>([^<]*)</td><td>([^<]*)</td><td class="number">([^<]*)</td>', text)
    assert (status, cells) == (
        200, [("0.001", "adam", "0.251"), ("1", "adam", "1.25"), ("0.001", "sgd", "2.251"), ("1", "sgd", "3.25")],
    )  # fmt: skip
    text = page.ask(f"/compare?array={array}&metric=train/loss&best=most")[1]
    assert re.findall(r'<td class="number">([0-9.]+)</td><td class="number">iteration', text) == [
        "4", "3.001", "2", "1.001",
    ]  # fmt: skip
    found = json.loads(page.ask(f"/compare/metrics.json?array={array}&axis=time")[1])["sweep"]["charts"]
    assert [(one["title"], one["is_log_x"], one["names"]) for one in found] == [
        ("Least train/loss by LR", True, []), ("Least train/loss by OPT", False, ["adam", "sgd"]),
    ]  # fmt: skip
    assert [curve["xs"] for curve in found[1]["curves"]] == [[0.0], [0.0], [1.0], [1.0]]


def test_form_checks_plans_and_submits_as_commands_do(desk: Desk, page: Page) -> None:
    text = (
        "name: typed\r\nframework:\r\n  name: custom\r\n  version: python-numpy\r\n"
        f"  command: python3 train.py '{desk.base}/typed-ends'\r\ncpus: 1\r\nmemory: 100MB\r\n"
    )
    assert "name: my-training" in page.ask("/submit")[1]
    assert "The manifest is valid." in page.ask("/submit/check", [("manifest", text)])[1]
    found = page.ask("/submit/check", [("manifest", text.replace("cpus: 1", "cpu: 1") + "learners: <b>\r\n")])[1]
    assert ('<li class="warning">' in found, '<li class="error">' in found, 'data-line="8"' in found) == (
        True,
        True,
        True,
    )
    form = [("manifest", text), ("model", str(desk.base / "model"))]
    status, plan, _ = page.ask("/submit", [*form, ("plan", "yes")])
    assert (status, "Plan: nothing was submitted" in plan, "train.py" in plan) == (200, True, True)
    assert json.loads(desk.run("list", "--json"))["jobs"] == []
    status, refused, _ = page.ask("/submit", [("manifest", text), ("model", str(desk.base / "nothing"))])
    assert (status, "nothing" in refused, "name: typed" in refused) == (422, True, True)
    assert page.ask("/submit", [("manifest", text)])[0] == 422
    assert page.ask("/submit", [("manifest", "name: x\nlearners: many\n"), form[1]])[0] == 422
    status, _, headers = page.ask("/submit", form)
    job_id = headers["Location"].removeprefix("/jobs/")
    assert status == 303
    desk.await_state(job_id, "PROCESSING")
    again = page.ask(f"/submit?job={job_id}")[1]
    assert "name: typed" in again


def test_page_says_that_daemon_is_away_and_goes_on_after_its_return(desk: Desk, page: Page) -> None:
    job_id = start(desk, "digits")
    (daemon,) = desk.site.processes
    daemon.send_signal(signal.SIGKILL)
    daemon.wait()
    status, text, _ = page.ask(f"/jobs/{job_id}")  # starts the daemon again, as every command does
    assert (status, job_id in text) == (200, True)
