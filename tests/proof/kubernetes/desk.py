"""A user's desk: a daemon of their own, and jobs of the proof."""

from __future__ import annotations

import hashlib
import io
import json
import signal
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from ffdl_kubernetes.observing.network_canary import FILE
from ffdl_kubernetes.tenancy.tenant_objects import ACCOUNT
from tests.contract.daemon_rig import PLAIN, Site, site_in, submission
from tests.fakes.s3_server import S3Server
from tests.proof.kubernetes.room import Room, await_
from tests.proof.kubernetes.values import MISSING_IMAGE, Failed, Options

KEY, SECRET = "PROOFACCESSKEY000001", "proof-secret-0123456789"
BUCKET, DATA = "proof", b"from the store\n"
ENDED = ("COMPLETED", "FAILED", "HALTED", "CANCELLED")
WARM_S = 60.0
"""How long a daemon may take until it answers."""
POOL_GPUS = 6
_CONFIG = """\
[frameworks.custom]
versions = {{ proof = "docker://{options.learner_image}", missing = "docker://{missing}" }}
[elastic.pools.proof]
gpus = {gpus}
interval_s = 5
min_between_s = 10
objective = "fair"
[backend.kubernetes]
kubeconfig = "{kubeconfig}"
namespace = "{namespace}"
service_account = "{account}"
controller_image = "{options.controller_image}"
image_pull_policy = "{options.pull_policy}"
image_patience_s = {options.image_patience_s}
python = "{options.python}"
run_as_user = {options.uid}
"""
_MANIFEST = """\
name: proof
learners: {learners}
cpus: {cpus}
memory: 128MiB
gpus: 0
framework: {{name: custom, version: {version}, command: {command}}}
batch: {{checkpoint: {{grace_s: 20, saved_by: first}}{more}}}
"""
_STORE = """\
data_stores:
  - id: main
    type: s3_datastore
    training_data: {{container: {bucket}/set}}
    training_results: {{container: {bucket}/out}}
    connection: {{auth_url: "{url}", user_name: {key}, password: {secret}}}
"""
_MODEL = ("meeting.py", "counting.py")
"""Programs of learners, beside this file."""


