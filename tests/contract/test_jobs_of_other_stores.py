"""Whole jobs whose data are in Swift, in Google's store or on a web server: a real daemon, the local backend."""

from __future__ import annotations

import base64
import json
import ssl
from collections.abc import Iterator
from functools import partial
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.contract.test_data_jobs import Data, data
from tests.contract.test_staging_gcs import Office, account, office
from tests.fakes.certificates import certificate_for
from tests.fakes.serving import QuietFiles, serving
from tests.fakes.swift_server import Stored, Swift, swift_server

__all__ = ["data", "office"]
COMMAND = (
    'find "$DATA_DIR" -type f | wc -l; cat "$DATA_DIR/a"; echo 1 > "$RESULT_DIR/here"; echo 2 > "$CHECKPOINT_DIR/c"'
)
MANIFEST = """\
name: from elsewhere
gpus: 0
framework: {{name: custom, version: python-numpy, command: {command}}}
data_stores:
  - type: {type}
    training_data: {{container: {container}}}
    {results}
    connection:
{connection}
"""
PASSWORD = "planted-web-password"


def manifest(kind: str, container: str, connection: dict[str, str], results: str = "") -> str:
    """A job that reads one file called `a`, and stores in the container of `results`."""
    results = f"training_results: {{container: {results}}}" if results else ""
    fields = "\n".join(f"      {name}: {json.dumps(value)}" for name, value in connection.items())
    return MANIFEST.format(
        type=kind, container=container, results=results, connection=fields, command=json.dumps(COMMAND)
    )


def finished(data: Data, text: str) -> tuple[dict[str, Any], str]:
    """The job at its end, and its log."""
    result = data.submit(manifest=text)
    assert result["problem"] is None, result
    job = data.ended(result["id"])
    assert job["state"] == "COMPLETED", job
    log = data.site.state / "jobs" / job["id"] / f"attempt-{job['attempt']}" / "logs" / "learner-1" / "training-log.txt"
    return job, log.read_text()


def layout(job_id: str, below: str = "out") -> set[str]:
    """What FfDL has in a container of results."""
    return {
        f"{below}/{job_id}/here",
        f"{below}/{job_id}/_submitted_code/model.zip",
        f"{below}/{job_id}/learner-1/training-log.txt",
        f"{below}/_wml_checkpoints/{job_id}/c",
    }


@pytest.fixture
def swift() -> Iterator[Swift]:
    with swift_server() as made:
        made.containers["box"]["set/a"] = Stored(b"from swift\n")
        yield made


def test_job_reads_and_stores_data_in_swift(data: Data, swift: Swift) -> None:
    swift.domain, swift.project = "a-domain", "a-project"
    connection = {"auth_url": f"http://127.0.0.1:{swift.port}/v3", "user_name": swift.user, "password": swift.password}
    connection |= {"domain_name": "a-domain", "project_id": "a-project", "region": "north"}
    job, log = finished(data, manifest("bluemix_objectstore", "box/set", connection, "box/out"))
    assert log.endswith("1\nfrom swift\n")
    stored = {name for name in swift.containers["box"] if name.startswith("out/")}
    assert stored == layout(job["id"])
    assert swift.content("box", f"out/{job['id']}/learner-1/training-log.txt").endswith(b"1\nfrom swift\n")
    assert swift.password not in str(job)


def test_job_reads_and_stores_data_in_google_cloud_storage(data: Data, office: Office) -> None:
    connection = {"auth_url": data.proxy.endpoint, "service_account": account(office)}
    job, log = finished(data, manifest("gcs_datastore", f"{data.bucket}/set", connection, f"{data.bucket}/out"))
    assert log.endswith("1\nfrom main\n")
    assert set(data.stored()) == layout(job["id"])
    assert all(found.startswith("Bearer planted-") for found in data.proxy.authorizations)
    assert "planted" not in str(job)


class _Asking(QuietFiles):
    """For who has the password."""

    def send_head(self) -> Any:
        wanted = base64.b64encode(f"me:{PASSWORD}".encode()).decode()
        if self.headers.get("Authorization") == f"Basic {wanted}":
            return super().send_head()
        self.send_error(401)
        return None


@pytest.fixture
def web(tmp_path: Path) -> Iterator[str]:
    """The address of a web server by TLS, whose certificate no system has; the file is beside it."""
    (tmp_path / "www" / "sets").mkdir(parents=True)
    (tmp_path / "www" / "sets" / "a").write_text("from the web\n")
    certificate, key = certificate_for("127.0.0.1", tmp_path)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Asking, directory=str(tmp_path / "www")))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    with serving(server):
        yield f"https://127.0.0.1:{server.server_address[1]}"


def test_job_reads_data_from_web_server_over_tls(data: Data, web: str, tmp_path: Path) -> None:
    connection = {"auth_url": web, "user_name": "me", "password": PASSWORD, "ca_file": str(tmp_path / "cert.pem")}
    job, log = finished(data, manifest("http_datastore", "sets/a", connection))
    assert log.endswith("1\nfrom the web\n")
    assert PASSWORD not in str(job)
    results = data.site.state / "jobs" / job["id"] / "attempt-1" / "results" / "here"
    assert results.read_text() == "1\n"


def test_submit_reports_unusable_web_server_without_password(data: Data, web: str, tmp_path: Path) -> None:
    good = {"auth_url": web, "user_name": "me", "password": PASSWORD, "ca_file": str(tmp_path / "cert.pem")}
    for change, code, words in (
        ({"password": "another"}, "C103", "401"),
        ({"ca_file": ""}, "", "its certificate is not one that this machine trusts"),
    ):
        result = data.submit(manifest=manifest("http_datastore", "sets/a", good | change))
        said = str(result["problem"] or result["warnings"])
        assert words in said, result
        assert (result["problem"] or {"code": ""})["code"] == code
        assert PASSWORD not in said
