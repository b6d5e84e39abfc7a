"""Find out, by pods that try, whether the cluster's network enforces NetworkPolicies, and keep the result.

Only trials show it: a network that enforces no policies accepts them without an error. The pods belong to two Jobs, so
a daemon needs no permissions for them beside those for its jobs.
"""

from __future__ import annotations

import json
import logging
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ffdl_batch.attempt.file_writer import write_text
from ffdl_batch.domain.scheduler_errors import InvalidRequest, SchedulerError
from ffdl_batch.domain.untrusted_json import parse_json
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_kubernetes.client import ClusterClient, Refused
from ffdl_kubernetes.objects.canary import (
    BOUND,
    CANARY_LABEL,
    CLIENTS,
    FREE,
    LIFE_S,
    OPEN,
    PART_LABEL,
    SERVERS,
    SHUT,
    jobs_of,
    policies,
)
from ffdl_kubernetes.objects.job import release
from ffdl_kubernetes.objects.names import INDEX
from ffdl_kubernetes.observing.job_states import why_pending
from ffdl_kubernetes.settings import KubernetesSettings

Plain = Mapping[str, Any]
FILE = "kubernetes-canary.json"
"""In the tree of jobs."""
POLL_S = 1.0
AGAIN_S = 600.0
"""After one that found nothing out."""
LIFE_ROUNDS = 3
"""For so many intervals a finding is believed while later canaries find nothing out."""
STOP_S = 10.0
NOT_SENT = "the canary could not be sent"
"""Beginning of a text with the reason why the API server did not take the canary."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Proof:
    """`enforced` None = it is not known; `text` has the reason. `cluster` is server and namespace, `at` the epoch."""

    enforced: bool | None
    text: str
    cluster: str = ""
    at: float = 0.0


def canary_cure(unknown: Proof) -> str:
    """Return the cure if it is not known whether the cluster's network enforces NetworkPolicies."""
    if unknown.text.startswith(NOT_SENT):
        return "do nothing, unless the reason names something to correct: ffdl sends the canary again by itself"
    return (
        "if the network enforces NetworkPolicies and no canary can show it, set network_policies = "
        '"enforced" in [backend.kubernetes]'
    )


def judge(free: Mapping[str, int], bound: Mapping[str, int], opened: str, shut: str) -> Proof:
    """From how many of its last tries each client reached the two addresses. Pure."""
    if not free.get(opened):
        text = "the canary's pods do not reach each other even where policies allow it, so nothing is known"
        return Proof(None, text)
    leaks = []
    if bound.get(opened):
        leaks.append("connections out of a pod that may make none")
    if free.get(shut):
        leaks.append("connections into a pod that may take none")
    if leaks:
        return Proof(False, f"the cluster's network does not enforce NetworkPolicies: it let through {leaks[0]}")
    return Proof(True, "a canary proved that the cluster's network enforces NetworkPolicies")


