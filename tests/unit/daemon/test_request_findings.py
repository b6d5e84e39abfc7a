"""Tests that a refused request is described in our words: field, value and cause."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.daemon.conftest import Desk
from tests.unit.daemon.test_routes import problem

NO = "the request does not match the interface: "
JOB = "/api/v1/jobs/training-000000000"
WHOLE = {"manifest": "m", "manifest_name": "n", "base_dir": "/", "archive": "a", "key": "k"}


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("/api/v1/jobs?limit=0", "query.limit: '0' must be 1 or more"),
        ("/api/v1/jobs?limit=1e9", "query.limit: '1e9' must be a whole number"),
        ("/api/v1/jobs?limit=10001", "query.limit: '10001' must be 10000 or less"),
        ("/api/v1/jobs?since=soon", "query.since: 'soon' must be a number"),
        ("/api/v1/jobs?since=nan", "query.since: 'nan' must be a finite number"),
        ("/api/v1/jobs?name=a%00", r"query.name: 'a\x00' must be text without a NUL character"),
        ("/api/v1/reports/usage?until=5", "query.since: it is missing"),
        (f"{JOB}/logs?follow=perhaps", "query.follow: 'perhaps' must be true or false"),
        (f"{JOB}/logs?attempt=every", "query.attempt: 'every' must be a whole number, or 'all'"),
        (f"{JOB}/logs?attempt=0", "query.attempt: '0' must be 1 or more, or 'all'"),
        (f"{JOB}/logs?grep={'x' * 5000}", f"query.grep: '{'x' * 57}...' must be text of at most "),
        ("/api/v1/jobs?state=LOST", "query.state[0]: 'LOST' must be 'PENDING', 'DEPLOYING', 'QUEUED', "),
        ("/api/v1/jobs?state=HALTED&state=x", "query.state[1]: 'x' must be 'PENDING', "),
    ],
)
def test_query_that_does_not_fit_names_field_value_and_cause(desk: Desk, target: str, message: str) -> None:
    answer = desk.ask("GET", target)
    assert answer.status == 400
    assert problem(answer).message.startswith(NO + message)
    assert "should" not in problem(answer).message and "Input" not in problem(answer).message


def test_path_that_does_not_fit_names_field_value_and_cause(desk: Desk) -> None:
    answer = desk.ask("GET", f"{JOB}/output/letters")
    assert problem(answer).message == f"{NO}path.kind: 'letters' must be 'results', 'model', 'logs' or 'checkpoint'"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "body.submissions: it is missing"),
        ([], "body: the list must be an object of JSON"),
        ({"submissions": {}}, "body.submissions: the object must be a list"),
        ({"submissions": []}, "body.submissions: it must have at least 1 entry, and has 0"),
        ({"submissions": [{}] * 501}, "body.submissions: it must have at most 500 entries, and has 501"),
        ({"submissions": [{**WHOLE, "umask": "x"}]}, "body.submissions[0].umask: 'x' must be a whole number"),
        ({"submissions": [{**WHOLE, "strict": 7}]}, "body.submissions[0].strict: '7' must be true or false"),
        ({"submissions": [{**WHOLE, "key": None}]}, "body.submissions[0].key: null must be text"),
        ({"submissions": [{**WHOLE, "key": True}]}, "body.submissions[0].key: 'true' must be text"),
        ({"submissions": [{**WHOLE, "expected": "two"}]}, "body.submissions[0].expected: 'two' must be 'any', "),
        ({"submissions": [{**WHOLE, "cluster": []}]},
         "body.submissions[0].cluster: the list must be an object of JSON"),
        ({"submissions": [WHOLE, {**WHOLE, "references": {"env:A": 47}}]},
         "body.submissions[1].references.env:A: the value must be text"),
        (b"{", "body: it is not JSON: Expecting property name enclosed in double quotes at character 1"),
    ],
)  # fmt: skip
def test_body_that_does_not_fit_names_field_value_and_cause(desk: Desk, body: Any, message: str) -> None:
    answer = desk.ask("POST", "/api/v1/jobs", body)
    assert answer.status == 400
    assert problem(answer).message.startswith(NO + message)


@pytest.mark.parametrize("body", [b"\xff", b"[" * 200_000])
def test_body_that_is_not_json_is_refused(desk: Desk, body: bytes) -> None:
    found = problem(desk.ask("POST", "/api/v1/jobs", body))
    assert found.message == "the body of the request is not JSON in UTF-8, or is nested too deeply"


def test_value_of_secret_is_not_repeated(desk: Desk) -> None:
    found = problem(desk.ask("PUT", "/api/v1/secrets/token", {"value": 47110815}))
    assert found.message == f"{NO}body.value: the value must be text"
