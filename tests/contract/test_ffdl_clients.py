"""Contract of FfDL's REST API v1: requests of its Python client, command line and dashboard, through a real hub.

Daemon and learners are real, on the local backend.
"""

from __future__ import annotations

import base64
import io
import json
import ssl
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from http.client import HTTPResponse, HTTPSConnection
from pathlib import Path
from typing import Any

import pytest
from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, CloseConnection, Ping, Request, TextMessage

from ffdl_batch.host.users import user_name
from tests import preloaded
from tests.contract.daemon_rig import PLAIN, Site, site_in, until
from tests.fakes.certificates import certificate_for
from tests.fakes.s3_server import S3Server
from tests.unit.hub.conftest import OWN, TOKEN, serving_hub

VERSION = "version=2017-02-13"
MAX_JOBS = 4
MANIFEST = """\
name: mnist
description: digits
version: "1.0"
gpus: 0
cpus: 1
memory: 1Gb
learners: {learners}
data_stores:
  - id: sl-internal-os
    type: mount_volume
    training_data: {{container: data}}
    training_results: {{container: results}}
    connection: {{type: host_mount, name: "host-mount", path: {path}, password: topsecret}}
framework:
  name: custom
  version: python-numpy
  command: {command}
batch: {{checkpoint: {{grace_s: 2}}}}
evaluation_metrics:
  type: regex_extractor
  groups:
    test:
      regex: 'loss=(?P<loss>[0-9.]+)'
      meta: {{time: $timestamp}}
      scalars: {{loss: {{type: FLOAT, value: $loss}}}}
"""
OF_STORE = """\
name: stored
framework: {{name: custom, version: python-numpy, command: "echo 42 >$RESULT_DIR/answer"}}
cpus: 1
memory: 100MB
data_stores:
  - id: main
    type: s3_datastore
    training_results: {{container: of-ffdl-clients/out}}
    connection: {{auth_url: "{url}", user_name: ACCESSKEY00000000001, password: secret-0123456789abcdef}}
"""
PRINTS = "'i=1; while [ $i -le 25 ]; do echo line $i; i=$((i+1)); done; echo done > $RESULT_DIR/answer'"


@dataclass
class FfdlClient:
    """A client of FfDL: Basic authentication with a token as the password, and the header that names the user."""

    port: int
    authority: Path
    password: str = TOKEN
    user: str = user_name(OWN)

    @property
    def headers(self) -> dict[str, str]:
        basic = base64.b64encode(f"test-user:{self.password}".encode()).decode()
        return {"Authorization": f"Basic {basic}", "X-Watson-Userinfo": f"bluemix-instance-id={self.user}"}

    def open(self, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[HTTPSConnection, HTTPResponse]:
        context = ssl.create_default_context(cafile=self.authority)
        connection = HTTPSConnection("127.0.0.1", self.port, timeout=120, context=context)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body or None, self.headers | named)
        return connection, connection.getresponse()

    def ask(self, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, Any]:
        """The status, and the reply as JSON or bytes."""
        connection, reply = self.open(method, path, body, **headers)
        with closing(connection):
            data = reply.read()
            return reply.status, json.loads(data) if reply.headers.get_content_type() == "application/json" else data

    def post(self, manifest: str, model: bytes) -> tuple[HTTPResponse, dict[str, Any]]:
        """Send the form as `requests.post(url, files=...)` and the dashboard send it."""
        parts = {"manifest": ("manifest.yml", manifest.encode()), "model_definition": ("model.zip", model)}
        body = b"".join(
            f'--limit\r\nContent-Disposition: form-data; name="{name}"; filename="{file}"\r\n\r\n'.encode()
            + data
            + b"\r\n"
            for name, (file, data) in parts.items()
        )
        kind = "multipart/form-data; boundary=limit"
        connection, reply = self.open("POST", f"/v1/models?{VERSION}", body + b"--limit--\r\n", Content_Type=kind)
        with closing(connection):
            return reply, json.loads(reply.read())

    def status(self, model_id: str) -> dict[str, str]:
        """`training_status`, as Kubeflow's component polls it."""
        found = self.ask("GET", f"/v1/models/{model_id}?{VERSION}")[1]["training"]["training_status"]
        assert isinstance(found, dict)
        return found

    def await_status(self, model_id: str, *words: str) -> dict[str, str]:
        until(lambda: self.status(model_id)["status"] in words, lambda: f"{words}: {self.status(model_id)}")
        return self.status(model_id)


