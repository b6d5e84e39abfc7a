"""What is known of events, and of watches that break."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from ffdl_batch.ports.scheduler import SchedulerMissing, SchedulerUnreachable
from ffdl_kubernetes import watching
from ffdl_kubernetes.client import TAKEN, ClusterClient, Expired
from ffdl_kubernetes.watching import Watcher


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


def test_events_of_jobs_and_of_pods_are_told_apart(watcher: Watcher) -> None:
    watcher.put("Event", event(10, "Job", "a", "FailedCreate", "first"))
    watcher.put("Event", event(9, "Job", "a", "FailedCreate", "before"))
    watcher.put("Event", event(11, "Job", "a", "SomethingElse", "x"))
    watcher.put("Event", event(12, "Pod", "a-0", "FailedMount", "no such export"))
    watcher.put("Event", event(13, "Pod", "a-0", "Evicted", "x"))
    watcher.put("Event", event(14, "PersistentVolumeClaim", "a-0", "FailedMount", "x"))
    assert watcher.refusals() == {"a": "first"}
    assert watcher.troubles() == {"a-0": ("FailedMount", "no such export")}


def test_events_that_are_told_many_times_are_one_word(watcher: Watcher) -> None:
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
    assert watcher.troubles() == {"a-0": ("FailedMount", "MountVolume.SetUp failed")}
    assert watcher.refusals() == {"a": "Error creating: x"}


def test_a_kubelet_that_only_waits_does_not_hide_who_says_why(watcher: Watcher) -> None:
    vague = "Unable to attach or mount volumes: unmounted volumes=[work]: timed out waiting for the condition"
    watcher.put("Event", event(1, "Pod", "a-0", "FailedAttachVolume", "Multi-Attach error"))
    watcher.put("Event", event(2, "Pod", "a-0", "FailedMount", vague))
    watcher.put("Event", event(3, "Pod", "b-0", "FailedMount", vague))
    assert watcher.troubles() == {"a-0": ("FailedAttachVolume", "Multi-Attach error"), "b-0": ("FailedMount", vague)}


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


def is_refused() -> Iterator[tuple[str, dict[str, Any]]]:
    yield from ()
    raise SchedulerMissing("nobody is logged in")


def test_a_server_that_closes_watches_at_once_is_not_asked_again_at_once() -> None:
    server = Scripted(closes, closes, closes)
    server.go()
    assert len(server.pauses) == 3 and all(0.5 < pause <= watching.SHORT_S for pause in server.pauses)


def test_a_version_that_is_forgotten_again_and_again_is_no_reason_to_hurry() -> None:
    def expires() -> Iterator[tuple[str, dict[str, Any]]]:
        yield from ()
        raise Expired

    server = Scripted(expires, expires, closes)
    server.go()
    assert server.lists == 3 and server.pauses[:2] == [watching.PAUSES_S[0]] * 2


def test_a_watch_that_is_taken_and_breaks_at_once_has_mended_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "STALE_S", 0.0)
    server = Scripted(breaks, breaks)
    server.go()
    with pytest.raises(SchedulerUnreachable, match="Pods cannot be watched: a proxy's page"):
        server.watcher.await_sync(0)


def test_credentials_that_are_back_are_enough() -> None:
    seen: list[str] = []

    def quiet() -> Iterator[tuple[str, dict[str, Any]]]:
        with pytest.raises(SchedulerUnreachable, match="nobody is logged in"):
            server.watcher.await_sync(0)
        yield TAKEN, {}
        server.watcher.await_sync(0)
        seen.append("whole")

    server = Scripted(closes, is_refused, quiet)
    server.go()
    assert seen == ["whole"] and server.lists == 1


def test_what_is_not_understood_is_listed_again_and_ends_no_thread() -> None:
    def strange() -> Iterator[tuple[str, dict[str, Any]]]:
        yield TAKEN, {}
        yield "ADDED", {"metadata": {}}

    server = Scripted(strange, closes)
    server.go()
    assert server.lists == 2


def pod(version: int, name: str = "a") -> dict[str, Any]:
    return {"metadata": {"name": name, "resourceVersion": str(version)}}


@pytest.mark.parametrize("what", ["ADDED", "MODIFIED", "DELETED"])
def test_what_an_answer_showed_is_not_taken_back_by_what_was_before(what: str) -> None:
    def late() -> Iterator[tuple[str, dict[str, Any]]]:
        yield TAKEN, {}
        server.watcher.put("Pod", pod(9))
        yield what, pod(8)

    server = Scripted(late)
    server.go()
    assert server.watcher.pod("a") == pod(9)


def test_what_is_deleted_is_gone() -> None:
    def deletes() -> Iterator[tuple[str, dict[str, Any]]]:
        yield TAKEN, {}
        yield "ADDED", pod(8)
        yield "DELETED", pod(9)

    server = Scripted(deletes, closes)
    server.go()
    assert server.watcher.pod("a") is None


def test_what_an_answer_shows_while_all_is_listed_stays(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_all_that_is_listed_was_told_before_anybody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []

    def heard(what: str, _: str, thing: dict[str, Any]) -> None:
        with pytest.raises(SchedulerUnreachable):
            server.watcher.await_sync(0)
        told.append(f"{what} {thing['metadata']['name']}")

    server = Scripted(closes)
    monkeypatch.setattr(server, "list", lambda *_: ([pod(3), pod(4, "b")], "7"))
    monkeypatch.setattr(server.watcher, "_heard", heard)
    server.go()
    server.watcher.await_sync(0)
    assert told == ["ADDED a", "ADDED b"]
