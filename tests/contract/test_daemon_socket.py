"""ffdl-submitd as a process on a real socket: starting, being found, refusing, streaming, ending, being killed."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ffdl_batch.attempt.layout import Root
from ffdl_batch.host.fast_dataclass import dataclass
from tests import preloaded
from tests.conftest import POSTGRES
from tests.contract.daemon_rig import LIMIT_S, MANIFEST, PLAIN, Site, UnixHttp, model_zip, site_in, until

needs_root = pytest.mark.skipif(os.getuid() != 0, reason="becoming another user needs root")
OTHER_UID = pwd.getpwnam("nobody").pw_uid
THIRD_UID = 54322


ON_EACH_DATABASE = pytest.mark.parametrize("site", ["sqlite", POSTGRES], indirect=True)
"""For tests of what goes through rows; the socket, its lock and its files do not know the database."""


@pytest.fixture
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    url = request.getfixturevalue("postgres_url") if getattr(request, "param", "") == "postgresql" else ""
    with site_in(tmp_path, more_environment={"FFDL_DATABASE_URL": url}) as made:
        yield made


@dataclass(frozen=True)
class Running:
    """A daemon that tests share which leave it as it is."""

    site: Site
    process: subprocess.Popen[bytes]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with site_in(tmp_path_factory.mktemp("running")) as made:
        yield Running(made, made.start())


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """A directory that every user may enter, which tmp_path is not."""
    path = Path(tempfile.mkdtemp(prefix="ffdl-test-"))
    path.chmod(0o777)
    yield path
    shutil.rmtree(path)


def ended(process: subprocess.Popen[bytes]) -> int:
    until(lambda: process.poll() is not None, "the process to end")
    return process.returncode


def deployed(site: Site, key: str = "k1") -> str:
    """A job that is queued at the fake scheduler."""
    job_id = str(site.submit(key)["id"])
    until(lambda: site.state_of(job_id) == "QUEUED", "the job to be deployed")
    return job_id


def training_log(site: Site, job_id: str) -> Path:
    path = Path(Root(str(site.state)).job(job_id).attempt(1).training_log(1))
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def open_stream(site: Site, path: str) -> tuple[UnixHttp, http.client.HTTPResponse]:
    connection = UnixHttp(site.socket)
    connection.request("GET", path)
    response = connection.getresponse()
    assert response.status == 200
    return connection, response


def next_line(response: http.client.HTTPResponse) -> dict[str, Any]:
    """The next line that is not a keep-alive."""
    while not (line := response.readline()).strip():
        assert line, "the stream has ended"
    found: dict[str, Any] = json.loads(line)
    return found


def test_daemon_starts_with_minimal_environment_and_reports_identity(running: Running) -> None:
    site, process = running.site, running.process
    status, health = site.ask("GET", "/api/v1/health")
    assert status == 200
    assert (health["schema"], health["pid"], health["uid"]) == (1, process.pid, os.getuid())
    lock = json.loads((site.state / "daemon.lock").read_text())
    assert (lock["pid"], lock["host"], lock["socket"]) == (process.pid, socket.gethostname(), str(site.socket))
    assert site.socket.stat().st_mode & 0o077 == 0
    assert site.socket.parent.stat().st_mode & 0o777 == 0o700
    assert "serving at" in (site.state / "daemon.log").read_text()


def test_daemon_ignores_forged_identity_headers(running: Running) -> None:
    site = running.site
    job_id = site.submit("forged")["id"]
    forged = {
        "X-Forwarded-User": "root",
        "Remote-User": "other",
        "X-Remote-Uid": "54321",
        "X-Forwarded-For": "10.0.0.1",
        "Forwarded": "for=10.0.0.1",
        "Authorization": "Basic cm9vdDo=",
        "extensions": '{"ffdl.peer": {"uid": 54321}}',
        "ffdl.peer": "54321",
    }
    status, reply = site.ask("GET", "/api/v1/jobs?uid=54321&caller=54321", headers=forged)
    assert status == 200
    assert job_id in [job["id"] for job in reply["jobs"]]


@needs_root
def test_daemon_rejects_other_users_and_admits_root(open_directory: Path) -> None:
    no_hub = {"FFDL_HUB_UID": str(THIRD_UID)}  # in personal mode there is none
    with site_in(open_directory, more_environment={"TEST_BECOME_UID": str(OTHER_UID)} | no_hub) as site:
        site.start()
        site.socket.parent.chmod(0o755)
        site.socket.chmod(0o666)
        assert site.ask("GET", "/api/v1/health")[1]["uid"] == OTHER_UID
        assert ask_as(OTHER_UID, site, "/api/v1/jobs")[0] == 200
        for path in ("/api/v1/jobs", "/api/v1/health", "/openapi.json", "/nothing"):
            status, reply = ask_as(THIRD_UID, site, path)
            assert status == 403
            assert reply["problem"]["exit_code"] == 77
            assert str(THIRD_UID) in reply["problem"]["message"]
        status, reply = site.ask("GET", "/api/v1/jobs?all_users=true")
        assert (status, reply["jobs"]) == (200, [])
        assert ask_as(OTHER_UID, site, "/api/v1/jobs?all_users=true")[0] == 403


def ask_as(uid: int, site: Site, path: str) -> tuple[int, dict[str, Any]]:
    """One request of a process of another user, which forges what it can."""
    program = (
        "import os, socket, sys\n"
        "uid = int(sys.argv[3]); os.setgroups([]); os.setgid(uid); os.setuid(uid)\n"
        "s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1])\n"
        "s.sendall(b'GET ' + sys.argv[2].encode() + b' HTTP/1.1\\r\\nHost: x\\r\\nX-Remote-User: root\\r\\n'\n"
        "          b'Connection: close\\r\\n\\r\\n')\n"
        "while part := s.recv(65536): sys.stdout.buffer.write(part)\n"
    )
    done = preloaded.run(
        [sys.executable, "-I", "-c", program, str(site.socket), path, str(uid)],
        cwd="/",
        capture_output=True,
        check=True,
        timeout=LIMIT_S,
    )
    head, _, body = done.stdout.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)


ENDLESS_WAITS = """\
import sys
from ffdl_batch.daemon.routes import jobs as job_routes
from ffdl_batch.daemon.main import main
from tests.fakes.daemon_with_fake_scheduler import opener
until_changed = job_routes.until_changed
def until_news_alone(here, request, look, is_news, wait_s):
    def check(seen):
        found = is_news(seen)
        print("news" if found else "a request waits", flush=True)
        return found
    return until_changed(here, request, look, check, 1000 * wait_s)