@dataclass
class Desk:
    client: FfdlClient
    site: Site
    base: Path

    def submit(self, command: str = PRINTS, learners: int = 1) -> str:
        manifest = MANIFEST.format(command=command, learners=learners, path=self.base / "store")
        reply, body = self.client.post(manifest, model())
        assert (reply.status, body["location"]) == (201, reply.headers["Location"]), body
        assert body["location"] == f"/v1/models/{body['model_id']}"
        return str(body["model_id"])


def model() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(zipfile.ZipInfo("train.py"), "print('train')\n")
    return buffer.getvalue()


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    base = tmp_path_factory.mktemp("ffdl")
    config = base / "ffdl.toml"
    config.write_text(f"[backend.local]\nmax_jobs = {MAX_JOBS}\n")
    for name in ("data", "results"):
        (base / "store" / name).mkdir(parents=True)
    certificate, key = certificate_for("127.0.0.1", base)
    environment = {"FFDL_BACKEND": "local", "FFDL_CONFIG": str(config)}
    with site_in(base, more_environment=environment) as site, ExitStack() as stack:
        hub = stack.enter_context(
            serving_hub(
                base,
                tls=True,
                certificate=str(certificate),
                key=str(key),
                cors_origins=["https://dashboard.example.org"],
            )
        )
        site.launch(program=PLAIN, start=preloaded.Popen)
        until(site.is_served, lambda: f"the daemon to answer; its log:\n{site.log}")
        (base / "users" / str(OWN)).mkdir(parents=True)
        (base / "users" / str(OWN) / "daemon.sock").symlink_to(site.socket)
        made = Desk(FfdlClient(hub.port, certificate), site, base)
        yield made
        for job in made.client.ask("GET", f"/v1/models?{VERSION}")[1]["models"]:
            made.client.ask("DELETE", f"/v1/models/{job['model_id']}?{VERSION}")


@pytest.fixture(scope="module")
def done(desk: Desk) -> str:
    """A job that has completed."""
    model_id = desk.submit()
    desk.client.await_status(model_id, "COMPLETED")
    return model_id


def test_health_needs_no_credentials(desk: Desk) -> None:
    assert FfdlClient(desk.client.port, desk.client.authority, "wrong").ask("GET", "/health") == (200, b"OK")


def test_model_shows_request_and_status_without_credentials(desk: Desk, done: str) -> None:
    status, shown = desk.client.ask("GET", f"/v1/models/{done}?{VERSION}")
    training = shown["training"]
    assert (status, shown["model_id"], shown["name"], shown["description"]) == (200, done, "mnist", "digits")
    assert (training["cpus"], training["gpus"], training["learners"]) == (1.0, 0.0, 1)
    assert (training["memory"], training["memory_unit"]) == (1.0, "GB")
    assert training["training_status"]["status"] == training["training_status"]["status_description"] == "COMPLETED"
    submitted, completed = (int(training["training_status"][name]) for name in ("submitted", "completed"))
    assert 1_700_000_000_000 < submitted < completed
    places = [store["connection"] for store in shown["data_stores"]]
    assert [place["bucket"] for place in places] == ["data", "results"]
    assert {place["password"] for place in places} == {"***"} and "topsecret" not in json.dumps(shown)
    status, listed = desk.client.ask("GET", f"/v1/models?{VERSION}")
    assert (status, shown in listed["models"]) == (200, True)


def test_definition_is_archive_and_trained_model_is_zip_of_results(desk: Desk, done: str) -> None:
    assert desk.client.ask("GET", f"/v1/models/{done}/definition?{VERSION}") == (200, model())
    status, data = desk.client.ask("GET", f"/v1/models/{done}/trained_model?{VERSION}")
    assert status == 200
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert archive.testzip() is None
        assert {name: archive.read(name) for name in archive.namelist()}["answer"] == b"done\n"


def test_trained_model_of_job_with_s3_store_is_sent_although_manifest_had_credentials(
    desk: Desk, s3_server: S3Server
) -> None:
    s3_server.client.create_bucket(Bucket="of-ffdl-clients")
    reply, body = desk.client.post(OF_STORE.format(url=s3_server.endpoint), model())
    assert reply.status == 201, body
    desk.client.await_status(body["model_id"], "COMPLETED")
    status, data = desk.client.ask("GET", f"/v1/models/{body['model_id']}/trained_model?{VERSION}")
    assert status == 200, data
    assert zipfile.ZipFile(io.BytesIO(data)).read("answer") == b"42\n"
    stored = s3_server.client.list_objects_v2(Bucket="of-ffdl-clients", Prefix="out/")["Contents"]
    assert any(one["Key"].endswith("/answer") for one in stored)


def test_log_is_sent_as_text(desk: Desk, done: str) -> None:
    lines = "".join(f"line {number}\n" for number in range(1, 26)).encode()
    assert desk.client.ask("GET", f"/v1/models/{done}/logs?{VERSION}") == (200, lines)
    assert desk.client.ask("GET", f"/v1/models/{done}/logs?{VERSION}&since_time=now") == (200, b"")