class Canary:
    """One canary at a time, in a thread of its own. `root` is the tree of jobs, `make` gives the thread a client."""

    def __init__(self, settings: KubernetesSettings, root: str, make: Callable[[], ClusterClient]) -> None:
        self._settings, self._file, self._make = settings, Path(root, FILE), make
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()
        self._next = 0.0
        self._last: Proof | None = None

    def kept(self) -> Proof | None:
        """Return the last result of any process's canary of this cluster. Sends no request. Raises SchedulerMissing."""
        client = self._make()
        return self._read(f"{client.config.cluster.server} {client.namespace}")

    def look(self) -> Proof:
        """Return what is known now. Start a canary if one is due, and do not wait for it. Raises SchedulerMissing."""
        client = self._make()
        cluster = f"{client.config.cluster.server} {client.namespace}"
        now, interval = time.time(), self._settings.canary_interval_s
        found = self._read(cluster)
        if found is not None and now - found.at > LIFE_ROUNDS * interval:
            found = None
        with self._lock:
            is_due = (found is None or now - found.at >= interval) and time.monotonic() >= self._next
            if is_due and interval and self._thread is None and not self._stopped.is_set():
                self._thread = threading.Thread(target=self._run, args=(cluster,), name="canary", daemon=True)
                self._thread.start()
            said = "it is not known yet whether the cluster's network enforces NetworkPolicies"
            unknown = self._last or Proof(None, said)
        return found or unknown

    def stop(self) -> None:
        """End the thread; what it made in the cluster ends by itself."""
        self._stopped.set()
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join(STOP_S)

    # ------------------------------------------------------------------------------------------------ the thread

    def _run(self, cluster: str) -> None:
        client = self._make()
        try:
            found = self._try(client)
        except (Refused, SchedulerError) as error:
            found = Proof(None, f"{NOT_SENT}: {error}")
        finally:
            client.close()
        found = Proof(found.enforced, found.text, cluster, time.time())
        _log.info("canary in %s: %s", cluster, found.text)
        if found.enforced is not None:
            self._write(found)
        with self._lock:
            self._last, self._thread = found, None
            self._next = time.monotonic() + (AGAIN_S if found.enforced is None else 0.0)

    def _try(self, client: ClusterClient) -> Proof:
        name = f"ffdl-canary-{secrets.token_hex(4)}"
        end = time.monotonic() + LIFE_S
        made: list[str] = []
        try:
            job = self._create(client, jobs_of(name, SERVERS, (), self._settings), made)
            for one in policies(name):
                client.create({**one, "metadata": {**one["metadata"], "ownerReferences": [_owner(job)]}})  # type: ignore[dict-item]
            self._let_go(client, job)
            servers = self._await(client, name, SERVERS, _address, end)
            addresses = [servers[OPEN], servers[SHUT]]
            self._let_go(client, self._create(client, jobs_of(name, CLIENTS, addresses, self._settings), made))
            said = self._await(client, name, CLIENTS, _message, end)
            return judge(parse_json(said[FREE]), parse_json(said[BOUND]), *addresses)
        except _NotYet as error:
            return Proof(None, f"the canary's pods did not run in {LIFE_S} s: {error}")
        except _Ended as error:
            return Proof(None, f"a pod of the canary that was to listen has ended: {error}")
        except ValueError as error:
            return Proof(None, f"the canary's pods said nothing that can be read: {error}")
        finally:
            for job_name in made:
                client.delete("Job", job_name)

    @staticmethod
    def _create(client: ClusterClient, wanted: Plain, made: list[str]) -> Plain:
        job, _ = client.create(wanted)
        made.append(job["metadata"]["name"])
        return job

    def _let_go(self, client: ClusterClient, job: Plain) -> None:
        client.patch("Job", job["metadata"]["name"], release(self._settings.queue))

    def _await(
        self, client: ClusterClient, name: str, part: str, of: Callable[[Plain], str], end: float
    ) -> dict[int, str]:
        """Return the values of both pods of a part, by index. Raises _NotYet, and what `of` raises."""
        selector = {"labelSelector": f"{CANARY_LABEL}={name},{PART_LABEL}={part}"}
        while True:
            pods, _ = client.list("Pod", selector)
            found = {int(pod["metadata"]["labels"][INDEX]): of(pod) for pod in pods}
            if len(found) == 2 and all(found.values()):
                return found
            if time.monotonic() > end or self._stopped.wait(POLL_S):
                raise _NotYet(why_pending(pods) or "nothing is said of why")

    # ---------------------------------------------------------------------------------------------- what is kept

    def _read(self, cluster: str) -> Proof | None:
        try:
            found = Proof(**json.loads(self._file.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None
        return found if found.cluster == cluster else None

    def _write(self, found: Proof) -> None:
        try:
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_text(self._file, json.dumps(asdict(found)) + "\n", durable=False)
        except OSError as error:
            _log.warning("%s cannot be written: %s", self._file, error)


class _NotYet(Exception):
    pass


class _Ended(Exception):
    pass


def refuse_unproved(found: Proof) -> None:
    """Refuse a plan that relies on policies if they are known to have no effect. Raises InvalidRequest."""
    if found.enforced is False:
        raise InvalidRequest(f"{found.text}; the job was planned with a network level that needs them: submit it again")


def _owner(job: Plain) -> dict[str, object]:
    meta = job["metadata"]
    return {"apiVersion": "batch/v1", "kind": "Job", "name": meta["name"], "uid": meta["uid"]}


def _address(pod: Plain) -> str:
    """Return the address of a running server. Raises _Ended if it will never run, because its Job makes no other
    pod."""
    status = pod.get("status", {})
    if status.get("phase") in ("Failed", "Succeeded"):
        why = _message(pod) or status.get("message") or status.get("reason") or "nothing is said of why"
        raise _Ended(f"{pod['metadata']['name']}: {why}")
    return str(status.get("podIP", "")) if status.get("phase") == "Running" else ""


def _message(pod: Plain) -> str:
    """Return the termination message of a pod."""
    for one in pod.get("status", {}).get("containerStatuses") or ():
        if (ended := one.get("state", {}).get("terminated")) is not None:
            return str(ended.get("message") or f"exit status {ended.get('exitCode')}")
    return ""