job_routes.until_changed = until_news_alone
sys.exit(main(opener=opener))
"""
"""A daemon whose long polls end by a change, never by the end of their time, and which prints when one begins."""

PATIENT = """\
import sys
from ffdl_batch.daemon.main import main
from ffdl_batch.services import daemon_lock as lock
from tests.fakes.daemon_with_fake_scheduler import opener
lock.acquire.__kwdefaults__["patience_s"] = 100.0
sys.exit(main(opener=opener))
"""
"""A daemon that waits for the one that serves for as long as ten starts may take."""


def test_daemon_lock_admits_one_of_ten_simultaneous_starts(site: Site) -> None:
    started = [site.launch(program=("-c", PATIENT)) for _ in range(10)]
    until(site.is_served, "one to serve")
    serving = site.ask("GET", "/api/v1/health")[1]["pid"]
    others = [process for process in started if process.pid != serving]
    assert len(others) == 9
    assert [ended(process) for process in others] == [0] * 9
    assert site.log.count("a daemon already runs here") == 9
    assert site.ask("GET", "/api/v1/health")[1]["pid"] == serving


def hold(site: Site) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """A daemon, and a connection to it; started again where it had been idle for long before we came."""
    while True:
        process = site.launch()
        while process.poll() is None:
            held = socket.socket(socket.AF_UNIX)
            with contextlib.suppress(OSError):
                held.connect(os.fspath(site.socket))
                if site.is_served():
                    return process, held
            held.close()
            time.sleep(0.02)
        assert process.returncode == 0, site.log


def test_daemon_exits_when_idle_but_not_while_job_is_active_or_client_is_connected(tmp_path: Path) -> None:
    with site_in(tmp_path, idle_exit_s=0.4) as site:
        process, held = hold(site)
        job_id = deployed(site)
        held.close()
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(2.0)
        watching, response = open_stream(site, f"/api/v1/jobs/{job_id}/logs?follow=true")
        assert site.ask("POST", f"/api/v1/jobs/{job_id}/cancel")[0] == 200
        until(lambda: site.state_of(job_id) == "CANCELLED", "the job to end")
        response.read()
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1.5)  # the follower's connection is still open
        watching.close()
        assert ended(process) == 0
        assert "idle for" in site.log
        assert not site.socket.exists() and not (site.state / "daemon.lock").exists()


@ON_EACH_DATABASE
def test_daemon_answers_waiting_requests_and_exits_0_on_sigterm(site: Site) -> None:
    process = site.start(program=("-c", ENDLESS_WAITS))
    job_id = deployed(site)
    with contextlib.closing(UnixHttp(site.socket)) as waiting:
        waiting.request("GET", f"/api/v1/jobs/{job_id}/wait?wait_s=30")
        watching, response = open_stream(site, f"/api/v1/jobs/{job_id}/logs?follow=true")
        with contextlib.closing(watching):
            until(lambda: "a request waits" in site.log, "the waiter's request to be read")
            process.send_signal(signal.SIGTERM)
            assert ended(process) == 0, site.log
            answer = waiting.getresponse()
            assert answer.status == 200
            assert json.loads(answer.read())["job"]["state"] == "QUEUED"
            with pytest.raises((http.client.IncompleteRead, ConnectionResetError)):
                response.read()  # broken off: the reader must not take it for the end of the log
    assert not site.socket.exists()
    assert not (site.state / "daemon.lock").exists()
    assert "Traceback" not in site.log


def test_daemon_dumps_thread_stacks_on_sigusr1_and_keeps_running(running: Running) -> None:
    site, process = running.site, running.process
    process.send_signal(signal.SIGUSR1)
    signs = ("Current thread", "Thread 0x", "most recent call first", "daemon/server.py")  # a line after the other
    until(lambda: all(sign in site.log for sign in signs), f"{signs} in {site.log}")
    assert site.ask("GET", "/api/v1/health")[1]["pid"] == process.pid


def test_daemon_restarts_after_sigkill_despite_stale_socket_and_lock(site: Site) -> None:
    first = site.start()
    job_id = deployed(site)
    first.send_signal(signal.SIGKILL)
    first.wait()
    assert site.socket.exists()
    assert (site.state / "daemon.lock").exists()
    second = site.start()
    assert site.ask("GET", "/api/v1/health")[1]["pid"] == second.pid
    assert site.state_of(job_id) == "QUEUED"


def test_daemon_rejects_lock_of_another_host_without_forced_take_over(site: Site) -> None:
    site.state.mkdir()
    lock = {
        "host": "login2",
        "pid": 7,
        "boot_id": "b",
        "start_ticks": 1,
        "socket": "/x",
        "version": "",
        "started_at": 0,
    }
    (site.state / "daemon.lock").write_text(json.dumps(lock))
    for arguments in ((), ("--take-over",), ("--force-take-over-from", "login3")):
        assert ended(site.launch(*arguments)) == 75
    assert site.log.count("login2") >= 3
    assert "needs proof that it is dead" in site.log
    site.start("--force-take-over-from", "login2")
    assert json.loads((site.state / "daemon.lock").read_text())["host"] == socket.gethostname()


def test_daemon_exits_when_lock_is_taken_by_another_host(site: Site) -> None:
    process = site.start()
    lock = json.loads((site.state / "daemon.lock").read_text())
    (site.state / "daemon.lock").write_text(json.dumps({**lock, "host": "login2"}))
    assert ended(process) == 0
    assert "is another daemon's; this daemon stops" in site.log
    assert json.loads((site.state / "daemon.lock").read_text())["host"] == "login2"


def test_daemon_recreates_socket_when_socket_directory_is_removed(site: Site) -> None:
    process = site.start()
    shutil.rmtree(site.socket.parent)
    until(site.is_served, "the daemon to listen again")
    assert site.ask("GET", "/api/v1/health")[1]["pid"] == process.pid


@needs_root
def test_daemon_exits_69_when_user_has_no_passwd_entry(open_directory: Path) -> None:
    with site_in(open_directory, more_environment={"TEST_BECOME_UID": str(THIRD_UID)}) as site:
        assert ended(site.launch()) == 69
        assert f"user {THIRD_UID} is not in the password database" in site.log
        assert "Traceback" not in site.log


@pytest.mark.parametrize(
    ("name", "value", "code"), [("FFDL_WATCH_INTERVAL_S", "soon", 78), ("FFDL_SOCKET", "/tmp/" + "x" * 120, 2)]
)
def test_daemon_exits_with_message_when_a_setting_is_invalid(tmp_path: Path, name: str, value: str, code: int) -> None:
    with site_in(tmp_path, more_environment={name: value}) as site:
        assert ended(site.launch(program=PLAIN)) == code
        assert "ffdl-submitd: " in site.log
        assert "Traceback" not in site.log
        assert not (site.state / "daemon.lock").exists()


@ON_EACH_DATABASE
def test_job_wait_and_event_poll_return_cancelled_state_as_soon_as_job_is_cancelled(site: Site) -> None:
    site.start(program=("-c", ENDLESS_WAITS))
    job_id = deployed(site)
    seq = site.ask("GET", f"/api/v1/jobs/{job_id}/events")[1]["events"][-1]["seq"]
    before = site.log.count("a request waits")
    with contextlib.closing(UnixHttp(site.socket)) as waiting, contextlib.closing(UnixHttp(site.socket)) as polling:
        waiting.request("GET", f"/api/v1/jobs/{job_id}/wait?wait_s=30")
        polling.request("GET", f"/api/v1/jobs/{job_id}/events?after={seq}&wait_s=30")
        until(lambda: site.log.count("a request waits") >= before + 2, "both requests to wait")
        assert site.ask("POST", f"/api/v1/jobs/{job_id}/cancel")[0] == 200
        waited, polled = (json.loads(one.getresponse().read()) for one in (waiting, polling))
    assert waited["job"]["state"] == "CANCELLED"
    assert polled["events"][-1]["seq"] > seq and {event["state"] for event in polled["events"]} == {"CANCELLED"}
    assert polled["terminal"] is True


def test_log_stream_follows_growth_while_another_reader_disconnects(running: Running) -> None:
    site = running.site
    job_id = deployed(site)
    log = training_log(site, job_id)
    log.write_text("one\n")
    path = f"/api/v1/jobs/{job_id}/logs?follow=true"
    stayer, stays = open_stream(site, path)
    leaver, leaves = open_stream(site, path)
    first = {"learner": 1, "index": 1, "text": "one", "at": None, "attempt": 1, "offset": 0, "end": 4}
    assert next_line(stays) == first
    assert next_line(leaves)["text"] == "one"
    leaver.close()
    with log.open("a") as file:
        file.write("zwei \u00fc \x1b[1m\n")
    assert next_line(stays)["text"] == "zwei \u00fc \x1b[1m"
    site.ask("POST", f"/api/v1/jobs/{job_id}/cancel")
    assert stays.read().strip() == b""  # ends whole: read() raises IncompleteRead otherwise
    stayer.close()
    reader, again = open_stream(site, f"/api/v1/jobs/{job_id}/logs?tail=1")
    assert [json.loads(line)["index"] for line in again.read().splitlines() if line] == [2]  # blank: it goes on
    reader.close()
    assert "Traceback" not in site.log


@ON_EACH_DATABASE
def test_daemon_deploys_submission_with_fifty_followers_and_fifty_waiters(site: Site) -> None:
    site.start()
    job_id = deployed(site)
    followers = [open_stream(site, f"/api/v1/jobs/{job_id}/logs?follow=true")[0] for _ in range(50)]
    for _ in range(50):
        waiter = UnixHttp(site.socket)
        waiter.request("GET", f"/api/v1/jobs/{job_id}/wait?wait_s=30")
        followers.append(waiter)
    second = deployed(site, "k2")
    assert second != job_id
    assert site.state_of(job_id) == "QUEUED"
    for connection in followers:
        connection.close()


def test_daemon_removes_partial_archive_after_interrupted_upload(running: Running) -> None:
    site, models = running.site, running.site.state / "models"
    known = set(models.iterdir()) if models.exists() else set()
    with socket.socket(socket.AF_UNIX) as half:
        half.connect(os.fspath(site.socket))
        head = f"PUT /api/v1/archives/{'a' * 64} HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n"
        half.sendall(head.encode() + b"x" * 1000)
        until(lambda: set(models.iterdir()) > known, "the upload to begin")
    until(lambda: set(models.iterdir()) == known, "the piece to be removed")
    assert site.is_served()


def run_relay(site: Site, request: bytes, *options: str) -> subprocess.CompletedProcess[bytes]:
    """Run what another host runs through ssh."""
    return preloaded.run(
        [sys.executable, "-c", "from ffdl_batch.entry import ffdl; ffdl()", "daemon", "relay", *options],
        input=request,
        env=site.environment(),
        cwd="/",
        capture_output=True,
        timeout=LIMIT_S,
        check=False,
    )


HEALTH = b"GET /api/v1/health HTTP/1.1\r\nHost: x\r\n\r\n"


def test_relay_passes_response_after_input_is_closed(running: Running) -> None:
    done = run_relay(running.site, HEALTH)
    assert done.returncode == 0, done.stderr
    greeting, _, rest = done.stdout.partition(b"\n")
    assert greeting.startswith(b"ffdl-relay 1 {") and rest.startswith(b"HTTP/1.1 200")
    assert json.loads(rest.partition(b"\r\n\r\n")[2])["pid"] == running.process.pid


def test_relay_starts_daemon_when_none_runs(site: Site) -> None:
    done = run_relay(site, HEALTH)
    assert done.returncode == 0, done.stderr
    health = json.loads(done.stdout.partition(b"\r\n\r\n")[2])
    assert health["pid"] == json.loads((site.state / "daemon.lock").read_text())["pid"]
    os.kill(health["pid"], signal.SIGTERM)
    until(lambda: not (site.state / "daemon.lock").exists(), "the daemon to end")


def test_relay_reports_host_when_daemon_runs_elsewhere(site: Site) -> None:
    site.state.mkdir()
    lock = {"host": "login2", "pid": 7, "boot_id": "b", "start_ticks": 1, "socket": "/x"}
    (site.state / "daemon.lock").write_text(json.dumps(lock))
    done = run_relay(site, b"", "--no-forward")
    assert done.returncode == 75
    assert b"the daemon runs on login2, not here" in done.stderr


def test_relay_imports_no_web_framework_or_database() -> None:
    program = (
        "import sys\n"
        "import ffdl_batch.cli.commands.daemon, ffdl_batch.client.connection.host_relay\n"
        "heavy = {'fastapi', 'uvicorn', 'starlette', 'pydantic', 'sqlalchemy', 'asyncio', 'paramiko'}\n"
        "heavy &= set(sys.modules)\n"
        "sys.exit(f'loaded: {heavy}' if heavy else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr


def test_daemon_enables_garbage_collection_and_freezes_startup_objects(site: Site) -> None:
    told = (
        "import atexit, gc, sys\n"
        "from ffdl_batch.daemon.main import main\n"
        "atexit.register(lambda: print('collects', gc.isenabled(), 'leaves out', gc.get_freeze_count() > 10_000))\n"
        "sys.exit(main())\n"
    )
    process = site.start(program=("-c", told))
    process.send_signal(signal.SIGTERM)
    assert ended(process) == 0
    assert "collects True leaves out True" in site.log


@ON_EACH_DATABASE
def test_resume_deploys_next_attempt_after_halt_and_daemon_kill(site: Site) -> None:
    process = site.start()
    job_id = deployed(site)
    status, reply = site.ask("POST", f"/api/v1/jobs/{job_id}/halt")
    assert (status, reply["job"]["requested_action"]) == (200, "halt")
    until(lambda: site.state_of(job_id) == "HALTED", f"the request to be obeyed; its log:\n{site.log}")
    process.send_signal(signal.SIGKILL)
    assert ended(process) == -signal.SIGKILL
    site.start()
    status, reply = site.ask("POST", f"/api/v1/jobs/{job_id}/drill", {"event": "halt"})
    assert (status, reply["problem"]["exit_code"]) == (409, 1)
    status, reply = site.ask("POST", f"/api/v1/jobs/{job_id}/resume", {"time": "2:00:00"})
    assert (status, reply["job"]["state"], reply["job"]["requested_action"]) == (200, "PENDING", "none")
    until(lambda: site.state_of(job_id) == "QUEUED", "the next attempt to be deployed")
    job = site.ask("GET", f"/api/v1/jobs/{job_id}")[1]["job"]
    assert (job["attempt"], [attempt["number"] for attempt in job["attempts"]]) == (2, [1, 2])
    assert job["attempts"][0]["interruption"] == "halt"
    status, reply = site.ask("POST", f"/api/v1/jobs/{job_id}/resume", {})
    assert (status, "is QUEUED" in reply["problem"]["message"]) == (409, True)


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        ({}, ""),
        ({"SLURM_CONF": "/etc/two/slurm.conf"}, "SLURM_CONF is '/etc/two/slurm.conf' in this shell and '/etc/one"),
        ({"SLURM_CONF": "two/slurm.conf"}, "SLURM_CONF is '/two/slurm.conf' in this shell"),  # in its directory
        ({"SLURM_CLUSTERS": "two"}, "SLURM_CLUSTERS is 'two' in this shell and 'one' for the running daemon"),
        ({"SLURM_CLUSTERS": ""}, "SLURM_CLUSTERS is not set in this shell and 'one' for the running daemon"),
        ({"SLURM_CLUSTERS": "one,two"}, "names several clusters"),
    ],
)
def test_submission_from_shell_that_chooses_another_cluster_is_refused(
    cluster_one: Site, tmp_path: Path, chosen: dict[str, str], words: str
) -> None:
    manifest, model = tmp_path / "m.yml", tmp_path / "m.zip"
    manifest.write_text(MANIFEST)
    model.write_bytes(model_zip())
    env = {**cluster_one.environment(), **chosen}

    def count() -> int:
        return len(cluster_one.ask("GET", "/api/v1/jobs")[1]["jobs"])

    before = count()
    done = cluster_one.try_to("submit", str(manifest), str(model), env=env)
    assert (done.returncode, words in done.stderr) == (69 if words else 0, True), done.stderr
    assert count() == before + (not words)


@pytest.fixture(scope="module")
def cluster_one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Start a daemon in a shell that chooses a cluster."""
    chosen = {"SLURM_CONF": "/etc/one/slurm.conf", "SLURM_CLUSTERS": "one"}
    with site_in(tmp_path_factory.mktemp("cluster"), more_environment=chosen) as made:
        made.start()
        yield made