class Desk:
    """Daemon, store, and what they know. A context: all of it ends with it, but for what is in the cluster."""

    def __init__(self, room: Room, options: Options, base: Path, more: str = "") -> None:
        """`more` are lines of ``[backend.kubernetes]``."""
        self.room, self.options, self.base, self._more = room, options, base, more
        self._stack = ExitStack()
        self.kubeconfig = base / "daemon.kubeconfig"
        self.why_no_store = ""
        self.server: S3Server | None = None
        self.store_answers = False
        """A pod has reached it."""

    def __enter__(self) -> Desk:
        with self._stack:
            config = self.base / "ffdl.toml"
            config.write_text(
                _CONFIG.format(
                    options=self.options, missing=MISSING_IMAGE, account=ACCOUNT, namespace=self.room.namespace,
                    kubeconfig=self.room.kubeconfig(self.kubeconfig), gpus=POOL_GPUS,
                )
                + self._more
            )  # fmt: skip
            environment = {"FFDL_BACKEND": "kubernetes", "FFDL_CONFIG": str(config)}
            self.site: Site = self._stack.enter_context(
                site_in(self.base, more_environment=environment, idle_exit_s=3600.0)
            )
            self._serve_store()
            self.start()
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *failure: object) -> None:
        self._stack.close()

    def start(self) -> None:
        """A daemon that answers. Raises Failed."""
        process = self.site.launch(program=PLAIN)
        await_(lambda: process.poll() is not None or self.site.is_served(), "the daemon answers", WARM_S)
        if process.poll() is not None:
            raise Failed(f"the daemon ended with {process.returncode}: {self.site.log[-500:]}")

    def kill(self) -> None:
        """The daemon is gone at once."""
        daemon = self.site.processes[-1]
        daemon.send_signal(signal.SIGKILL)
        daemon.wait()

    def _serve_store(self) -> None:
        """An S3 server at an address of this machine that is a node's, or where the options say."""
        wanted = [self.options.store] if self.options.store else self.room.node_addresses()
        for address in wanted:
            try:
                self.server = S3Server(self.base / "s3.log", address)
            except OSError:
                continue
            self._stack.callback(self.server.stop)
            self.server.client.create_bucket(Bucket=BUCKET)
            self.server.client.put_object(Bucket=BUCKET, Key="set/a", Body=DATA)
            return
        self.why_no_store = f"no address of a node is this machine's ({', '.join(wanted)}): --store names one"

    # ---------------------------------------------------------------------------------------------------- jobs

    def manifest(
        self, command: str, *, learners: int = 1, cpus: float = 0.1, version: str = "proof", more: str = "",
        with_store: bool = False,
    ) -> str:  # fmt: skip
        """The text. `more` goes on in `batch`."""
        quoted = "'" + command.replace("'", "''") + "'"
        text = _MANIFEST.format(learners=learners, cpus=cpus, version=version, command=quoted, more=more)
        if with_store:
            assert self.server is not None, "points that need it look first"
            text += _STORE.format(bucket=BUCKET, url=self.server.endpoint, key=KEY, secret=SECRET)
        return text

    def plan(self, manifest: str) -> tuple[int, dict[str, Any]]:
        """What the API server says to all of its objects: status and reply of the daemon."""
        body = {"submission": {**self._submission(manifest)}, "trial": True}
        return self.site.ask("POST", "/api/v1/plan", body)

    def submit(self, manifest: str) -> str:
        """The id of a new job. Raises Failed."""
        status, reply = self.site.ask("POST", "/api/v1/jobs", {"submissions": [self._submission(manifest)]})
        problem = reply["results"][0]["problem"] if status == 200 else reply
        if problem is not None:
            raise Failed(f"the submission was refused: {problem}")
        return str(reply["results"][0]["id"])

    def _submission(self, manifest: str) -> dict[str, Any]:
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            for name in _MODEL:
                archive.writestr(zipfile.ZipInfo(name), Path(__file__).with_name(name).read_text())
        data = buffer.getvalue()
        digest = hashlib.sha256(data).hexdigest()
        if self.site.ask("HEAD", f"/api/v1/archives/{digest}")[0] == 404:
            self.site.ask("PUT", f"/api/v1/archives/{digest}", data)
        return {**submission("", digest), "manifest": manifest, "backend": "kubernetes"}

    def job(self, job_id: str) -> dict[str, Any]:
        """What the daemon says of it."""
        return dict(self.site.ask("GET", f"/api/v1/jobs/{job_id}")[1]["job"])

    def has_ended(self, job_id: str) -> bool:
        """Whether it is in a state that it stays in."""
        return self.job(job_id)["state"] in ENDED

    def do(self, job_id: str, what: str) -> None:
        """Halt, resume or cancel. Raises Failed."""
        status, reply = self.site.ask("POST", f"/api/v1/jobs/{job_id}/{what}", {})
        if status != 200:
            raise Failed(f"{what} was refused: {reply}")

    def await_state(self, job_id: str, *states: str) -> dict[str, Any]:
        """The job once it is in one of `states`. Raises Failed, also when it ended otherwise."""
        found: dict[str, Any] = {}

        def is_there() -> bool:
            found.update(self.job(job_id))
            return found["state"] in states or found["state"] in ENDED

        try:
            await_(is_there, f"{job_id} is {' or '.join(states)}", self.options.patience_s)
        except Failed as late:
            raise Failed(f"{late}; {_told(found)}; {self._pods(job_id)}") from None
        if found["state"] not in states:
            raise Failed(f"{job_id} ended otherwise: {_told(found)}; {self.log(job_id)[-300:]!r}")
        return found

    def await_reason(self, job_id: str, word: str) -> str:
        """Why it waits, once that has the word. Raises Failed."""
        try:
            await_(lambda: word in self.job(job_id)["pending_reason"], f"it waits: {word}", self.options.patience_s)
        except Failed as late:
            raise Failed(f"{late}; {_told(self.job(job_id))}") from None
        return str(self.job(job_id)["pending_reason"])

    def await_log(self, job_id: str, text: str, attempt: int = 1) -> None:
        """Until a learner has printed it. Raises Failed."""
        try:
            await_(lambda: text in self.log(job_id, attempt), f"{text!r} in the log", self.options.patience_s)
        except Failed as late:
            raise Failed(f"{late}; {_told(self.job(job_id))}; {self._pods(job_id)}") from None

    def log(self, job_id: str, attempt: int = 1, learner: int = 1) -> str:
        """What a learner printed, as the daemon has it."""
        path = self.site.state / f"jobs/{job_id}/attempt-{attempt}/logs/learner-{learner}/training-log.txt"
        lines = path.read_text(errors="replace").splitlines(keepends=True) if path.exists() else []
        return "".join(line for line in lines if not line.startswith("ffdl: "))

    def stored(self, key: str) -> bytes:
        """An object of the store. Raises Failed."""
        assert self.server is not None, "points that need it look first"
        found = self.server.client.list_objects_v2(Bucket=BUCKET, Prefix=key).get("Contents", [])
        if key not in [one["Key"] for one in found]:
            raise Failed(f"the store has no {key}, but {[one['Key'] for one in found]}")
        return bytes(self.server.client.get_object(Bucket=BUCKET, Key=key)["Body"].read())

    def await_canary(self) -> str:
        """Wait for the canary's result. Raises Failed."""
        path, replies = self.site.state / FILE, []

        def settled() -> bool:
            # A plan starts the canary, and uses its result when it exists.
            replies.append(self.plan(self.manifest("true", more=", network: none")))
            status, reply = replies[-1]
            return path.exists() and (status == 200 or "does not enforce" in json.dumps(reply))

        try:
            await_(settled, "level none is taken, or refused by the canary's result", self.options.patience_s)
        except Failed as late:
            raise Failed(f"{late}; the daemon's log: {self._said_of('canary')}; the plan: {replies[-1][1]}") from None
        return path.read_text()

    def _said_of(self, word: str) -> str:
        """The last line of the daemon's log with it."""
        return next((line for line in reversed(self.site.log.splitlines()) if word in line), "nothing")

    @contextmanager
    def cancelled(self, job_id: str) -> Iterator[None]:
        """The job is cancelled on every way out, and its end awaited."""
        try:
            yield
        finally:
            if not self.has_ended(job_id):
                self.do(job_id, "cancel")
                self.await_state(job_id, *ENDED)

    def _pods(self, job_id: str) -> str:
        shown = [
            f"{pod['metadata']['name']} {pod.get('status', {}).get('phase')}: "
            + "; ".join(
                f"{one['name']} {one.get('state')}"
                for part in ("initContainerStatuses", "containerStatuses")
                for one in pod.get("status", {}).get(part) or ()
            )
            for pod in self.room.admin.list("Pod", {})[0]
            if pod["metadata"]["name"].startswith(job_id)
        ]
        return " | ".join(shown) or "it has no pods"


def _told(job: dict[str, Any]) -> str:
    words = ("state", "error_code", "exit_code", "message", "pending_reason")
    return ", ".join(f"{word} {job[word]}" for word in words if job.get(word) not in (None, ""))
