"""Attacks of one user on another one through hub, spawner and daemons, with real uids: the victim notices nothing.

docs/security/threat-model.md has the threats and names these tests.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import ssl
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from http.client import HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any

import pytest

from tests.contract.daemon_rig import MANIFEST
from tests.site.rig import ADA, ADDRESS, BOB, OUTSIDER, Host, Hub, Spawner, until
from tests.site.test_hub import ASK, token_of

ELSEWHERE = "127.0.0.2"
"""The attacker's address; the victim has another one."""
SECRET = "planted-7f3a"
"""A part of every secret that these tests use."""


def connect(hub: Hub) -> ssl.SSLSocket:
    """A TLS connection from the attacker's address."""
    context = ssl.create_default_context(cafile=str(hub.certificate))
    plain = socket.create_connection((ADDRESS, hub.port), 60, (ELSEWHERE, 0))
    return context.wrap_socket(plain, server_hostname=ADDRESS)


def ask(
    hub: Hub, token: str, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
) -> int | None:
    """The status of a request from the attacker's address; None if the connection was dropped."""
    connection = HTTPSConnection(ADDRESS, hub.port, timeout=300)
    try:
        connection.sock = connect(hub)
        connection.request(method, path, body or None, {"Authorization": f"Bearer {token}", **(headers or {})})
        return connection.getresponse().status
    except (OSError, HTTPException):
        return None
    finally:
        connection.close()


@contextmanager
def undisturbed(hub: Hub, token: str) -> Iterator[None]:
    """Check that every request of the victim is answered as before during the block, and three at least."""
    expected = hub.ask(token, "/api/v1/secrets")
    answers: list[Any] = []
    is_over = threading.Event()

    def work() -> None:
        while not is_over.is_set() or len(answers) < 3:
            try:
                answers.append(hub.ask(token, "/api/v1/secrets"))
            except (OSError, HTTPException, ValueError) as error:
                answers.append(error)

    victim = threading.Thread(target=work)
    victim.start()
    try:
        yield
    finally:
        is_over.set()
        victim.join()
    assert expected[0] == 200 and [one["name"] for one in expected[1]["secrets"]] == ["of-ada"]
    assert [answer for answer in answers if answer != expected][:3] == []


@pytest.fixture
def hub(host: Host, spawner: Spawner) -> Iterator[Hub]:
    """A hub with an operator, who is neither of the two."""
    shutil.rmtree(host.place / "hub", ignore_errors=True)
    made = Hub(host, operators=["oskar"])
    yield made
    made.close()


@pytest.fixture
def ada(host: Host, hub: Hub, spawner: Spawner) -> str:
    """The victim's token. She has one secret."""
    token = token_of(host, ADA, "read", "write")
    assert hub.ask(token, "/api/v1/secrets/of-ada", "PUT", {"value": SECRET})[0] == 200
    return token


@pytest.fixture
def bob(host: Host, hub: Hub, spawner: Spawner) -> str:
    """The attacker's token."""
    return token_of(host, BOB, "read", "write")


