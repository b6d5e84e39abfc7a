"""What is known of events."""

from __future__ import annotations

from typing import Any

import pytest

from ffdl_kubernetes.client import ClusterClient
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


def test_a_kubelet_that_only_waits_does_not_hide_who_says_why(watcher: Watcher) -> None:
    vague = "Unable to attach or mount volumes: unmounted volumes=[work]: timed out waiting for the condition"
    watcher.put("Event", event(1, "Pod", "a-0", "FailedAttachVolume", "Multi-Attach error"))
    watcher.put("Event", event(2, "Pod", "a-0", "FailedMount", vague))
    watcher.put("Event", event(3, "Pod", "b-0", "FailedMount", vague))
    assert watcher.troubles() == {"a-0": ("FailedAttachVolume", "Multi-Attach error"), "b-0": ("FailedMount", vague)}
