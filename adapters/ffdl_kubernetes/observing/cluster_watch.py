"""Watch all Jobs of the daemon: one list and one watch for each kind, whatever the number of Jobs.

A watch that breaks continues from the version that it had reached. If the server no longer has that version, everything
is listed again. Bookmarks renew the version if nothing happens (kubernetes.io, "API Concepts").
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any

from ffdl_batch.domain.launch.pod_protocol import ATTEMPT_LABEL, JOB_LABEL
from ffdl_batch.domain.scheduler_errors import SchedulerError, SchedulerMissing, SchedulerUnreachable
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_kubernetes.client import TAKEN, UNAUTHORIZED, ClusterClient, Expired, Refused
from ffdl_kubernetes.objects.carried_files import without_files
from ffdl_kubernetes.objects.names import MANAGER, MANAGER_LABEL, STORES_LABEL, STORING
from ffdl_kubernetes.observing.cures import name_controllers_part

Plain = Mapping[str, Any]
_log = logging.getLogger(__name__)
_OURS = {"labelSelector": f"{MANAGER_LABEL}={MANAGER}"}
SELECTORS: Mapping[str, Mapping[str, str]] = {
    "Job": _OURS,
    "Pod": _OURS,
    "Event": {
        "fieldSelector": "type=Warning,reason!=Unhealthy,reason!=FailedScheduling,reason!=BackOff,reason!=Failed"
    },
}
"""What is watched. Pods that a quota or a policy refuses, and volumes that pods wait for, are reported in events only.
The many events that are left out here are also in the pods' status."""
_OF_PODS = frozenset({"FailedAttachVolume", "FailedMount", "FailedMapVolume", "FailedCreatePodSandBox"})
"""Reasons of events about pods that have a node and do not start."""
_VAGUE = "timed out waiting for the condition"
"""kubelet's message about volumes (FailedMount) whose real problem another event reports."""
WATCH_S = 300
"""The server is asked to close a watch after so long: a connection that died silently is noticed by then."""
STALE_S = 20.0
"""If a broken watch does not recover for so long, the state of the cluster is unknown."""
PAUSES_S = (0.2, 1.0, 5.0)
SHORT_S = 1.0
"""A server, or a proxy before it, that closes watches sooner than this is not asked again at once."""


@dataclass
class Held:
    """What is known of one kind, by name. `taken_at` is when the server took the last watch; one that broke sooner than
    SHORT_S after that has mended nothing. `answered` is what answers showed while it is listed."""

    things: dict[str, Plain] = field(default_factory=dict)
    answered: dict[str, Plain] | None = None
    version: str = ""
    synced: bool = False
    broken_at: float | None = None
    taken_at: float | None = None
    why: str = ""
    kind: type[SchedulerUnreachable] = SchedulerUnreachable

    @property
    def is_watched(self) -> bool:
        """Whether a watch is there, for now at least."""
        return self.broken_at is None or self.taken_at is not None