def in_parallel(number: int, work: Callable[[], object]) -> None:
    threads = [threading.Thread(target=work) for _ in range(number)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()


def test_flood_of_connections_and_requests_leaves_other_users_served(hub: Hub, ada: str, bob: str) -> None:
    statuses: list[int | None] = []

    def flood() -> None:
        for number in range(12):
            token = bob if number % 2 else f"ffdl_{'a' * 12}_{'A' * 43}"
            statuses.append(ask(hub, token, "GET", "/api/v1/jobs"))

    with ExitStack() as held, undisturbed(hub, ada):
        for number in range(150):
            with suppress(OSError):
                silent = socket.create_connection((ADDRESS, hub.port), 60, (ELSEWHERE, 0))
                held.enter_context(silent)
            if number % 3 == 0:
                with suppress(OSError):
                    held.enter_context(connect(hub))
        in_parallel(12, flood)
    assert {200, 429} & set(statuses), statuses
    assert set(statuses) <= {200, 401, 429, 503, None}, statuses


def test_slow_clients_leave_other_users_served(hub: Hub, ada: str, bob: str) -> None:
    head = f"Host: x\r\nAuthorization: Bearer {bob}\r\n"
    begun = (
        "GET /api/v1/jobs HTTP/1.1\r\nHo",
        f"POST /api/v1/jobs HTTP/1.1\r\n{head}Content-Length: 100000\r\n\r\n",
        f"PUT /api/v1/archives/{'0' * 64} HTTP/1.1\r\n{head}Content-Length: 100000\r\n\r\nPK",
        f"POST /api/v1/jobs HTTP/1.1\r\n{head}Transfer-Encoding: chunked\r\n\r\n1\r\n{{\r\n",
    )
    with ExitStack() as held, undisturbed(hub, ada):
        slow = [held.enter_context(connect(hub)) for _ in range(10) for _ in begun]
        for number, one in enumerate(slow):
            one.sendall(begun[number % len(begun)].encode())
        for _ in range(5):
            for one in slow[1 :: len(begun)]:
                with suppress(OSError):
                    one.sendall(b" ")
            time.sleep(0.2)


def test_giant_and_malformed_submissions_cost_their_user_alone(hub: Hub, ada: str, bob: str) -> None:
    def memory() -> int:
        lines = Path(f"/proc/{hub.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))

    bomb = "a: &a [x, x]\n" + "".join(
        f"{chr(98 + n)}: &{chr(98 + n)} [*{chr(97 + n)}, *{chr(97 + n)}]\n" for n in range(24)
    )
    manifests = (
        bomb,
        "a: " + "[" * 20_000,
        "x: " + "y" * 3_000_000,
        "name: digits\n" * 200_000,
        "\0" * 1000,
        "- " * 50_000,
    )
    bodies = [json.dumps({"submissions": [{"manifest": text, "archive": "0" * 64}]}).encode() for text in manifests]
    bodies += [b"[" * 100_000, b"{" * 1000, b'{"submissions": ' + b"9" * 5000 + b"}", b" " * 40_000_000]
    before = memory()
    with undisturbed(hub, ada):
        for body in bodies:
            status = ask(hub, bob, "POST", "/api/v1/jobs", body, {"Content-Type": "application/json"})
            assert status is None or status == 200 or 400 <= status < 500, (body[:40], status)
    assert memory() - before < 64 * 1024  # KiB
    assert hub.ask(bob, "/api/v1/jobs")[1]["jobs"] == []


PLANT = """
import os, sys
root, state, jobs, victim = sys.argv[1:]
done = []
for change in (
    lambda: os.unlink(f"{root}/daemon.sock"),
    lambda: os.rename(f"{root}/daemon.sock", f"{root}/x"),
    lambda: os.symlink("/etc", f"{root}/link"),
    lambda: os.rename(state, f"{state}-away"),
    lambda: os.unlink(f"{os.path.dirname(state)}/account"),
):
    try:
        change()
        done.append("changed")
    except OSError as error:
        done.append(type(error).__name__)
for name in ("daemon.log", "daemon.lock", "ffdl.sqlite3", "ffdl.sqlite3-wal"):
    place = f"{state}/{name}"
    if os.path.lexists(place):
        os.unlink(place)
    os.symlink(f"{victim}/{name}", place)
os.makedirs(f"{jobs}/jobs", exist_ok=True)
os.mkfifo(f"{jobs}/jobs/training-000000000")
os.symlink("/", f"{jobs}/jobs/training-111111111")
print(" ".join(done))
"""


def test_links_and_fifos_of_one_user_change_nothing_of_another(
    host: Host, hub: Hub, spawner: Spawner, ada: str, bob: str
) -> None:
    """Links are in all places of a daemon's files, to those of the victim, when the daemon starts again."""
    theirs = host.place / f"state/{ADA}/state"
    pid = spawner.daemons()[-1]
    os.kill(pid, 9)
    until(lambda: not Path(f"/proc/{pid}").exists(), "the daemon's end")
    before = {path: (path.stat().st_size, path.stat().st_uid) for path in theirs.iterdir() if path.is_file()}
    own, jobs = host.place / f"state/{BOB}/state", host.place / "home/bob/.local/state/ffdl-site"
    with undisturbed(hub, ada):
        arguments = (str(host.place / f"run/users/{BOB}"), str(own), str(jobs), str(theirs))
        assert host.python(PLANT, *arguments, uid=BOB).split() == ["PermissionError"] * 5
        for _ in range(2):  # each starts his daemon twice, and only so many starts are permitted within a minute
            assert hub.ask(bob, "/api/v1/jobs")[0] != 200
    assert {path.stat().st_uid for path in theirs.iterdir()} == {ADA}
    assert set(before) <= set(theirs.iterdir())
    listening = host.place / f"run/users/{BOB}/daemon.sock"
    assert stat.S_ISSOCK(listening.lstat().st_mode)
    shutil.rmtree(own)
    own.mkdir(mode=0o700)
    os.chown(own, BOB, -1)
    shutil.rmtree(jobs)


FORGED = (
    {"FfDL-Role": "operator", "FfDL-Actor": str(OUTSIDER)},
    {"ffdl-role": "auditor", "ffdl-actor": str(ADA)},
    {"FfDL_Role": "operator", "FfDL_Actor": "0"},
    {"X-Forwarded-For": ADDRESS, "X-Real-IP": ADDRESS, "Forwarded": "for=127.0.0.1"},
    {"X-Remote-User": "ada", "Remote-User": "ada", "Cookie": "token=x"},
    {"Connection": "Authorization, FfDL-Role", "FfDL-Role": "operator"},
)


def test_headers_of_a_request_make_nobody_another_user(host: Host, hub: Hub, ada: str, bob: str) -> None:
    forged = f"ffdl_{ada.split('_')[1]}_{bob.split('_', 2)[2]}"
    for headers in FORGED:
        for path in (f"/users/{ADA}/api/v1/jobs", f"/users/{ADA}/api/v1/secrets", f"/users/0{ADA}/api/v1/jobs"):
            status = ask(hub, bob, "GET", path, headers=headers)
            assert status in (401, 403, 404), (path, headers, status)
        assert ask(hub, forged, "GET", "/api/v1/jobs", headers=headers) == 401
        here = (str(host.place / "hub/hub.sock"), "GET", f"/users/{ADA}/api/v1/jobs", "", json.dumps(headers))
        assert json.loads(host.python(ASK, *here, uid=BOB))[0] == 403


def test_hub_and_spawner_keep_no_secret_that_passes_through(host: Host, hub: Hub, spawner: Spawner, ada: str) -> None:
    secrets = {
        name: f"{SECRET}-{name}" for name in ("value", "query", "header", "cookie", "refused", "unknown", "path")
    }
    assert hub.ask(ada, "/api/v1/secrets/key", "PUT", {"value": secrets["value"]})[0] == 200
    hub.ask(ada, f"/api/v1/jobs?after={secrets['query']}")
    for method, path, body in (
        ("POST", "/api/v1/jobs", json.dumps({"submissions": [], "x": secrets["refused"]}).encode()),
        ("POST", "/elsewhere", secrets["unknown"].encode()),
        ("PUT", "/api/v1/jobs", secrets["refused"].encode()),
    ):
        ask(hub, ada, method, path, body, {"X-Api-Key": secrets["header"], "Cookie": f"k={secrets['cookie']}"})
    ask(hub, f"ffdl_{ada.split('_')[1]}_{SECRET}-{'A' * 30}", "GET", "/api/v1/jobs")
    hub.close()  # so that the database is complete
    hub.start()
    of_hub = [path for path in (host.place / "hub").iterdir() if path.is_file() and path.name != "key.pem"]
    places = [*of_hub, hub.log, spawner.log, *(path for path in (host.place / "run").rglob("*") if path.is_file())]
    assert len(places) > 5
    for file in places:
        assert SECRET.encode() not in file.read_bytes(), file
        assert ada.split("_", 2)[2].encode() not in file.read_bytes(), file
    own = [path for place in ("home/ada", f"state/{ADA}") for path in (host.place / place).rglob("*") if path.is_file()]
    keep = [path for path in own if secrets["value"].encode() in path.read_bytes()]
    assert keep and {(path.stat().st_uid, path.stat().st_mode & 0o077) for path in keep} == {(ADA, 0)}


STORE = """\
batch: {dependency: "afterok:%s"}
data_stores:
  - id: s
    type: s3_datastore
    training_data: {container: data}
    training_results: {container: results}
    connection: {auth_url: "http://%s:%d", user_name: someone, password: something}
"""


SUBMIT = """
import hashlib, io, json, http.client, socket, sys, zipfile
place, manifest = sys.argv[1:]
packed = io.BytesIO()
with zipfile.ZipFile(packed, "w") as archive:
    archive.writestr("train.py", "")
digest = hashlib.sha256(packed.getvalue()).hexdigest()
job = {"manifest": manifest, "manifest_name": "m.yml", "base_dir": "/", "archive": digest, "key": ""}
job["backend"] = "local"
for method, path, body in (
    ("PUT", f"/api/v1/archives/{digest}", packed.getvalue()),
    ("POST", "/api/v1/jobs", json.dumps({"submissions": [job]})),
):
    connection = http.client.HTTPConnection("x", timeout=300)
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(place)
    connection.request(method, path, body, {"Content-Type": "application/json"} if isinstance(body, str) else {})
    reply = connection.getresponse()
    answer = [reply.status, json.loads(reply.read())]
print(json.dumps(answer))
"""


def test_daemon_of_site_connects_to_no_address_of_its_own_host(host: Host, spawner: Spawner) -> None:
    """Jobs wait for another one, so that only the daemon uses their stores."""
    assert host.ask(BOB, f"ensure {BOB}\n").startswith("ok ")
    own = str(host.place / f"run/users/{BOB}/daemon.sock")

    def submit(manifest: str) -> dict[str, Any]:
        status, reply = json.loads(host.python(SUBMIT, own, manifest, uid=BOB))
        (result,) = reply["results"]
        assert status == 200 and result["id"], reply
        return dict(result)

    first = submit(MANIFEST.replace("python3 train.py", "sleep 600"))["id"]
    with socket.create_server((ADDRESS, 0)) as inner:
        inner.settimeout(0.5)
        for address in (ADDRESS, "localhost", "0.0.0.0", "[::ffff:127.0.0.1]"):
            store = STORE % (first, address, inner.getsockname()[1])
            assert "could not be used from this host" in str(submit(MANIFEST + store)["warnings"])
        with pytest.raises(TimeoutError):
            inner.accept()
    host.python(ASK, own, "POST", f"/api/v1/jobs/{first}/cancel", "", uid=BOB)
    until(
        lambda: '"ended_at": null' not in host.python(ASK, own, "GET", f"/api/v1/jobs/{first}", "", uid=BOB), "its end"
    )
