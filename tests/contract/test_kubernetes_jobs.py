"""Whole jobs on Kubernetes: a real daemon, the tests' cluster with its kubelets, and an S3 server for data and results.

There is no claim, so all that a job brings and leaves goes through stores, and all that is known of it through logs.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import secrets
import signal
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ffdl_batch.domain.launch.pod_protocol import FINALIZER
from ffdl_batch.host.fast_dataclass import dataclass
from tests.contract import daemon_rig
from tests.contract.daemon_rig import PLAIN, Site, site_in, until
from tests.contract.kubernetes_harness import CONTROLLER_IMAGE, IMAGE, images, printed_in
from tests.fakes.kubernetes.rig import FakeCluster, cluster, node
from tests.fakes.s3_server import S3Server
from tests.staging_rig import KEY, SECRET

MANIFEST = """\
name: on a cluster
learners: {learners}
cpus: {cpus}
memory: 64MiB
gpus: 0
framework: {{name: custom, version: test, command: {command}}}
batch: {{checkpoint: {{grace_s: 20}}{batch}}}
"""
STORES = """\
data_stores:
  - id: main
    type: s3_datastore
    training_data: {{container: {bucket}/set}}
    training_results: {{container: {bucket}/out}}
    connection: {{auth_url: "{url}", user_name: {key}, password: {secret}}}
"""
RESULTS = "".join(line for line in STORES.splitlines(keepends=True) if "training_data" not in line)
"""No data are brought, which takes an attempt of its own where pods have a claim."""
TRAINING = """
import os, signal, sys, time
kept = os.path.join(os.environ["CHECKPOINT_DIR"], "epoch")
epoch = int(open(kept).read()) if os.path.exists(kept) else 0
def save(number, frame):
    with open(kept + ".new", "w") as file:
        file.write("7")
    os.replace(kept + ".new", kept)
    sys.exit(0)
signal.signal(signal.SIGUSR2, save)
print("from epoch", epoch, "resumed", os.environ.get("RESUME", "no"), flush=True)
while epoch == 0:
    time.sleep(0.05)
