"""Arrays in Python: submitting, asking, stopping and waiting for all of their jobs."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from ffdl_batch.client import ArrayHandle, Client, UnknownJob, WaitTimedOut
from ffdl_batch.client.api_calls.requests import JobFilter
from ffdl_batch.domain.job.submission import Expected
from tests.unit.client.fake_daemon import FakeDaemon


@pytest.fixture
def client(daemon: FakeDaemon) -> Client:
    """Of a daemon that makes an array of three jobs of every submission."""
    daemon.elements = 3
    return Client(daemon.path, start=False)


def end_all(daemon: FakeDaemon, *states: str) -> None:
    """End the jobs one by one with these states."""
    for job_id, state in zip(list(daemon.jobs), states, strict=True):
        daemon.jobs[job_id] = replace(daemon.jobs[job_id], state=state, ended_at=1.0)


@pytest.fixture
def array(client: Client, manifest: Path, model: Path) -> ArrayHandle:
    """One that was submitted."""
    return client.submit_array(manifest, model, array="0-2%2", time="10")


def test_submit_array_returns_handle_with_one_job_per_element(daemon: FakeDaemon, array: ArrayHandle) -> None:
    (sent,) = daemon.submissions.values()
    assert (sent.options, sent.expected) == ({"array": "0-2%2", "time": "10"}, Expected.ARRAY)
    assert (array.id, array.network) == ("array-000000001", "none")
    assert [job.id for job in array.jobs] == [f"training-000001{n:03d}" for n in range(3)]
    assert [job.view().array_index for job in array.jobs] == [0, 1, 2]


def test_array_handle_returns_counts_and_states_of_elements_and_unknown_array_raises(
    daemon: FakeDaemon, array: ArrayHandle, client: Client
) -> None:
    end_all(daemon, "COMPLETED", "FAILED", "COMPLETED")
    view = array.view()
    assert (view.elements, view.states, view.ended, view.limit) == (3, {"COMPLETED": 2, "FAILED": 1}, True, 2)
    assert [job.state for job in array.elements()] == ["COMPLETED", "FAILED", "COMPLETED"]
    assert client.list(JobFilter(array="array-000000009")) == []
    with pytest.raises(UnknownJob, match="there is no array array-000000009"):
        client.arrays.get("array-000000009")


def test_array_halt_and_cancel_send_one_request_each(daemon: FakeDaemon, array: ArrayHandle) -> None:
    before = len(daemon.requests)
    array.halt()
    assert [job.requested_action for job in array.elements()] == ["halt"] * 3
    array.cancel()
    assert [job.requested_action for job in array.elements()] == ["cancel"] * 3
    assert [text for text in daemon.requests[before:] if text.startswith("POST")] == [
        "POST /api/v1/arrays/array-000000001/halt",
        "POST /api/v1/arrays/array-000000001/cancel",
    ]


def test_array_wait_returns_after_last_job_or_raises_after_timeout(daemon: FakeDaemon, array: ArrayHandle) -> None:
    with pytest.raises(WaitTimedOut, match="array-000000001 has jobs that have not ended"):
        array.wait(timeout_s=0)

    def end(_array: str) -> None:
        end_all(daemon, "COMPLETED", "CANCELLED", "FAILED")

    daemon.on_wait = end  # type: ignore[assignment]
    assert [job.state for job in array.wait()] == ["COMPLETED", "CANCELLED", "FAILED"]


def test_array_wait_keeps_asking_while_daemon_is_away(
    daemon: FakeDaemon, array: ArrayHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    end_all(daemon, "COMPLETED", "COMPLETED", "COMPLETED")
    daemon.refusals["/api/v1/arrays"] = (503, None)

    def come_back(_: float) -> None:
        daemon.refusals.clear()

    monkeypatch.setattr(time, "sleep", come_back)
    with pytest.warns(RuntimeWarning, match="trying again"):
        assert [job.state for job in array.wait()] == ["COMPLETED"] * 3
