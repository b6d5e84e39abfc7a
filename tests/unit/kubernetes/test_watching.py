"""What is known of events, and of watches that break."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from ffdl_batch.domain.scheduler_errors import SchedulerMissing, SchedulerUnreachable
from ffdl_kubernetes.client import TAKEN, ClusterClient, Expired, Refused
from ffdl_kubernetes.observing import cluster_watch
from ffdl_kubernetes.observing.cluster_watch import Watcher


def no_client() -> ClusterClient:
    raise AssertionError("nothing is asked")


@pytest.fixture
def watcher() -> Watcher:
    return Watcher(no_client, lambda *_: None)


def event(version: int, kind: str, name: str, reason: str, message: str) -> dict[str, Any]:
    return {
        "metadata": {"name": f"{name}.{version}", "resourceVersion": str(version)},
        "involvedObject": {"kind": kind, "name": name}, "reason": reason, "message": message,
    }  # fmt: skip


def test_watcher_separates_job_refusals_from_pod_troubles(watcher: Watcher) -> None:
    watcher.put("Event", event(10, "Job", "a", "FailedCreate", "first"))
    watcher.put("Event", event(9, "Job", "a", "FailedCreate", "before"))
    watcher.put("Event", event(11, "Job", "a", "SomethingElse", "x"))
    watcher.put("Event", event(12, "Pod", "a-0", "FailedMount", "no such export"))
    watcher.put("Event", event(13, "Pod", "a-0", "Evicted", "x"))
    watcher.put("Event", event(14, "PersistentVolumeClaim", "a-0", "FailedMount", "x"))
    assert watcher.refusals() == {"a": "first"}
    assert watcher.pod_warnings() == {"a-0": ("FailedMount", "no such export")}


def test_watcher_merges_repeated_and_combined_events(watcher: Watcher) -> None:
    """A series grows in place, and recorders join what differs in names alone (client-go, `events_cache.go`)."""
    first = event(10, "Job", "a", "FailedCreate", "Error creating: pods is forbidden")
    series = {"count": 12, "lastObservedTime": "2026-11-24T13:00:00.000000Z"}
    watcher.put("Event", first)
    watcher.put("Event", event(11, "Job", "a", "FailedCreate", "another"))
    watcher.put("Event", {**first, "metadata": {**first["metadata"], "resourceVersion": "12"}, "series": series})
    assert watcher.refusals() == {"a": "Error creating: pods is forbidden"}
    joined = "(combined from similar events): MountVolume.SetUp failed"
    watcher.put("Event", event(13, "Pod", "a-0", "FailedMount", joined))
    watcher.put("Event", event(14, "Job", "a", "FailedCreate", "(combined from similar events): Error creating: x"))
    assert watcher.pod_warnings() == {"a-0": ("FailedMount", "MountVolume.SetUp failed")}
    assert watcher.refusals() == {"a": "Error creating: x"}


def test_watcher_prefers_specific_event_over_kubelet_mount_timeout(watcher: Watcher) -> None:
    vague = "Unable to attach or mount volumes: unmounted volumes=[work]: timed out waiting for the condition"
    watcher.put("Event", event(1, "Pod", "a-0", "FailedAttachVolume", "Multi-Attach error"))
    watcher.put("Event", event(2, "Pod", "a-0", "FailedMount", vague))
    watcher.put("Event", event(3, "Pod", "b-0", "FailedMount", vague))
    assert watcher.pod_warnings() == {
        "a-0": ("FailedAttachVolume", "Multi-Attach error"),
        "b-0": ("FailedMount", vague),
    }


Watch = Callable[[], Iterator[tuple[str, dict[str, Any]]]]


class Scripted:
    """A server with nothing in it, whose watches go one by one as they are given; the last one ends the watcher."""

    def __init__(self, *watches: Watch) -> None:
        self._watches, self.lists, self.pauses = list(watches), 0, list[float]()
        self.watcher = Watcher(lambda: cast(ClusterClient, self), lambda *_: None, {"Pod": {}})
        self.watcher._stopped.wait = self.pauses.append  # type: ignore[method-assign, assignment]

    def list(self, *_: object) -> tuple[list[Any], str]:
        self.lists += 1
        return [], "7"

    def watch(self, *_: object) -> Iterator[tuple[str, dict[str, Any]]]:
        if len(self._watches) == 1:
            self.watcher.stop()
        return self._watches.pop(0)()

    def close(self) -> None:
        pass

    def go(self) -> None:
        self.watcher._run("Pod")


def closes() -> Iterator[tuple[str, dict[str, Any]]]:
    yield TAKEN, {}


def breaks() -> Iterator[tuple[str, dict[str, Any]]]:
    yield TAKEN, {}
    raise SchedulerUnreachable("a proxy's page")


def test_watcher_pauses_before_reopening_watch_that_closed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_watch, "SHORT_S", 600.0)
    server = Scripted(closes, closes, closes)
    server.go()
    assert len(server.pauses) == 3 and all(300.0 < pause <= 600.0 for pause in server.pauses)


def test_watcher_pauses_after_each_expired_version() -> None:
    def expires() -> Iterator[tuple[str, dict[str, Any]]]:
        yield from ()
        raise Expired

    server = Scripted(expires, expires, closes)
    server.go()
    assert server.lists == 3 and server.pauses[:2] == [cluster_watch.PAUSES_S[0]] * 2


def test_watcher_reports_unreachable_if_accepted_watch_breaks_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_watch, "STALE_S", 0.0)
    server = Scripted(breaks, breaks)
    server.go()
    with pytest.raises(SchedulerUnreachable, match="Pods cannot be watched: a proxy's page"):
        server.watcher.await_sync(0)


@pytest.mark.parametrize("error", [
    SchedulerMissing("nobody is logged in"), Refused(429, "TooManyRequests", "too many requests"),
])  # fmt: skip
def test_watcher_recovers_without_new_list_or_event_when_server_accepts_watch_again(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(cluster_watch, "STALE_S", 0.0)
    seen: list[str] = []

    def is_refused() -> Iterator[tuple[str, dict[str, Any]]]:
        yield from ()
        raise error

    def quiet() -> Iterator[tuple[str, dict[str, Any]]]:
        with pytest.raises(SchedulerUnreachable, match=str(error)):
            server.watcher.await_sync(0)
        yield TAKEN, {}
        server.watcher.await_sync(0)
        seen.append("whole")

    server = Scripted(closes, is_refused, quiet)
    server.go()
    assert seen == ["whole"] and server.lists == 1


def test_watcher_lists_again_after_malformed_event() -> None:
    def strange() -> Iterator[tuple[str, dict[str, Any]]]:
        yield TAKEN, {}
        yield "ADDED", {"metadata": {}}

    server = Scripted(strange, closes)
    server.go()
    assert server.lists == 2


def pod(version: int, name: str = "a") -> dict[str, Any]:
    return {"metadata": {"name": name, "resourceVersion": str(version)}}


@pytest.mark.parametrize("what", ["ADDED", "MODIFIED", "DELETED"])
def test_watcher_ignores_event_older_than_known_object(what: str) -> None:
    def late() -> Iterator[tuple[str, dict[str, Any]]]:
        yield TAKEN, {}
        server.watcher.put("Pod", pod(9))
        yield what, pod(8)

    server = Scripted(late)
    server.go()
    assert server.watcher.pod("a") == pod(9)


def test_watcher_forgets_deleted_object() -> None:
    def deletes() -> Iterator[tuple[str, dict[str, Any]]]:
        yield TAKEN, {}
        yield "ADDED", pod(8)
        yield "DELETED", pod(9)

    server = Scripted(deletes, closes)
    server.go()
    assert server.watcher.pod("a") is None


def test_watcher_keeps_objects_newer_than_the_list(monkeypatch: pytest.MonkeyPatch) -> None:
    """The list is of version 7: what came before and is not in it is gone, and of what comes later the watch tells."""
    server = Scripted(closes)

    def listing(*_: object) -> tuple[list[Any], str]:
        for one in (pod(6, "gone"), pod(8, "new"), pod(5, "both")):
            server.watcher.put("Pod", one)
        return [pod(7, "both")], "7"

    monkeypatch.setattr(server, "list", listing)
    server.watcher.put("Pod", pod(99, "of a time that a restored server has forgotten"))
    server.go()
    assert server.watcher.things("Pod") == {"new": pod(8, "new"), "both": pod(7, "both")}


def test_watcher_delivers_listed_objects_before_it_reports_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []

    def heard(what: str, _: str, thing: dict[str, Any]) -> None:
        with pytest.raises(SchedulerUnreachable):
            server.watcher.await_sync(0)
        told.append(f"{what} {thing['metadata']['name']}")

    server = Scripted(closes)
    monkeypatch.setattr(server, "list", lambda *_: ([pod(3), pod(4, "b")], "7"))
    monkeypatch.setattr(server.watcher, "_on_change", heard)
    server.go()
    server.watcher.await_sync(0)
    assert told == ["ADDED a", "ADDED b"]


def test_watcher_redelivers_object_after_listener_error_and_continues_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []

    def heard(_what: str, _kind: str, thing: dict[str, Any]) -> None:
        told.append(thing["metadata"]["name"])
        if len(told) == 1:
            raise OSError(28, "No space left on device")

    def adds() -> Iterator[tuple[str, dict[str, Any]]]:
        yield TAKEN, {}
        yield "ADDED", pod(8, "b")

    server = Scripted(adds)
    monkeypatch.setattr(server, "list", lambda *_: ([pod(3)], "7"))
    monkeypatch.setattr(server.watcher, "_on_change", heard)
    server.go()
    assert told == ["a", "a", "b"]
    server.watcher.await_sync(0)