"""
CONFIG = """\
[frameworks.custom]
versions = {{ test = "docker://{image}" }}
[backend.kubernetes]
kubeconfig = "{kubeconfig}"
controller_image = "{controller}"
python = "{python}"
run_as_user = 1000
"""


@dataclass
class World:
    """A daemon, a cluster and a bucket."""

    site: Site
    k8s: FakeCluster
    server: S3Server
    bucket: str

    def submit(
        self, command: str, learners: int = 1, stores: str = STORES, cpus: float = 0.1, batch: str = "",
        program: str = TRAINING,
    ) -> str:  # fmt: skip
        """The id of a new job. `batch`: more of that part of the manifest. `program`: its train.py."""
        text = (MANIFEST + stores).format(
            command=_quoted(command), learners=learners, cpus=cpus, bucket=self.bucket,
            batch=f", {batch}" if batch else "",
            url=f"http://127.0.0.1:{self.server.port}", key=KEY, secret=SECRET,
        )  # fmt: skip
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr(zipfile.ZipInfo("train.py"), program)
        model = buffer.getvalue()
        digest = hashlib.sha256(model).hexdigest()
        assert self.site.ask("PUT", f"/api/v1/archives/{digest}", model)[0] == 200
        submission = {**daemon_rig.submission("", digest), "manifest": text, "backend": "kubernetes"}
        status, reply = self.site.ask("POST", "/api/v1/jobs", {"submissions": [submission]})
        assert status == 200 and reply["results"][0]["problem"] is None, reply
        return str(reply["results"][0]["id"])

    def job(self, job_id: str) -> dict[str, Any]:
        return dict(self.site.ask("GET", f"/api/v1/jobs/{job_id}")[1]["job"])

    def await_state(self, job_id: str, *states: str) -> dict[str, Any]:
        """The job once it is in one of `states`."""
        try:
            return dict(until(lambda: (found := self.job(job_id))["state"] in states and found, f"{states}"))
        except AssertionError as error:
            raise AssertionError(f"{error}; {self.job(job_id)}; {self.diagnosis()}") from None

    def kill_daemon(self) -> None:
        daemon = self.site.processes[-1]
        daemon.send_signal(signal.SIGKILL)
        daemon.wait()

    def do(self, job_id: str, what: str) -> None:
        """Halt, resume or cancel."""
        status, reply = self.site.ask("POST", f"/api/v1/jobs/{job_id}/{what}", {})
        assert status == 200, reply

    def log(self, job_id: str, attempt: int = 1, learner: int = 1) -> str:
        """The daemon's own copy."""
        path = self.site.state / f"jobs/{job_id}/attempt-{attempt}/logs/learner-{learner}/training-log.txt"
        return path.read_text() if path.exists() else ""

    def printed(self, job_id: str, attempt: int = 1, learner: int = 1) -> str:
        """What the learner printed: without what was said of the loading of its data."""
        lines = self.log(job_id, attempt, learner).splitlines(keepends=True)
        return "".join(line for line in lines if not line.startswith("ffdl: "))

    def await_log(self, job_id: str, text: str) -> None:
        until(lambda: text in self.log(job_id), f"{text!r} in the log of {job_id}; {self.diagnosis()}")

    def let_go(self) -> None:
        """The learners go on that wait for the file `go`."""
        for state in self.k8s.place.glob("pods/*/volumes/empty/work/attempt-1/state"):
            (state / "go").touch()

    def stored(self, prefix: str) -> dict[str, bytes]:
        client = self.server.client
        found = client.list_objects_v2(Bucket=self.bucket, Prefix=prefix).get("Contents", [])
        return {
            one["Key"].removeprefix(prefix): client.get_object(Bucket=self.bucket, Key=one["Key"])["Body"].read()
            for one in found
        }

    def lose_bucket(self) -> None:
        """It is gone, with all that is in it; controllers may be storing something at any moment."""
        client = self.server.client

        def is_gone() -> bool:
            for one in client.list_objects_v2(Bucket=self.bucket).get("Contents", []):
                client.delete_object(Bucket=self.bucket, Key=one["Key"])
            with contextlib.suppress(client.exceptions.ClientError):  # not empty
                client.delete_bucket(Bucket=self.bucket)
                return True
            return False

        until(is_gone, "the bucket to be gone")

    def pods(self, job_id: str) -> list[dict[str, Any]]:
        """As the API server has them."""
        query = f"labelSelector=ffdl-batch/job%3D{job_id}"
        return list(self.k8s.ask("GET", f"api/v1/namespaces/{self.k8s.namespace}/pods?{query}")["items"])

    def clear(self) -> None:
        """Cancel what still runs, and take away the obstacles of a test that failed."""
        for job in self.site.ask("GET", "/api/v1/jobs")[1]["jobs"] if self.site.is_served() else ():
            if job["state"] not in ("COMPLETED", "FAILED", "HALTED", "CANCELLED"):
                self.do(job["id"], "cancel")
        self.k8s.do("images", missing=[])
        self.k8s.do("detach", claims={})

    def diagnosis(self) -> str:
        return f"{self.site.log[-2500:]}; {printed_in(self.k8s.place, 1500)}; {self.k8s.log.read_text()[-1500:]}"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


@contextlib.contextmanager
def world_in(base: Path, server: S3Server, settings: str = "", nodes: int = 1, **kubelet: Any) -> Iterator[World]:
    """A daemon and a cluster. Their backend has these `settings`, too, and kubelets these knobs."""
    knobs = {**images(), **kubelet}
    machines = [node(f"n{number}", cpu="4") for number in range(1, nodes + 1)]
    with cluster(base, nodes=machines, kubelet=knobs) as k8s, daemon_in(base, k8s, settings) as site:
        yield World(site, k8s, server, bucket="")


@contextlib.contextmanager
def own_bucket(world: World) -> Iterator[World]:
    """The same daemon and cluster, with a bucket for one test, without the jobs and obstacles of the tests before."""
    if world.site.processes[-1].poll() is not None:
        world.site.start(program=PLAIN)
    bucket = f"pods-{secrets.token_hex(8)}"
    world.server.client.create_bucket(Bucket=bucket)
    world.server.client.put_object(Bucket=bucket, Key="set/a", Body=b"from the store\n")
    found = replace(world, bucket=bucket)
    try:
        yield found
    finally:
        found.clear()


@contextlib.contextmanager
def daemon_in(base: Path, k8s: FakeCluster, settings: str = "") -> Iterator[Site]:
    """One that sends its jobs to that cluster."""
    config = base / "ffdl.toml"
    names = {"image": IMAGE, "controller": CONTROLLER_IMAGE, "python": sys.executable}
    config.write_text(CONFIG.format(kubeconfig=k8s.kubeconfig, **names) + settings)
    with site_in(base, more_environment={"FFDL_BACKEND": "kubernetes", "FFDL_CONFIG": str(config)}) as site:
        site.start(program=PLAIN)
        yield site


@pytest.fixture(scope="module")
def shared_world(tmp_path_factory: pytest.TempPathFactory, s3_server: S3Server) -> Iterator[World]:
    """The cluster and the daemon of a module's tests."""
    with world_in(tmp_path_factory.mktemp("world"), s3_server) as found:
        yield found


