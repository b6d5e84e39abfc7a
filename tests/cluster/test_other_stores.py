"""Data from Swift, from Google's store and from a web server by TLS on real Slurm; results where the store takes them.

The stores are on a login node; learners have no network.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.executions import wait_until
from tests.cluster.people import Person
from tests.cluster.rig import Cluster
from tests.cluster.rig.python_layers import SOURCE
from tests.cluster.test_data import FILL, LIST, PYTHON
from tests.fakes.certificates import certificate_for

pytestmark = pytest.mark.full

ADDRESS, SWIFT_PORT, GOOGLE_PORT, WEB_PORT = "10.77.0.1", 5131, 5132, 5133
SWIFT, GOOGLE, WEB = (f"http://{ADDRESS}:{SWIFT_PORT}/auth/v1.0", f"http://{ADDRESS}:{GOOGLE_PORT}",
                      f"https://{ADDRESS}:{WEB_PORT}")  # fmt: skip
USER, PASSWORD, HMAC = "tester", "planted-swift-password", "planted-hmac-of-google"
SERVE_SWIFT = f"""\
import sys, time
sys.path.insert(0, {SOURCE!r})
from tests.fakes.swift_server import Stored, swift_server
with swift_server({ADDRESS!r}, {SWIFT_PORT}) as made:
    made.containers["box"] |= {{"set/a": Stored(b"from swift\\n"), "set/deep/b": Stored(b"2")}}
    while True:
        time.sleep(1)
"""
SERVE_WEB = f"""\
import functools, http.server, ssl, sys
handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=sys.argv[1] + "/www")
server = http.server.ThreadingHTTPServer(({ADDRESS!r}, {WEB_PORT}), handler)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(sys.argv[1] + "/cert.pem", sys.argv[1] + "/key.pem")
server.socket = context.wrap_socket(server.socket, server_side=True)
server.serve_forever()
"""
WAIT = """\
import socket, sys, time
for port in map(int, sys.argv[2:]):
    for _ in range(1500):
        try:
            socket.create_connection((sys.argv[1], port), 60).close()
            break
        except OSError:
            time.sleep(0.1)
"""
COMMAND = 'cat "$DATA_DIR/a"; echo "$TRAINING_ID" > "$RESULT_DIR/here"; echo 1 > "$CHECKPOINT_DIR/last"'
STORE = """\
data_stores:
  - type: {type}
    training_data: {{container: {container}}}
    {results}
    connection: {connection}
batch: {{network: none}}
"""


@dataclass(frozen=True)
class Ended:
    """The jobs by the kind of their store, what each of them said, and what was stored by the kind of store."""

    jobs: dict[str, dict[str, Any]]
    said: dict[str, str]
    stored: dict[str, dict[str, str]]


@pytest.fixture(scope="module")
def ended(cluster: Cluster, alice: Person, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ended]:
    web = f"{alice.home}/web"
    for path in certificate_for(ADDRESS, tmp_path_factory.mktemp("tls")):
        alice.write(f"{web}/{path.name}", path.read_text())
    alice.write(f"{web}/www/sets/a", "from the web\n")
    alice.write(f"{web}/serve.py", SERVE_WEB)
    servers = [
        alice.popen(PYTHON, "-W", "ignore", "-m", "moto.server", "-H", ADDRESS, "-p", str(GOOGLE_PORT)),
        alice.popen(PYTHON, alice.write("~/swift/serve.py", SERVE_SWIFT)),
        alice.popen(PYTHON, f"{web}/serve.py", web),
    ]
    try:
        alice.run(PYTHON, "-c", WAIT, ADDRESS, *map(str, (SWIFT_PORT, WEB_PORT)))
        alice.run(PYTHON, alice.write("~/s3/fill-google.py", FILL), GOOGLE, json.dumps({"digits/a": "from google\n"}))
        yield _run(alice, web)
    finally:
        for server in servers:
            cluster.kill(server)


def _run(alice: Person, web: str) -> Ended:
    manifests = {
        "swift": _store("swift_datastore", "box/set", "box/out", auth_url=SWIFT, user_name=USER, password=PASSWORD),
        "google": _store("gcs_datastore", "sets/digits", "trained/out", auth_url=GOOGLE, user_name="GOOG1ALICE",
                         password=HMAC),
        "web": _store("http_datastore", "sets/a", "", auth_url=WEB, ca_file=f"{web}/cert.pem"),
    }  # fmt: skip
    ids = {kind: alice.start(f"from-{kind}", COMMAND, extra=text, gpus=0) for kind, text in manifests.items()}
    jobs = {kind: alice.finish(job_id) for kind, job_id in ids.items()}
    said = {kind: alice.logs(job_id) for kind, job_id in ids.items()}
    known = {"OS_USERNAME": USER, "OS_PASSWORD": PASSWORD}
    alice.run("ffdl", "data", "get", "-Q", "swift://box/out", "--endpoint", SWIFT, "--out", "from-swift", env=known)
    found = alice.run("sh", "-c", "cd from-swift && find . -type f").stdout.split()
    swift = {
        name.removeprefix("./"): alice.read(f"{alice.home}/from-swift/{name}") for name in found if "zip" not in name
    }
    google = json.loads(alice.run(PYTHON, alice.write("~/s3/list-google.py", LIST), GOOGLE).stdout)
    stored = {"swift": swift, "google": {key.removeprefix("out/"): text for key, text in google.items()}}
    return Ended(jobs, said, stored)


def _store(kind: str, container: str, results: str, **connection: str) -> str:
    into = f"training_results: {{container: {results}}}" if results else ""
    return STORE.format(type=kind, container=container, results=into, connection=json.dumps(connection))


@pytest.mark.parametrize("kind", ["swift", "google", "web"])
def test_learners_read_data_from_swift_google_or_web_store(ended: Ended, kind: str) -> None:
    assert ended.jobs[kind]["state"] == "COMPLETED", ended.jobs[kind]
    words = "the web" if kind == "web" else kind
    assert f"\nfrom {words}\n" in ended.said[kind]
    places = {"swift": "box/set is mounted\n", "google": "sets/digits is mounted\n", "web": "1 "}
    assert ended.said[kind].startswith(f"ffdl: loading data: {places[kind]}")


@pytest.mark.parametrize("kind", ["swift", "google"])
def test_results_are_stored_in_swift_or_google_store_in_ffdl_layout(ended: Ended, kind: str) -> None:
    job_id, stored = ended.jobs[kind]["id"], ended.stored[kind]
    assert {name for name in stored if not name.endswith(".zip")} == {
        f"{job_id}/here", f"{job_id}/learner-1/training-log.txt", f"_wml_checkpoints/{job_id}/last",
    }  # fmt: skip
    assert stored[f"{job_id}/here"] == f"{job_id}\n"
    assert stored[f"{job_id}/learner-1/training-log.txt"] == ended.said[kind]


def test_results_stay_in_job_directory_when_store_is_a_web_server(ended: Ended, alice: Person) -> None:
    job = ended.jobs["web"]
    assert alice.read(f"{alice.state}/jobs/{job['id']}/attempt-1/results/here") == f"{job['id']}\n"


def test_store_credentials_are_removed_from_state_after_jobs_end(ended: Ended, alice: Person) -> None:
    def holders(*texts: str) -> list[str]:
        named = [word for text in texts for word in ("-e", text)]
        return alice.run("sh", "-c", 'grep -rlaF "$@" || true', "sh", *named, alice.state).stdout.split()

    assert Path(ended.jobs["swift"]["id"]).name in str(holders("box/set"))
    wait_until(lambda: holders(PASSWORD, HMAC) == [], "the end of the credentials")
