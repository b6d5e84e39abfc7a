"""Tests the limits of all requests: methods, sizes of bodies, ranges of numbers."""

from __future__ import annotations

from functools import partial

import pytest

from ffdl_batch.daemon import error_replies
from tests.contract.daemon_rig import model_zip
from tests.unit.daemon.conftest import Desk
from tests.unit.daemon.test_routes import DIGEST, problem, submit


@pytest.mark.parametrize(
    ("path", "status", "word"),
    [
        ("jobs/training-000000000/events?after=9223372036854775808", 400, "after"),
        ("jobs/training-000000000/events?after=9223372036854775807", 404, "training-000000000"),
        ("jobs/training-000000000/logs?since=nan", 400, "since"),
        ("jobs?array=%00", 400, "array"),
        ("jobs/training-%00", 404, "training-"),
        ("reports/usage?since=-inf&until=5", 400, "since"),
        ("reports/faults?since=0&rows_after=1e300", 400, "rows_after"),
    ],
)
def test_routes_reject_values_out_of_bounds(desk: Desk, path: str, status: int, word: str) -> None:
    answer = desk.ask("GET", f"/api/v1/{path}")
    assert answer.status == status
    assert word in problem(answer).message


@pytest.mark.parametrize(
    ("method", "path", "methods"),
    [
        ("DELETE", "/api/v1/jobs", "GET, POST"),
        ("POST", "/api/v1/secrets/token", "DELETE, PUT"),
        ("GET", f"/api/v1/archives/{DIGEST}", "HEAD, PUT"),
        ("HEAD", "/api/v1/jobs/training-000000000/cancel", "POST"),
        ("PATCH", "/openapi.json", "GET, HEAD"),
    ],
)
def test_routes_list_allowed_methods_if_method_is_not_allowed(desk: Desk, method: str, path: str, methods: str) -> None:
    answer = desk.ask(method, path)
    assert (answer.status, answer.headers["allow"]) == (405, methods)
    assert method in problem(answer).message


@pytest.mark.parametrize("announced", [True, False])
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/jobs"),
        ("POST", "/plan"),
        ("POST", "/outlook"),
        ("POST", "/advice"),
        ("POST", "/jobs/training-000000000/resume"),
        ("POST", "/jobs/training-000000000/drill"),
        ("PUT", "/secrets/token"),
    ],
)
def test_routes_reject_body_above_size_limit(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, method: str, path: str, announced: bool
) -> None:
    monkeypatch.setattr(error_replies, "BodyLimit", partial(error_replies.BodyLimit, size=100))
    headers = {"content-length": "101"} if announced else {}
    answer = desk.ask(method, f"/api/v1{path}", b"" if announced else b" " * 101, headers=headers)
    assert (answer.status, problem(answer).exit_code) == (413, 78)
    assert "the request is larger than" in problem(answer).message


def test_routes_reject_large_content_length_before_job_is_cancelled(desk: Desk) -> None:
    job_id = submit(desk)["id"]
    answer = desk.ask("POST", f"/api/v1/jobs/{job_id}/cancel", headers={"content-length": str(10**12)})
    assert answer.status == 413
    assert desk.ask("GET", f"/api/v1/jobs/{job_id}").json["job"]["state"] == "PENDING"


def test_archive_route_has_own_body_limit(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(error_replies, "BodyLimit", partial(error_replies.BodyLimit, size=100))
    path = f"/api/v1/archives/{DIGEST}"
    assert desk.ask("PUT", path, model_zip(), headers={"content-length": str(2 * 10**9)}).status == 200
    answer = desk.ask("PUT", path, b"", headers={"content-length": str(2 * 10**9 + 1)})
    assert (answer.status, problem(answer).code) == (413, "C102")
    assert "the model archive is larger than 2000 MB" in problem(answer).message


def test_openapi_document_bounds_every_number_of_requests(desk: Desk) -> None:
    document = desk.ask("GET", "/openapi.json").json
    schemas = {
        f"{operation['operationId']}.{parameter['name']}": schema
        for methods in document["paths"].values()
        for operation in methods.values()
        for parameter in operation.get("parameters", ())
        for schema in (parameter["schema"], *parameter["schema"].get("anyOf", ()))
        if schema.get("type") in ("integer", "number")
    }
    assert schemas
    assert [name for name, schema in schemas.items() if not {"minimum", "maximum"} <= set(schema)] == []