@pytest.mark.parametrize(
    ("query", "numbers"),
    [
        ("", range(1, 11)),
        ("pos=0&pagesize=3&since_time=", range(1, 4)),  # the dashboard's
        ("pos=24&pagesize=10", range(24, 26)),
        ("pos=-3&pagesize=2", range(23, 25)),
        ("pos=99", range(0)),
        ("since_time=1%20hours%20ago", range(1, 26)),
        ("since_time=now", range(0)),
        ("searchType=TERM", range(1, 11)),
    ],
)
def test_loglines_are_selected_by_number_or_time(desk: Desk, done: str, query: str, numbers: range) -> None:
    status, found = desk.client.ask("GET", f"/v1/logs/{done}/loglines?{VERSION}%22+&{query}")
    assert status == 200
    assert [(one["line"], one["meta"]["rindex"]) for one in found["models"]] == [
        (f"line {number}", str(number)) for number in numbers
    ]
    assert all((one["meta"]["training_id"], int(one["meta"]["time"]) > 0) == (done, True) for one in found["models"])


def test_loglines_number_each_learner_over_all_attempts(desk: Desk) -> None:
    go_on = desk.base / "go-on"
    command = f"'echo attempt $FFDL_ATTEMPT; while ! [ -e {go_on} ]; do sleep 0.1; done'"
    model_id = desk.submit(command, learners=2)
    path = f"/v1/logs/{model_id}/loglines?{VERSION}&pos=1&pagesize=5"
    until(lambda: len(desk.client.ask("GET", path)[1]["models"]) == 2, "a line of each learner")
    halt = json.dumps({"status": "halt"}).encode()
    assert desk.client.ask("PATCH", f"/v1/models/{model_id}?{VERSION}", halt) == (202, {"model_id": model_id})
    desk.client.await_status(model_id, "HALTED")
    go_on.touch()
    desk.site.ask("POST", f"/api/v1/jobs/{model_id}/resume", {})
    desk.client.await_status(model_id, "COMPLETED")
    found = desk.client.ask("GET", path)[1]["models"]
    assert [(one["line"], one["meta"]["rindex"]) for one in found] == [
        ("attempt 1", "1"), ("attempt 1", "1"), ("attempt 2", "2"), ("attempt 2", "2")
    ]  # fmt: skip


def test_emetrics_are_records_in_form_of_ffdl(desk: Desk) -> None:
    model_id = desk.submit("'for loss in 0.9 0.5 0.1; do echo loss=$loss; sleep 0.3; done'")
    desk.client.await_status(model_id, "COMPLETED")
    status, found = desk.client.ask("GET", f"/v1/logs/{model_id}/emetrics?{VERSION}&pos=2&pagesize=2")
    assert (status, [one["meta"]["rindex"] for one in found["models"]]) == (200, ["2", "3"])
    assert [one["values"] for one in found["models"]] == [
        {"loss": {"type": "FLOAT", "value": "0.5"}}, {"loss": {"type": "FLOAT", "value": "0.1"}}
    ]  # fmt: skip
    assert {one["grouplabel"] for one in found["models"]} == {"test"}


@pytest.mark.parametrize("protocol", ["ws", "wss"])
def test_websocket_follows_log_until_job_ends(desk: Desk, protocol: str) -> None:
    go_on = desk.base / f"go-on-{protocol}"
    model_id = desk.submit(f"'echo first; while ! [ -e {go_on} ]; do sleep 0.1; done; echo last'")
    desk.client.await_status(model_id, "PROCESSING", "COMPLETED")
    context = ssl.create_default_context(cafile=desk.client.authority)
    with closing(HTTPSConnection("127.0.0.1", desk.client.port, timeout=120, context=context)) as connection:
        connection.connect()
        socket = WSConnection(ConnectionType.CLIENT)
        path = f"/v1/models/{model_id}/logs?version=2017-03-17"
        headers = [(name.encode(), value.encode()) for name, value in desk.client.headers.items()]
        wanted = Request(host="127.0.0.1", target=path, subprotocols=[protocol], extra_headers=headers)
        connection.sock.sendall(socket.send(wanted))
        text, accepted = "", None
        while (data := connection.sock.recv(65536)) or text:
            socket.receive_data(data or None)
            for event in socket.events():
                if isinstance(event, AcceptConnection):
                    accepted = event.subprotocol
                    connection.sock.sendall(socket.send(Ping(b"alive")))
                elif isinstance(event, TextMessage):
                    text += event.data
                    go_on.touch()
                elif isinstance(event, CloseConnection):
                    connection.sock.sendall(socket.send(event.response()))
                    assert (accepted, text, event.code) == (protocol, "first\nlast\n", 1000)
                    return
        pytest.fail("the connection ended without a close")


