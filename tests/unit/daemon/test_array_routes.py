"""Routes about whole arrays: one request accepts, counts, waits for and stops all of their jobs."""

from __future__ import annotations

from typing import Any

from ffdl_batch.domain.codec import from_plain
from ffdl_batch.domain.job.views import ArrayView, JobView
from tests.unit.daemon.conftest import OWN_UID, Desk
from tests.unit.daemon.test_routes import submit


def view(answer: Any) -> ArrayView:
    assert answer.status == 200, answer.body
    return from_plain(ArrayView, answer.json["array"])


def test_array_routes_accept_array_count_its_jobs_and_address_them_by_index(desk: Desk) -> None:
    result = submit(desk, options={"array": "4,2,10%2"})
    assert (len(result["elements"]), desk.pokes) == (3, ["poke"])
    array = view(desk.ask("GET", f"/api/v1/arrays/{result['id']}"))
    assert (array.elements, array.states, array.limit, array.ended) == (3, {"PENDING": 3}, 2, False)
    assert submit(desk, options={"array": "4,2,10%2"}) == result, "the same request again"
    jobs = desk.ask("GET", f"/api/v1/jobs?array={result['id']}").json["jobs"]
    assert [(job["id"], job["array_index"]) for job in jobs] == list(zip(result["elements"], (2, 4, 10), strict=True))
    one = desk.ask("GET", f"/api/v1/jobs/{result['id']}_4").json["job"]
    assert from_plain(JobView, one).id == result["elements"][1]
    whole = desk.ask("GET", f"/api/v1/jobs/{result['id']}")
    assert (whole.status, "is an array of jobs" in whole.json["problem"]["message"]) == (404, True)


def test_array_routes_halt_cancel_and_wait_for_all_jobs(desk: Desk) -> None:
    array_id = submit(desk, options={"array": "0-2"})["id"]
    assert not view(desk.ask("GET", f"/api/v1/arrays/{array_id}/wait?wait_s=0")).ended
    halted = view(desk.ask("POST", f"/api/v1/arrays/{array_id}/halt"))
    assert (halted.states, halted.ended) == ({"HALTED": 3}, True)
    assert desk.pokes == ["poke", "poke"]
    cancelled = view(desk.ask("POST", f"/api/v1/arrays/{array_id}/cancel"))
    assert (cancelled.states, cancelled.ended) == ({"CANCELLED": 3}, True)
    assert view(desk.ask("GET", f"/api/v1/arrays/{array_id}/wait?wait_s=30")) == cancelled


def test_array_routes_reject_other_users_and_unknown_arrays(desk: Desk) -> None:
    array_id = submit(desk, options={"array": "0-2"})["id"]
    assert desk.ask("GET", f"/api/v1/arrays/{array_id}", uid=0).status == 200
    assert desk.ask("GET", f"/api/v1/arrays/{array_id}", uid=OWN_UID + 1).status == 403
    for method, rest in (("GET", ""), ("GET", "/wait?wait_s=0"), ("POST", "/cancel"), ("POST", "/halt")):
        for unknown in ("array-000000000", "array-..", "training-000000000"):
            answer = desk.ask(method, f"/api/v1/arrays/{unknown}{rest}")
            assert (answer.status, answer.json["problem"]["code"]) == (404, "C101"), (method, unknown, rest)
