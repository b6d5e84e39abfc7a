"""Jobs whose data are in a bucket and whose results go there: a real daemon, the local backend, a real S3 server."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests import preloaded
from tests.contract import daemon_rig
from tests.contract.daemon_rig import PATIENT, PLAIN, Site, site_in, until
from tests.contract.test_download import found_in
from tests.fakes.fault_proxy import FaultProxy, Rule
from tests.fakes.s3_server import S3Server
from tests.fakes.ssh_server import SshServer
from tests.preloaded import FFDL
from tests.staging_rig import KEY, SECRET

MANIFEST = """\
name: from a bucket
gpus: 0
framework:
  name: custom
  version: python-numpy
  command: cat "$DATA_DIR/a"; cat "$DATA_DIR_2/b"; pwd > "$RESULT_DIR/here"; echo 1 > "$CHECKPOINT_DIR/c"
data_stores:
  - id: main
    type: mount_cos
    training_data: {{container: {bucket}/set}}
    training_results: {{container: {bucket}/out}}
    connection: {{auth_url: "{url}", user_name: {key}, password: {secret}}}
  - id: second
    type: s3_datastore
    training_data: {{container: {bucket}/more}}
    connection: {{auth_url: "{url}", user_name: {key}, password: {secret}}}
{more}"""


@dataclass
class Data:
    """A daemon of the local backend, and a bucket behind a proxy."""

    site: Site
    server: S3Server
    proxy: FaultProxy
    bucket: str

    def submit(self, more: str = "", manifest: str = MANIFEST, **values: str) -> dict[str, Any]:
        """The result of one submission."""
        given = {"bucket": self.bucket, "url": self.proxy.endpoint, "key": KEY, "secret": SECRET, "more": more}
        text = MANIFEST.format(**{**given, **values}) if manifest is MANIFEST else manifest
        archive = daemon_rig.model_zip()
        digest = hashlib.sha256(archive).hexdigest()
        assert self.site.ask("PUT", f"/api/v1/archives/{digest}", archive)[0] == 200
        submission = {**daemon_rig.submission("", digest), "manifest": text}
        submission["backend"] = "local"
        status, reply = self.site.ask("POST", "/api/v1/jobs", {"submissions": [submission]})
        assert status in (200, 400), reply
        (result,) = reply["results"]
        return dict(result)

    def job(self, job_id: str) -> dict[str, Any]:
        """The job now."""
        return dict(self.site.ask("GET", f"/api/v1/jobs/{job_id}")[1]["job"])

    def ended(self, job_id: str) -> dict[str, Any]:
        """The job when it has ended."""
        return dict(until(lambda: (found := self.job(job_id))["ended_at"] and found, "the job's end"))

    def stored(self) -> dict[str, bytes]:
        client = self.server.client
        found = [one["Key"] for one in client.list_objects_v2(Bucket=self.bucket, Prefix="out/").get("Contents", [])]
        return {key: client.get_object(Bucket=self.bucket, Key=key)["Body"].read() for key in found}


@contextmanager
def data_in(directory: Path, server: S3Server, program: tuple[str, ...], **environment: str) -> Iterator[Data]:
    bucket = f"jobs-{abs(hash(str(directory))):x}"
    server.client.create_bucket(Bucket=bucket)
    for key, content in {"set/a": b"from main\n", "more/b": b"from second\n"}.items():
        server.client.put_object(Bucket=bucket, Key=key, Body=content)
    with site_in(directory, more_environment={"FFDL_BACKEND": "local", **environment}) as site:
        site.start(program=program)
        made = Data(site, server, FaultProxy(server.port), bucket)
        yield made
        made.proxy.stop()


@pytest.fixture
def data(tmp_path: Path, s3_server: S3Server) -> Iterator[Data]:
    with data_in(tmp_path, s3_server, PATIENT) as made:
        yield made


def download(data: Data, where: Path, *words: str) -> None:
    """Give the credentials, too: those of the manifest are gone with the job's end."""
    keys = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}
    env = {**data.site.environment(), "XDG_CACHE_HOME": str(where / "cache"), **keys}
    argv = [*FFDL, "download", *words]
    done = preloaded.run(argv, cwd=where, env=env, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    assert SECRET not in done.stdout + done.stderr


def test_job_reads_two_buckets_and_stores_results_in_bucket_for_download(data: Data, tmp_path: Path) -> None:
    result = data.submit()
    assert result["problem"] is None, result
    job_id = result["id"]
    job = data.ended(job_id)
    assert job["state"] == "COMPLETED", job
    assert (job["stored_in"], job["stored_at"]) == (f"s3://{data.bucket}/out/{job_id}", data.proxy.endpoint)
    stored = data.stored()
    assert set(stored) == {
        f"out/{job_id}/here",
        f"out/{job_id}/_submitted_code/model.zip",
        f"out/{job_id}/learner-1/training-log.txt",
        f"out/_wml_checkpoints/{job_id}/c",
    }
    assert stored[f"out/{job_id}/learner-1/training-log.txt"].endswith(b"from main\nfrom second\n")
    assert not any(SECRET in str(one) for one in (job, result))

    data.proxy.requests.clear()
    data.proxy.authorizations.clear()
    download(data, tmp_path, job_id)
    below = f"out/{job_id}/"
    kept = {name.removeprefix(below): content for name, content in stored.items() if name.startswith(below)}
    assert found_in(tmp_path / job_id / "results") == kept
    assert {method for method, _, _ in data.proxy.requests} == {"GET"}
    assert KEY in data.proxy.authorizations[0]
    data.proxy.requests.clear()
    download(data, tmp_path, job_id, "--attempt", "1", "--out", "own")
    assert list(found_in(tmp_path / "own")) == ["here"]
    download(data, tmp_path, job_id, "--checkpoint")
    assert found_in(tmp_path / job_id / "checkpoint") == {"c": b"1\n"}
    assert data.proxy.requests == []
    for path in (tmp_path / "cache").rglob("*"):
        assert not path.is_file() or SECRET.encode() not in path.read_bytes()


def test_job_without_training_data_stores_results_in_bucket(data: Data) -> None:
    text = f"""\
name: results alone
gpus: 0
framework:
  name: custom
  version: python-numpy
  command: ls -A "$DATA_DIR" > "$RESULT_DIR/seen" && pwd > "$RESULT_DIR/here"
data_stores:
  - type: s3_datastore
    training_results: {{container: {data.bucket}/out}}
    connection: {{auth_url: "{data.proxy.endpoint}", user_name: {KEY}, password: {SECRET}}}
"""
    result = data.submit(manifest=text)
    assert result["problem"] is None, result
    job_id = result["id"]
    job = data.ended(job_id)
    assert (job["state"], job["stored_in"]) == ("COMPLETED", f"s3://{data.bucket}/out/{job_id}"), job
    stored = data.stored()
    assert stored[f"out/{job_id}/seen"] == b""
    assert f"out/{job_id}/learner-1/training-log.txt" in stored


def test_job_mounts_bucket_when_manifest_requires_mount(data: Data) -> None:
    result = data.submit(more="batch: {mount: always}\n")
    assert result["problem"] is None, result
    job = data.ended(result["id"])
    assert job["state"] == "COMPLETED", job
    log = data.stored()[f"out/{result['id']}/learner-1/training-log.txt"].decode()
    assert f"ffdl: loading data: {data.bucket}/set is mounted\n" in log
    assert log.endswith("from main\nfrom second\n")
    assert str(data.site.directory) not in Path("/proc/self/mountinfo").read_text()


def test_submit_rejects_job_with_unusable_data_store(data: Data) -> None:
    for values, words, line in (
        ({"bucket": "not-there"}, "NoSuchBucket", 10),
        ({"url": "s3.example.org"}, "'s3.example.org' is not the address of a store", 12),
    ):
        problem = data.submit(**values)["problem"]
        assert problem["code"] == "C103", problem
        assert words in problem["message"]
        errors = [one for one in problem["findings"] if one["severity"] == "error"]
        assert errors[0]["line"] == line, problem
        assert SECRET not in str(problem)


def test_job_view_reports_transfer_while_data_is_downloading(data: Data) -> None:
    """The first request fails, and the second one waits until the test has seen the message."""
    rule, seen = Rule("GET", "set/a", status=503, code="SlowDown", times=1), threading.Event()
    data.proxy.rules.append(rule)

    def hold(_method: str, path: str) -> None:
        if "set/a" in path and rule.done:
            seen.wait(600)

    data.proxy.before = hold
    job_id, said = data.submit()["id"], "loading data: set/a: it answered 503 SlowDown"
    job = until(lambda: (found := data.job(job_id))["moving"].startswith(said) and found, "something that moves")
    seen.set()
    assert job["state"] == "DOWNLOADING"
    assert job["submitted_at"] <= job["moving_at"]
    ended = data.ended(job_id)
    assert (ended["state"], ended["moving"], ended["moving_at"]) == ("COMPLETED", "", None)


BY_SSH = """\
name: from a host
gpus: 0
framework: {{name: custom, version: python-numpy, command: cat "$DATA_DIR/a"; echo 1 > "$RESULT_DIR/b"}}
data_stores:
  - type: fsspec_datastore
    training_data: {{container: sets/one}}
    training_results: {{container: trained}}
    connection:
      protocol: sftp
      host: "127.0.0.1:{port}"
      path: "{path}"
      known_hosts: "{known_hosts}"
      user_name: "{user}"
      private_key: {key}
"""


def test_job_reads_data_and_stores_results_over_sftp(data: Data, tmp_path: Path) -> None:
    remote, keys = tmp_path / "remote", tmp_path / "keys"
    (remote / "sets" / "one").mkdir(parents=True)
    (remote / "sets" / "one" / "a").write_text("by sftp\n")
    keys.mkdir()
    server = SshServer(keys)
    values = {"port": server.port, "path": remote, "known_hosts": server.known_hosts, "user": server.user}
    try:
        result = data.submit(manifest=BY_SSH.format(**values, key=json.dumps(server.key.read_text())))
        assert result["problem"] is None, result
        job = data.ended(result["id"])
        assert job["state"] == "COMPLETED", job
        stored = {str(path.relative_to(remote)) for path in remote.rglob("*") if path.is_file()}
        log = f"trained/{result['id']}/learner-1/training-log.txt"
        assert {f"trained/{result['id']}/b", log, "sets/one/a"} <= stored
        assert (remote / log).read_text().endswith("by sftp\n")
    finally:
        server.stop()


@pytest.mark.full
def test_ten_jobs_with_node_cache_download_data_set_once(tmp_path: Path, s3_server: S3Server) -> None:
    cache = {"FFDL_CACHE_DIR": str(tmp_path / "cache"), "FFDL_CACHE_BYTES": "1GB"}
    with data_in(tmp_path, s3_server, PLAIN, **cache) as data:
        results = [data.submit() for _ in range(10)]
        assert [result["problem"] for result in results] == [None] * 10
        jobs = [data.ended(result["id"]) for result in results]
        stored = data.stored()
    assert {job["state"] for job in jobs} == {"COMPLETED"}
    read = [path for method, path, _ in data.proxy.requests if method == "GET" and "list-type" not in path]
    assert sorted(path.rpartition("/")[2] for path in read if "/set/" in path or "/more/" in path) == ["a", "b"]
    for job in jobs:
        log = stored[f"out/{job['id']}/learner-1/training-log.txt"]
        assert log.endswith(b"from main\nfrom second\n"), log
        assert b" the cache of this node" in log