def test_deleted_model_is_cancelled_and_shown_as_halted(desk: Desk) -> None:
    model_id = desk.submit("'sleep 1000'")
    assert desk.client.ask("DELETE", f"/v1/models/{model_id}?{VERSION}") == (200, {"model_id": model_id})
    status = desk.client.await_status(model_id, "HALTED")
    assert status["status_message"].startswith("cancelled")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/models/training-nothing00", 404),
        ("DELETE", "/v1/models/training-nothing00", 404),
        ("GET", "/v1/models/training-nothing00/logs", 404),
        ("GET", "/v1/models/training-nothing00/definition", 404),
        ("GET", "/v1/logs/training-nothing00/loglines", 404),
        ("GET", "/v1/none", 404),
        ("PUT", "/v1/models", 405),
        ("PATCH", "/v1/models/training-nothing00", 400),
        ("POST", "/v1/models", 400),
        ("GET", "/v1/logs/training-nothing00/loglines?pagesize=many", 400),
    ],
)
def test_errors_have_form_of_ffdl(desk: Desk, method: str, path: str, status: int) -> None:
    found, body = desk.client.ask(method, path, b"{}" if method == "PATCH" else b"")
    assert (found, body["code"], sorted(body)) == (status, status, ["code", "description", "error"]), body
    assert body["error"]


def test_manifest_with_error_is_refused_with_its_line(desk: Desk) -> None:
    reply, body = desk.client.post(MANIFEST.format(command="a", learners="many", path="/"), model())
    assert (reply.status, body["code"]) == (400, 400)
    assert "manifest.yml:7:" in body["error"], body


def test_results_that_are_gone_get_410(desk: Desk) -> None:
    model_id = desk.submit("'true'")
    desk.client.await_status(model_id, "COMPLETED")
    results = Path(desk.site.ask("GET", f"/api/v1/jobs/{model_id}")[1]["job"]["results"])
    for file in sorted(results.rglob("*"), reverse=True):
        file.unlink() if file.is_file() else file.rmdir()
    results.rmdir()
    assert desk.client.ask("GET", f"/v1/models/{model_id}/trained_model?{VERSION}")[0] == 410


def test_results_of_waiting_job_get_404(desk: Desk) -> None:
    submitted = [desk.submit("'sleep 1000'") for _ in range(MAX_JOBS + 1)]
    assert desk.client.ask("GET", f"/v1/models/{submitted[-1]}/trained_model?{VERSION}")[0] == 404
    for model_id in reversed(submitted):
        desk.client.ask("DELETE", f"/v1/models/{model_id}?{VERSION}")


@pytest.mark.parametrize("user", ["somebody-else", f"{user_name(OWN)}x", str(OWN), ""])
def test_only_header_that_names_another_user_is_refused(desk: Desk, done: str, user: str) -> None:
    client = FfdlClient(desk.client.port, desk.client.authority, user=user)
    wanted = 200 if user in ("", str(OWN)) else 403
    assert client.ask("GET", f"/v1/models/{done}?{VERSION}")[0] == wanted
    assert desk.client.ask("GET", f"/v1/models/{done}?{VERSION}", X_WML_TenantID="other")[0] == 403
    assert desk.client.ask("GET", f"/v1/models/{done}?watson-userinfo=bluemix-instance-id%3Dother")[0] == 403


def test_token_is_accepted_in_header_of_dashboard_and_nothing_else_is(desk: Desk, done: str) -> None:
    anonymous = FfdlClient(desk.client.port, desk.client.authority, "dummy")
    path = f"/v1/models/{done}?{VERSION}"
    assert anonymous.ask("GET", path, X_Watson_Authorization_Token=TOKEN)[0] == 200
    for status, body in (anonymous.ask("GET", path), anonymous.ask("GET", f"{path}&watson-token={TOKEN}")):
        assert (status, body["code"]) == (401, 401)


def test_only_configured_origins_may_send_requests_from_pages(desk: Desk) -> None:
    for origin, allowed in (("https://dashboard.example.org", True), ("https://example.com", False)):
        asked = {"Origin": origin, "Access-Control-Request-Method": "GET",
                 "Access-Control-Request-Headers": "authorization,x-watson-userinfo"}  # fmt: skip
        connection, reply = desk.client.open("OPTIONS", f"/v1/models?{VERSION}", b"", **asked)
        connection.close()
        assert (reply.status == 200, reply.headers.get("Access-Control-Allow-Origin") == origin) == (allowed, allowed)
