"""Read files of jobs in a claim, by a command in a pod that is made for it.

The pod sees one directory of the claim and cannot write.
"""

from __future__ import annotations

import json
import logging
import secrets
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import IO, Any

from ffdl_batch.attempt.reader import SPECIAL_KINDS
from ffdl_batch.domain.job.views import LEFT_OUT, UNREADABLE
from ffdl_batch.domain.launch.attach_protocol import AGAIN, BEGIN, REFUSED, RUN, FrameError, FrameReader, encode_frame
from ffdl_batch.domain.scheduler_errors import InvalidRequest, NotNow, SchedulerError
from ffdl_kubernetes.api_errors import explain
from ffdl_kubernetes.attach.node_access import attach_argv
from ffdl_kubernetes.client import ClusterClient, Refused
from ffdl_kubernetes.objects.canary import plain_pod
from ffdl_kubernetes.objects.names import CONTROLLER, MANAGER_LABEL, Plain, placed
from ffdl_kubernetes.observing.job_states import why_pending
from ffdl_kubernetes.settings import KubernetesSettings, parse_toleration

MANAGER = "ffdl-batch-reader"
"""Not that of jobs' objects: the watch of jobs does not see it."""
LIFE_S = 6 * 3600
"""Maximum lifetime of the Job in seconds, if no daemon deletes it."""
MOUNT = "/claim"
FOUND, ABSENT = b"ffdl-tar\n", b"ffdl-absent\n"
"""What :data:`PROGRAM` prints first."""
PROGRAM = f"""\
import os, stat, sys, tarfile
out = sys.stdout.buffer
try:
    os.chdir(sys.argv[1])
except OSError:
    out.write({ABSENT!r})
    sys.exit()
out.write({FOUND!r})
archive = tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT)
def add(name):
    archive.inodes.clear()
    try:
        kind = {SPECIAL_KINDS!r}.get(stat.S_IFMT(os.lstat(name).st_mode))
        entry = tarfile.TarInfo(name) if kind else archive.gettarinfo(name)
        if entry is None:
            return
        if kind:
            entry.pax_headers = {{{LEFT_OUT!r}: kind}}
        below = sorted(os.listdir(name)) if entry.isdir() else []
        file = open(name, "rb") if entry.isreg() and not kind else None
    except FileNotFoundError:
        return
    except OSError as error:
        entry, below, file = tarfile.TarInfo(name), [], None
        entry.pax_headers = {{{UNREADABLE!r}: error.strerror}}
    archive.addfile(entry, file)
    if file:
        file.close()
    for one in below:
        add(name + "/" + one)
for name in sorted(os.listdir(".")):
    add(name)
archive.close()
"""
"""Writes the directory that it is given as a tar. A file with several names is written once for each of them. What
cannot be read is an entry with the header UNREADABLE, and a pipe, socket or device one with the header LEFT_OUT."""


def reader_job(name: str, claim: str, top: str, settings: KubernetesSettings) -> Plain:
    """Return the Job; its pod sees the directory `top` of the claim at :data:`MOUNT`, and waits."""
    waits = [settings.python, "-I", "-c", f"import time; time.sleep({LIFE_S})"]
    pod: dict[str, Any] = plain_pod(CONTROLLER, waits, settings)
    mount = {"name": "claim", "mountPath": MOUNT, "readOnly": True, **({"subPath": top} if top else {})}
    pod["containers"][0]["volumeMounts"] = [mount]
    pod["volumes"] = [{"name": "claim", "persistentVolumeClaim": {"claimName": claim}}]
    if settings.node_selector:
        pod["nodeSelector"] = dict(settings.node_selector)
    if settings.tolerations:
        pod["tolerations"] = [parse_toleration(text) for text in settings.tolerations]
    labels = {MANAGER_LABEL: MANAGER}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "completionMode": "Indexed",
            "completions": 1,
            "parallelism": 1,
            "backoffLimit": 0,
            "activeDeadlineSeconds": LIFE_S,
            "ttlSecondsAfterFinished": 60,
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }


_log = logging.getLogger(__name__)
READY_S = 60.0
"""Maximum time until the pod starts, in seconds: the client receives nothing meanwhile."""
PAUSE_S = 0.5
PIECE_BYTES = 1 << 16


class ClaimFiles(ABC):
    """:class:`ffdl_batch.ports.capabilities.ReadsClaims`."""

    _settings: KubernetesSettings

    @abstractmethod
    def _make(self) -> ClusterClient:
        """Return a client for this thread."""

    def read_claim(self, token: str, claim: str, below: str) -> Iterator[bytes]:
        """See the port. The pod sees the job's directory alone, so that no link of a learner leads out of it."""
        top, rest = below, ""
        if not claim:
            job_id = token.rpartition("-")[0]
            top = f"jobs/{job_id}"
            rest = below.removeprefix(f"{top}/")
        name = f"{token}-read-{secrets.token_hex(3)}"
        pieces = _read(
            self._make(), self._settings, reader_job(name, claim or self._settings.claim, top, self._settings), rest
        )
        next(pieces)  # all that can be refused is refused before the first piece
        return pieces


def _read(client: ClusterClient, settings: KubernetesSettings, job: dict[str, object], rest: str) -> Iterator[bytes]:
    """Yield the pieces; the first is empty. Delete the Job at the end, also if the caller stops early."""
    made = placed(job, client.namespace)
    name = str(made["metadata"]["name"])
    try:
        try:
            client.create(made)
            pod = _await_pod(client, name)
        except Refused as refused:
            raise explain(refused, f"Job {name}") from refused
        program = (settings.python, "-I", "-c", PROGRAM, f"{MOUNT}/{rest}")
        with subprocess.Popen(
            attach_argv(settings, pod, program),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        ) as process:
            try:
                assert process.stdin is not None and process.stdout is not None
                process.stdin.write(encode_frame(BEGIN, json.dumps({"do": RUN}).encode("ascii")))
                process.stdin.flush()  # it stays open: its end is the end of the program
                _await_begin(process, process.stdout, rest)
                yield b""
                while data := process.stdout.read(PIECE_BYTES):
                    yield data
                if process.wait() != 0:
                    raise OSError(f"reading the claim broke off: the program exited with status {process.returncode}")
            finally:
                process.kill()
    finally:
        try:
            client.delete("Job", name)
        except (Refused, SchedulerError) as error:
            _log.warning("Job %s cannot be deleted, and ends at its deadline: %s", name, error)
        client.close()


def _await_pod(client: ClusterClient, name: str) -> str:
    end = time.monotonic() + READY_S
    while True:
        pods = client.list("Pod", {"labelSelector": f"batch.kubernetes.io/job-name={name}"})[0]
        for pod in pods:
            if pod.get("status", {}).get("phase") == "Running":
                return str(pod["metadata"]["name"])
        if time.monotonic() > end:
            why = why_pending(pods)
            raise NotNow(f"the reading pod did not start within {READY_S:g} s{f': {why}' if why else ''}")
        time.sleep(PAUSE_S)


def _await_begin(process: subprocess.Popen[bytes], output: IO[bytes], rest: str) -> None:
    line = output.readline()
    if line == FOUND:
        return
    if line == ABSENT:
        raise FileNotFoundError(rest)
    try:
        said = "".join(
            payload.decode("utf-8", "replace") for kind, payload in FrameReader().feed(line) if kind == REFUSED
        )
    except FrameError:
        said = ""
    is_passing = process.wait() == AGAIN or not said
    raise (NotNow if is_passing else InvalidRequest)(said or "the reading pod ended before it began")