class Watcher:
    """Watch one namespace in threads of its own, from :meth:`start` on. `heard` is called for each object that changed,
    in one of these threads, with (type, kind, object)."""

    def __init__(
        self,
        make: Callable[[], ClusterClient],
        on_change: Callable[[str, str, Plain], None],
        selectors: Mapping[str, Mapping[str, str]] = SELECTORS,
    ) -> None:
        self._make, self._on_change, self._selectors = make, on_change, selectors
        self._held = {kind: Held() for kind in selectors}
        self._lock = threading.Condition()
        self._threads: list[threading.Thread] = []
        self._stopped = threading.Event()

    def start(self) -> None:
        """Begin, once."""
        with self._lock:
            if self._threads or self._stopped.is_set():
                return
            self._threads = [
                threading.Thread(target=self._run, args=(kind,), name=f"watch-{kind}", daemon=True)
                for kind in self._held
            ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End; watches that wait end with the process."""
        self._stopped.set()

    def await_sync(self, timeout_s: float) -> None:
        """Wait until everything was listed. Raises SchedulerUnreachable with the reason."""
        with self._lock:
            self._lock.wait_for(lambda: all(held.synced for held in self._held.values()), timeout_s)
            for kind, held in self._held.items():
                if not held.synced:
                    raise held.kind(f"{kind}s cannot be listed: {held.why or 'no answer yet'}")
                broken_at = None if held.is_watched else held.broken_at
                if broken_at is not None and time.monotonic() - broken_at > STALE_S:
                    raise held.kind(f"{kind}s cannot be watched: {held.why}")

    def job(self, token: str) -> Plain | None:
        """Return the last known Job of an attempt."""
        with self._lock:
            return self._held["Job"].things.get(token)

    def jobs(self) -> dict[str, Plain]:
        """Return all Jobs by token."""
        with self._lock:
            return dict(self._held["Job"].things)

    def things(self, kind: str) -> dict[str, Plain]:
        """Return all objects of a kind by name."""
        with self._lock:
            return dict(self._held[kind].things)

    def pods_by_token(self) -> dict[str, list[Plain]]:
        """Return all pods by the token of their attempt."""
        with self._lock:
            pods = list(self._held["Pod"].things.values())
        found: dict[str, list[Plain]] = {}
        for pod in pods:
            found.setdefault(token_of(pod), []).append(pod)
        return found

    def refusals(self) -> dict[str, str]:
        """Job's name -> why its pods were refused last."""
        found = {
            str(one["involvedObject"]["name"]): _message(one)
            for one in self._events("Job")
            if one.get("reason") == "FailedCreate"
        }
        return {name: name_controllers_part(self.job(name), said) for name, said in found.items()}

    def pod_warnings(self) -> dict[str, tuple[str, str]]:
        """Return, by pod's name, reason and message of the last event about its volumes or its network. No event
        reports when the problem is over."""
        found: dict[str, tuple[str, str]] = {}
        for one in self._events("Pod"):
            name, message = str(one["involvedObject"]["name"]), _message(one)
            if one.get("reason") in _OF_PODS and not (name in found and _VAGUE in message):
                found[name] = str(one["reason"]), message
        return found

    def _events(self, kind: str) -> list[Plain]:
        """Return the events about objects of a kind, the latest last."""
        with self._lock:
            events = list(self._held["Event"].things.values())
        return sorted((one for one in events if one["involvedObject"].get("kind") == kind), key=_version)

    def pod(self, name: str) -> Plain | None:
        """One pod, as it was last seen."""
        with self._lock:
            return self._held["Pod"].things.get(name)

    def put(self, kind: str, thing: Plain) -> None:
        """Store an object from an answer of the server, so that a new job is known before the watch reports it."""
        with self._lock:
            name, held = thing["metadata"]["name"], self._held[kind]
            known = held.things.get(name)
            if known is None or _version(known) < _version(thing):
                held.things[name] = thing
                if held.answered is not None:
                    held.answered[name] = thing

    # ------------------------------------------------------------------------------------------------ threads

    def _run(self, kind: str) -> None:
        client = self._make()
        try:
            self._go_on(client, kind)
        finally:
            client.close()

    def _go_on(self, client: ClusterClient, kind: str) -> None:
        failures, held = 0, self._held[kind]
        while not self._stopped.is_set():
            try:
                if not held.version:
                    self._list(client, kind)
                begun = time.monotonic()
                self._watch(client, kind)
                failures = 0
                self._stopped.wait(max(0.0, begun + SHORT_S - time.monotonic()))
            except Expired:
                held.version = ""
                self._stopped.wait(PAUSES_S[0])
            except (Refused, SchedulerError) as error:
                failures += 1
                self._broke(kind, str(error), missing=isinstance(error, SchedulerMissing) or _is_unknown(error))
                self._stopped.wait(PAUSES_S[min(failures, len(PAUSES_S)) - 1])
            except Exception as error:  # noqa: BLE001 - of the callback: everything is listed and reported again
                # A thread that ended would leave what it knew as if it were true for ever.
                if not isinstance(error, OSError):
                    _log.exception("what the cluster says of %ss was not understood; they are listed again", kind)
                held.version = ""
                failures += 1
                self._broke(kind, str(error) or type(error).__name__)
                self._stopped.wait(PAUSES_S[min(failures, len(PAUSES_S)) - 1])

    def _list(self, client: ClusterClient, kind: str) -> None:
        held = self._held[kind]
        with self._lock:
            held.answered = {}
        items, version = client.list(kind, self._selectors[kind])
        listed: dict[str, Plain] = {thing["metadata"]["name"]: without_files(thing) for thing in items}
        with self._lock:
            at = int(version) if version.isdigit() else 0
            listed |= {name: thing for name, thing in (held.answered or {}).items() if _version(thing) > at}
            gone = [thing for name, thing in held.things.items() if name not in listed]
            held.things, held.version, held.answered = listed, version, None
        for thing in gone:
            self._on_change("DELETED", kind, thing)
        for thing in items:
            self._on_change("ADDED", kind, thing)
        with self._lock:  # the first list is not visible before all of it was reported
            held.synced, held.broken_at = True, None
            self._lock.notify_all()

    def _watch(self, client: ClusterClient, kind: str) -> None:
        """Watch until the server closes."""
        held = self._held[kind]
        for what, thing in client.watch(kind, self._selectors[kind], held.version, WATCH_S):
            if what == TAKEN:  # all that happened meanwhile comes now; where nothing did, nothing comes for long
                with self._lock:
                    held.taken_at, held.synced = time.monotonic(), True
                    self._lock.notify_all()
                continue
            held.version = str(without_files(thing)["metadata"]["resourceVersion"])
            with self._lock:
                held.broken_at = None
                if what != "BOOKMARK":
                    self._note(held, what, thing)
            if what != "BOOKMARK":
                self._on_change(what, kind, thing)
            if self._stopped.is_set():
                break
        with self._lock:
            held.broken_at = None

    @staticmethod
    def _note(held: Held, what: str, thing: Plain) -> None:
        """Store an event, unless a later state of the object is known."""
        name = thing["metadata"]["name"]
        known = held.things.get(name)
        if known is not None and _version(known) > _version(thing) > 0:
            return
        if what == "DELETED":
            held.things.pop(name, None)
        else:
            held.things[name] = thing

    def _broke(self, kind: str, why: str, *, missing: bool = False) -> None:
        """`missing`: what it is asked with is wrong."""
        with self._lock:
            held = self._held[kind]
            held.why, held.kind = why, SchedulerMissing if missing else SchedulerUnreachable
            held.synced = held.synced and not missing
            now, taken_at = time.monotonic(), held.taken_at
            if held.broken_at is None or (taken_at is not None and now - taken_at >= SHORT_S):
                held.broken_at = now
            held.taken_at = None


def _is_unknown(error: Exception) -> bool:
    """Return whether the server refuses the credentials."""
    return isinstance(error, Refused) and error.status == UNAUTHORIZED


def token_of(thing: Plain) -> str:
    """Return the token of the attempt of an object, with a suffix for pending uploads; "" if there is none."""
    labels = thing["metadata"].get("labels") or {}
    job, attempt = labels.get(JOB_LABEL, ""), labels.get(ATTEMPT_LABEL, "")
    stores = STORING if STORES_LABEL in labels else ""
    return f"{job}-{attempt}{stores}" if job and attempt else ""


def _message(event: Plain) -> str:
    """Return the message of an event, without the words of recorders that combine events (client-go,
    `events_cache.go`)."""
    return str(event.get("message", "")).removeprefix("(combined from similar events): ")


def _version(thing: Plain) -> int:
    """Versions are numbers that grow (KEP-5504: they may be compared)."""
    text = str(thing["metadata"].get("resourceVersion", ""))
    return int(text) if text.isdigit() else 0