@pytest.fixture
def world(shared_world: World) -> Iterator[World]:
    with own_bucket(shared_world) as found:
        yield found


def test_kubernetes_job_waits_while_credentials_or_kubeconfig_are_missing(world: World) -> None:
    """Somebody has to log in again, and a home directory is away when the daemon starts again."""
    first = world.submit("echo first", stores="")
    assert world.await_state(first, "COMPLETED", "FAILED")["state"] == "COMPLETED", world.diagnosis()
    token = json.loads(world.k8s.kubeconfig.read_text())["users"][0]["user"]["token"]
    world.k8s.do("forget_token", token=token)
    job_id = world.submit("echo second", stores="")
    until(lambda: "log in again" in world.job(job_id)["pending_reason"], "that it says what lacks")
    assert "does not answer" not in world.job(job_id)["pending_reason"], world.job(job_id)
    world.kill_daemon()
    away = world.k8s.kubeconfig.rename(world.k8s.kubeconfig.with_suffix(".away"))
    world.site.start(program=PLAIN)
    until(lambda: "no cluster is configured" in world.job(job_id)["pending_reason"], "that it says what lacks now")
    assert world.job(job_id)["state"] in ("PENDING", "DEPLOYING"), world.job(job_id)
    why = world.site.ask("GET", f"/api/v1/jobs/{job_id}/why")[1]["why"]
    assert why["sentence"].startswith("it waits here: no cluster is configured in "), why
    assert why["actions"] == ["have that mended: it is handed over then"]
    away.rename(world.k8s.kubeconfig)
    world.k8s.do("token", token=token, user="admin", groups=["system:masters"])
    assert world.await_state(job_id, "COMPLETED", "FAILED")["state"] == "COMPLETED", world.diagnosis()
    assert world.printed(job_id) == "second\n"


def test_kubernetes_job_uses_stores_and_outlasts_killed_daemon_while_another_daemon_ignores_it(
    world: World, tmp_path: Path
) -> None:
    """Its daemon is away while it ends; the other one, which has a job then and sees both, is no heir."""
    mine = world.submit(
        'cat "$DATA_DIR/a"; echo 42 >"$RESULT_DIR/answer"; until [ -e "$JOB_STATE_DIR/go" ]; do sleep 0.1; done; '
        "echo mine"
    )
    world.await_log(mine, "from the store")
    world.await_state(mine, "PROCESSING")
    world.kill_daemon()
    world.let_go()
    until(lambda: [one["status"]["phase"] for one in world.pods(mine)] == ["Succeeded"], "its end")
    (tmp_path / "other").mkdir()
    with daemon_in(tmp_path / "other", world.k8s) as site:
        other = replace(world, site=site)
        theirs = other.submit("echo theirs", stores="")
        assert other.await_state(theirs, "COMPLETED", "FAILED")["state"] == "COMPLETED", other.diagnosis()
        assert [path.name for path in (site.state / "jobs").iterdir() if path.name.startswith("training-")] == [theirs]
        (pod,) = world.pods(mine)
        assert pod["metadata"]["finalizers"] == [FINALIZER], "it is the only proof"
        site.processes[-1].terminate()
        site.processes[-1].wait()
        site.start(program=PLAIN)
        assert other.job(theirs)["state"] == "COMPLETED"
    world.site.start(program=PLAIN)
    job = world.await_state(mine, "COMPLETED", "FAILED")
    assert job["state"] == "COMPLETED", (job, world.diagnosis())
    assert world.printed(mine) == "from the store\nmine\n"
    assert world.stored(f"out/{mine}/")["answer"] == b"42\n"
    assert "HTTP Request" not in world.site.log, "the daemon's log is not one of requests to the API server"
    assert sorted(job["timestamps"], key=job["timestamps"].get) == [
        "PENDING", "DEPLOYING", "QUEUED", "DOWNLOADING", "PROCESSING", "STORING", "COMPLETED",
    ]  # fmt: skip


def test_resume_continues_kubernetes_job_from_checkpoint_after_halt(world: World) -> None:
    job_id = world.submit("exec python3 train.py", stores=RESULTS)
    world.await_log(job_id, "from epoch 0")
    world.do(job_id, "halt")
    world.await_state(job_id, "HALTED", "FAILED", "COMPLETED")
    world.do(job_id, "resume")
    job = world.await_state(job_id, "COMPLETED", "FAILED")
    assert job["state"] == "COMPLETED", (job, world.diagnosis())
    assert world.printed(job_id, attempt=2).startswith("from epoch 7")


def test_deleted_pod_leaves_no_pending_upload(world: World) -> None:
    """Nobody but that pod had its files."""
    job_id = world.submit('echo "begun $FFDL_ATTEMPT"; [ "$FFDL_ATTEMPT" = 2 ] || exec sleep 600', stores="")
    world.await_log(job_id, "begun 1")
    (pod,) = world.pods(job_id)
    path = f"api/v1/namespaces/{world.k8s.namespace}/pods/{pod['metadata']['name']}"
    world.k8s.ask("DELETE", path, {"gracePeriodSeconds": 0})
    job = world.await_state(job_id, "COMPLETED", "FAILED")
    assert (job["state"], [one["upload_pending"] for one in job["attempts"]]) == ("COMPLETED", [False, False]), job
    assert not [line for line in world.site.log.splitlines() if job_id in line and "pending upload" in line]


def test_kubernetes_job_reports_missing_learner_image_and_stays_downloading(world: World) -> None:
    """The data are there: the job stays DOWNLOADING, because its learner has not begun."""
    world.k8s.do("images", missing=[IMAGE])
    job_id = world.submit("echo up", stores="")
    until(lambda: "cannot be had" in world.job(job_id)["pending_reason"], f"what it waits for; {world.diagnosis()}")
    job = world.job(job_id)
    assert IMAGE in job["pending_reason"] and "correct its name" in job["pending_reason"], job
    world.await_state(job_id, "DOWNLOADING")
    world.k8s.do("images", missing=[])
    job = world.await_state(job_id, "COMPLETED", "FAILED")
    assert (job["state"], job["pending_reason"]) == ("COMPLETED", ""), (job, world.diagnosis())


def test_kubernetes_job_reports_failure_of_learner_outside_head_pod(world: World) -> None:
    """Its Job ends the pods of the others at once, and a pod that is being ended hears no word of the daemon's."""
    command = '[ "$LEARNER_ID" = 1 ] || { echo "no CUDA here"; exit 4; }; exec sleep 600'
    job_id = world.submit(command, learners=2, stores="")
    job = world.await_state(job_id, "FAILED", "COMPLETED")
    assert (job["state"], job["error_code"], job["exit_code"]) == ("FAILED", "C201", 4), (job, world.diagnosis())
    assert "learner 2" in job["message"] and not job["attempts"][0]["upload_pending"], job
    assert job["log_tail"] == ["no CUDA here"], job


def tells_of_more_tries(world: World, job_id: str) -> bool:
    job = world.await_state(job_id, "STORING")
    return str(job["moving"]).startswith("storing: ") and "it is tried again in" in str(job["moving"])


def test_kubernetes_job_retries_upload_until_store_returns_or_job_is_cancelled(world: World) -> None:
    """Nothing outlives the pod: it tries for as long as it may stay."""
    command = 'echo 42 >"$RESULT_DIR/answer"; until [ -e "$JOB_STATE_DIR/go" ]; do sleep 0.1; done'
    jobs = [world.submit(command, stores=RESULTS) for _ in range(2)]
    for job_id in jobs:
        world.await_state(job_id, "PROCESSING")
    world.lose_bucket()
    world.let_go()
    for job_id in jobs:
        until(partial(tells_of_more_tries, world, job_id), "that the job tells it")
    world.do(jobs[0], "cancel")
    lost = world.await_state(jobs[0], "CANCELLED", "FAILED")
    assert (lost["stored_in"], lost["results"]) == ("", "")
    assert lost["results_note"] == "they went with its pods before they could be stored", lost
    world.server.client.create_bucket(Bucket=world.bucket)
    job = world.await_state(jobs[1], "COMPLETED", "FAILED")
    assert job["state"] == "COMPLETED" and job["stored_in"], (job, world.diagnosis())
    assert world.stored(f"out/{jobs[1]}/")["answer"] == b"42\n"


def test_kubernetes_learners_find_each_other_and_their_failure_without_daemon_is_reported(world: World) -> None:
    """No daemon runs when they end: the head hears of the other learner when the daemon is back."""
    command = (
        'echo "$RANK of $WORLD_SIZE"; getent hosts $MASTER_ADDR >/dev/null && echo found; '
        'until [ -e "$JOB_STATE_DIR/go" ]; do sleep 0.1; done; exit 6'
    )
    job_id, printed = world.submit(command, learners=2, stores=""), ["0 of 2\nfound\n", "1 of 2\nfound\n"]
    until(lambda: [world.printed(job_id, learner=number) for number in (1, 2)] == printed, world.diagnosis)
    world.kill_daemon()
    world.let_go()
    world.site.start(program=PLAIN)
    job = world.await_state(job_id, "FAILED", "COMPLETED")
    assert (job["state"], job["exit_code"]) == ("FAILED", 6), (job, world.diagnosis())
