"""Routes: who is let in, what is answered, and that the OpenAPI document says all of it."""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import jsonschema
import pytest
from fastapi.routing import APIRoute

from ffdl_batch.daemon.ffdl_api import routes as ffdl_api
from ffdl_batch.daemon.routes import jobs as job_routes
from ffdl_batch.daemon.server import ROUTES
from ffdl_batch.domain.codec import from_plain
from ffdl_batch.domain.daemon_health import DatabaseOutage, Health
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.job.submission import Caller
from ffdl_batch.domain.job.views import JobView, LearnerView, PlanView, Problem
from ffdl_batch.services.queries import jobs
from ffdl_batch.store import DatabaseDamaged, Store, StoreUnavailable
from tests.contract.daemon_rig import model_zip, submission
from tests.planted_files import NO_JSON
from tests.planted_files import replace as plant_in_place_of
from tests.unit.daemon.conftest import OWN_UID, Desk

DIGEST = hashlib.sha256(model_zip()).hexdigest()


def submit(desk: Desk, key: str = "k1", **changes: object) -> dict[str, Any]:
    assert desk.ask("PUT", f"/api/v1/archives/{DIGEST}", model_zip()).status == 200
    answer = desk.ask("POST", "/api/v1/jobs", {"submissions": [submission(key, DIGEST) | changes]})
    assert answer.status == 200, answer.body
    result: dict[str, Any] = answer.json["results"][0]
    return result


def problem(answer: Any) -> Problem:
    assert answer.json["schema"] == 1
    return from_plain(Problem, answer.json["problem"])


def test_routes_admit_only_daemon_user_and_root(desk: Desk) -> None:
    assert desk.ask("GET", "/api/v1/health").status == 200
    assert desk.ask("GET", "/api/v1/health", uid=0).status == 200
    refused = desk.ask("GET", "/api/v1/health", uid=OWN_UID + 1)
    assert (refused.status, problem(refused).exit_code) == (403, 77)
    assert desk.context.requests == 2
    forged = {"X-Forwarded-User": "alice", "Remote-User": "alice", "ffdl.peer": str(OWN_UID), "extensions": "{}"}
    assert desk.ask("GET", "/api/v1/health", uid=None, headers=forged).status == 403


def test_routes_treat_root_as_separate_user(desk: Desk) -> None:
    job_id = submit(desk)["id"]
    assert desk.ask("GET", "/api/v1/jobs", uid=0).json["jobs"] == []
    assert [j["id"] for j in desk.ask("GET", "/api/v1/jobs?all_users=true", uid=0).json["jobs"]] == [job_id]
    assert desk.ask("GET", "/api/v1/jobs?all_users=true").status == 403
    from_root = desk.ask("POST", "/api/v1/jobs", {"submissions": [submission("r", DIGEST)]}, uid=0).json["results"][0]
    stored = desk.platform.storage.store.get(from_root["id"])
    assert stored is not None
    assert (stored.uid, stored.user) == (OWN_UID, desk.platform.storage.user)  # it runs as the daemon's user


def test_routes_return_documented_views(desk: Desk) -> None:
    job_id = submit(desk)["id"]
    assert desk.pokes == ["poke"]
    assert from_plain(Health, desk.ask("GET", "/api/v1/health").json).live_jobs == 1
    assert from_plain(JobView, desk.ask("GET", f"/api/v1/jobs/{job_id}").json["job"]).name == "digits"
    plan = desk.ask("POST", "/api/v1/plan", {"submission": submission("p", DIGEST), "trial": True})
    assert from_plain(PlanView, plan.json["plan"]).network == "none"
    events = desk.ask("GET", f"/api/v1/jobs/{job_id}/events").json
    assert ([e["state"] for e in events["events"]], events["terminal"]) == (["PENDING"], False)
    assert desk.ask("GET", f"/api/v1/jobs/{job_id}/events?after=1").json["events"] == []
    listed = desk.ask("GET", "/api/v1/jobs?state=QUEUED&state=PENDING&name=digits&limit=1").json["jobs"]
    assert listed[0]["id"] == job_id
    assert desk.ask("GET", "/api/v1/jobs?state=QUEUED").json["jobs"] == []
    cancelled = desk.ask("POST", f"/api/v1/jobs/{job_id}/cancel").json["job"]
    assert cancelled["state"] == "CANCELLED"
    assert desk.ask("GET", f"/api/v1/jobs/{job_id}/wait?wait_s=30").json["job"]["state"] == "CANCELLED"
    assert desk.ask("GET", f"/api/v1/jobs/{job_id}/logs").body == b""


def test_states_route_counts_jobs_and_answers_another_version_at_once(desk: Desk) -> None:
    assert desk.ask("GET", "/api/v1/states").json["counts"]["states"] == {}
    job_id = submit(desk)["id"]
    submit(desk, "a", options={"array": "0-2"})
    counts = desk.ask("GET", "/api/v1/states").json["counts"]
    assert counts["states"] == {"PENDING": 4}
    same = desk.ask("GET", f"/api/v1/states?version={counts['version']}&wait_s=0.1").json["counts"]
    assert same == counts
    desk.ask("POST", f"/api/v1/jobs/{job_id}/cancel")
    after = desk.ask("GET", f"/api/v1/states?version={counts['version'] + 1}&wait_s=30").json["counts"]
    assert after["states"] == {"PENDING": 3, "CANCELLED": 1}


def test_list_route_shows_arrays_as_one_row(desk: Desk) -> None:
    single = submit(desk)["id"]
    array = submit(desk, "a", options={"array": "4-6"})
    desk.ask("POST", f"/api/v1/jobs/{array['elements'][0]}/cancel")
    jobs = desk.ask("GET", "/api/v1/jobs?collapsed=true").json["jobs"]
    assert {job["id"]: job["array_states"] for job in jobs} == {
        array["elements"][0]: {"PENDING": 2, "CANCELLED": 1},
        single: {},
    }
    later = desk.ask("GET", f"/api/v1/jobs?collapsed=true&after={jobs[0]['id']}").json["jobs"]
    assert later == jobs[1:]
    found = desk.ask("GET", f"/api/v1/jobs?text={single[:14]}").json["jobs"]
    assert [job["id"] for job in found] == [single]


def test_job_routes_halt_and_resume_waiting_job(desk: Desk) -> None:
    job_id = submit(desk)["id"]
    desk.pokes.clear()
    refused = desk.ask("POST", f"/api/v1/jobs/{job_id}/resume", {})
    assert (refused.status, problem(refused).exit_code) == (409, 1)
    assert "is PENDING" in problem(refused).message
    assert desk.ask("POST", f"/api/v1/jobs/{job_id}/halt").json["job"]["state"] == "HALTED"
    assert desk.ask("POST", f"/api/v1/jobs/{job_id}/halt").json["job"]["state"] == "HALTED"
    wrong = desk.ask("POST", f"/api/v1/jobs/{job_id}/resume", {"gpus": -1})
    assert (wrong.status, problem(wrong).exit_code) == (400, 2)
    resumed = desk.ask("POST", f"/api/v1/jobs/{job_id}/resume", {"gpus": 2, "time": "1-00"}).json["job"]
    assert (resumed["state"], resumed["gpus"]) == ("PENDING", 2.0)
    reply = desk.ask("POST", f"/api/v1/jobs/{job_id}/drill", {"event": "timeout"})
    assert (reply.status, "PROCESSING" in problem(reply).message) == (409, True)
    events = desk.ask("GET", f"/api/v1/jobs/{job_id}/events").json["events"]
    states = [("PENDING", "progress"), ("HALTED", "progress"), ("PENDING", "resumed")]
    assert [(e["state"], e["cause"]) for e in events] == states
    assert desk.pokes == ["poke"] * 3


@pytest.mark.parametrize("file", ["environment.json", "secrets.json"])
def test_resume_route_names_damaged_file_of_job(desk: Desk, file: str) -> None:
    job_id = submit(desk)["id"]
    desk.ask("POST", f"/api/v1/jobs/{job_id}/halt")
    plant_in_place_of(Path(desk.platform.storage.root.job(job_id).path, file), NO_JSON["nested"])
    refused = desk.ask("POST", f"/api/v1/jobs/{job_id}/resume", {})
    assert (refused.status, problem(refused).exit_code) == (503, 69)
    assert f"/{file} is damaged: " in problem(refused).message


def test_drill_route_calls_drill_service(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id = submit(desk)["id"]
    heard: list[tuple[str, str]] = []

    def simulate(_storage: object, _adapters: object, _caller: object, asked: str, event: str) -> JobView:
        heard.append((asked, event))
        return jobs.get_job(desk.platform.storage, desk.platform.adapters, Caller(OWN_UID), asked)

    monkeypatch.setattr("ffdl_batch.daemon.routes.jobs.simulate", simulate)
    assert desk.ask("POST", f"/api/v1/jobs/{job_id}/drill", {"event": "node-fail"}).json["job"]["id"] == job_id
    assert heard == [(job_id, "node-fail")]


def test_submit_route_distinguishes_usage_error_from_manifest_error(desk: Desk) -> None:
    wrong: dict[str, Any] = {"options": {"time": "soon"}}
    assert submit(desk, **wrong)["problem"]["exit_code"] == 2
    planned = desk.ask("POST", "/api/v1/plan", {"submission": submission("p", DIGEST) | wrong})
    assert (planned.status, problem(planned).exit_code) == (422, 2)
    assert submit(desk, "k2", manifest="name: x\n", **wrong)["problem"]["exit_code"] == 78
    assert submit(desk, "k3", environment_options={"time": "soon"})["problem"]["exit_code"] == 78


@pytest.mark.parametrize(("count", "status"), [(500, 200), (501, 400)])
def test_submit_route_rejects_more_than_500_submissions(desk: Desk, count: int, status: int) -> None:
    body = {"submissions": [submission(f"k{number}", DIGEST) for number in range(count)]}
    answer = desk.ask("POST", "/api/v1/jobs", body)
    assert answer.status == status
    assert status == 200 or "submissions" in problem(answer).message


def test_archive_routes_store_each_archive_once(desk: Desk) -> None:
    assert desk.ask("HEAD", f"/api/v1/archives/{DIGEST}").status == 404
    assert desk.ask("PUT", f"/api/v1/archives/{DIGEST}", model_zip()).json == {"new": True, "schema": 1}
    assert desk.ask("PUT", f"/api/v1/archives/{DIGEST}", model_zip()).json["new"] is False
    assert desk.ask("HEAD", f"/api/v1/archives/{DIGEST}").status == 200
    assert problem(desk.ask("PUT", f"/api/v1/archives/{'0' * 64}", b"no zip")).exit_code == 78
    assert desk.ask("PUT", "/api/v1/archives/../../etc", b"").status in (400, 404)
    assert desk.ask("HEAD", f"/api/v1/archives/{DIGEST.upper()}").status == 400


@pytest.mark.parametrize(
    ("method", "target", "body", "status", "word"),
    [
        ("POST", "/api/v1/jobs", b"{", 400, "JSON"),
        ("POST", "/api/v1/jobs", b"[" * 200_000, 400, ""),
        ("POST", "/api/v1/jobs", b'{"submissions": [{"manifest": "\\ud800"}]}', 400, "manifest"),
        ("POST", "/api/v1/jobs", {"submissions": [{"manifest": 3}]}, 400, "submissions[0]"),
        ("POST", "/api/v1/jobs", {"submissions": []}, 400, "submissions"),
        ("GET", "/api/v1/jobs?limit=0", None, 400, "limit"),
        ("GET", "/api/v1/reports/usage?since=5&until=5", None, 400, "the period is empty"),
        ("GET", "/api/v1/jobs?state=SLEEPING", None, 400, "PENDING"),
        ("GET", "/api/v1/jobs/training-000000000/wait?wait_s=31", None, 400, "wait_s"),
        ("GET", "/api/v1/jobs/training-000000000", None, 404, "training-000000000"),
        ("GET", "/api/v1/jobs/..%2f..%2fetc", None, 404, ""),
        ("POST", "/api/v1/jobs/training-000000000/halt", None, 404, "training-000000000"),
        ("POST", "/api/v1/jobs/training-000000000/resume", {}, 404, "training-000000000"),
        ("POST", "/api/v1/jobs/training-000000000/resume", {"gpus": "many"}, 400, "gpus"),
        ("POST", "/api/v1/jobs/training-000000000/resume", None, 400, "body"),
        ("POST", "/api/v1/jobs/training-000000000/drill", {"event": "halt"}, 404, "training-000000000"),
        ("POST", "/api/v1/jobs/training-000000000/drill", {"event": "flood"}, 400, "node-fail"),
        ("GET", "/docs", None, 404, "/docs"),
    ],
)
def test_routes_return_problem_for_invalid_requests(
    desk: Desk, method: str, target: str, body: Any, status: int, word: str
) -> None:
    answer = desk.ask(method, target, body)
    assert answer.status == status
    found = problem(answer)
    assert word in found.message
    assert found.exit_code != 0


def test_job_route_lists_learners_only_if_several_and_readable(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id = submit(desk)["id"]

    def away(*_: object) -> tuple[LearnerView, ...]:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(job_routes, "learners_of", away)
    assert desk.ask("GET", f"/api/v1/jobs/{job_id}").json["job"]["learner_list"] == []
    monkeypatch.setattr(job_routes, "learners_of", lambda *_: (LearnerView(1, "running"),))
    assert desk.ask("GET", f"/api/v1/jobs/{job_id}").json["job"]["learner_list"] == []  # it has one
    found = jobs.get_job

    def two(*given: Any) -> JobView:
        return replace(found(*given), learners=2)

    monkeypatch.setattr(job_routes, "get_job", two)
    (one,) = desk.ask("GET", f"/api/v1/jobs/{job_id}").json["job"]["learner_list"]
    assert (one["number"], one["state"]) == (1, "running")
    monkeypatch.setattr(job_routes, "learners_of", away)
    answer = desk.ask("GET", f"/api/v1/jobs/{job_id}")
    assert (answer.status, answer.json["job"]["learner_list"]) == (200, [])


def test_health_route_answers_without_database(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def away() -> int:
        raise StoreUnavailable("the server cannot be reached")

    monkeypatch.setattr(desk.platform.storage.store, "count_live", away)
    found = from_plain(Health, desk.ask("GET", "/api/v1/health").json)
    assert (found.pid, found.live_jobs) == (os.getpid(), None)
    assert found.database_outage is not None and found.database_outage.detail == "the server cannot be reached"


def test_routes_report_read_only_database(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id = submit(desk)["id"]
    paths = ("/api/v1/jobs", f"/api/v1/jobs/{job_id}", "/api/v1/health")
    assert [desk.ask("GET", path).json["database_outage"] for path in paths] == [None] * 3
    monkeypatch.setattr(Store, "outage", DatabaseOutage(5.0, "it is read-only"))
    for path in paths:
        told = {"since": 5.0, "detail": "it is read-only"}
        assert desk.ask("GET", path).json["database_outage"] == told


DAMAGED = "the database /x is damaged: restore it"


@pytest.mark.parametrize(
    ("error", "code", "named", "cure"),
    [
        (StoreUnavailable("the disk is full"), 75, "the disk is full", ""),
        (DatabaseDamaged(DAMAGED), 69, DAMAGED, ""),  # as a daemon that finds it so at its start
        (RuntimeError("can't start new thread"), 75, "ulimit -u or -v", "ffdl daemon restart"),
        (ImportError("libm.so: failed to map segment from shared object"), 75, "ulimit -v", "ffdl daemon restart"),
        (MemoryError(), 75, "not enough memory", "ffdl daemon restart"),
    ],
)
def test_routes_return_503_with_exit_status_if_database_memory_or_threads_are_lacking(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, error: Exception, code: int, named: str, cure: str
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(desk.platform.storage.store, "get", fail)
    answer = desk.ask("GET", "/api/v1/jobs/training-000000000")
    found = problem(answer)
    assert (answer.status, found.exit_code) == (503, code)
    if cure:
        assert "the daemon" in found.message and named in found.message and cure in found.cure
    else:
        assert found.message == named


def test_routes_name_log_for_unexpected_error_and_raise_it_again(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(desk.platform.storage.store, "get", Mock(side_effect=RuntimeError("a secret detail")))
    with pytest.raises(RuntimeError):  # for uvicorn to write to the log
        desk.ask("GET", "/api/v1/jobs/training-000000000")
    assert desk.answer is not None and (desk.answer.status, problem(desk.answer).exit_code) == (500, ExitCode.FAILED)
    assert "the traceback is in /x/daemon.log" in problem(desk.answer).message
    assert "a secret detail" not in str(desk.answer.json)


def test_job_route_preserves_lone_surrogates(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id = submit(desk)["id"]
    view = replace(
        jobs.get_job(desk.platform.storage, desk.platform.adapters, Caller(OWN_UID), job_id), message="\udcff"
    )
    monkeypatch.setattr("ffdl_batch.daemon.routes.jobs.get_job", lambda *_: view)
    assert desk.ask("GET", f"/api/v1/jobs/{job_id}").json["job"]["message"] == "\udcff"


EXPECTED = """
/health GET
/states GET
/secrets GET
/secrets/{name} PUT DELETE
/archives/{digest} HEAD PUT
/plan POST
/outlook POST
/advice POST
/jobs GET POST
/jobs/{job_id} GET DELETE
/jobs/{job_id}/why GET
/jobs/{job_id}/attach GET
/jobs/{job_id}/attach/stream GET
/jobs/{job_id}/events GET
/jobs/{job_id}/logs GET
/jobs/{job_id}/metrics GET
/jobs/{job_id}/usage GET
/jobs/{job_id}/output/{kind} GET
/jobs/{job_id}/output/{kind}/files GET
/jobs/{job_id}/support GET
/jobs/{job_id}/wait GET
/jobs/{job_id}/cancel POST
/jobs/{job_id}/halt POST
/jobs/{job_id}/resume POST
/jobs/{job_id}/drill POST
/jobs/{job_id}/size GET
/scaler GET
/scaler/decisions GET
/scaler/{name}/pause POST
/scaler/{name}/resume POST
/arrays/{array_id} GET
/arrays/{array_id}/wait GET
/arrays/{array_id}/cancel POST
/arrays/{array_id}/halt POST
/reports/faults GET
/reports/nodes GET
/reports/usage GET
/reports/usage/jobs GET
/reports/usage/agreement GET
/tokens GET POST
/tokens/{token_id} DELETE
/logins POST
/trusted-logins POST
/whoami GET
/v1/models GET POST
/v1/models/{model_id} GET DELETE PATCH
/v1/models/{model_id}/definition GET
/v1/models/{model_id}/trained_model GET
/v1/models/{model_id}/logs GET
/v1/logs/{model_id}/loglines GET
/v1/logs/{model_id}/emetrics GET
"""


def test_openapi_document_describes_every_route_and_resolves_references(desk: Desk) -> None:
    document = desk.ask("GET", "/openapi.json").json
    described = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    routes = (line.split() for line in EXPECTED.strip().splitlines())
    expected = {
        (method, path if path.startswith("/v1/") else f"/api/v1{path}")
        for path, *methods in routes
        for method in methods
    }
    served = {
        (method, route.path)
        for module in (*ROUTES, ffdl_api)
        for route in module.router.routes
        if isinstance(route, APIRoute)
        for method in route.methods or ()
    }
    assert expected == served
    assert described == {*expected, ("GET", "/metrics")}
    operations = [o for methods in document["paths"].values() for o in methods.values()]
    assert len({o["operationId"] for o in operations}) == len(operations)
    for operation in operations:
        assert {"400", "401", "403", "500", "503"} <= set(operation["responses"])
    jsonschema.Draft202012Validator.check_schema({"$defs": document["components"]["schemas"]})
    schemas = document["components"]["schemas"]
    assert {"JobView", "Problem", "Submission", "PlanView", "EventView", "Health"} <= set(schemas)
    assert {"AttemptView", "Resume", "DrillRequest"} <= set(schemas)
    assert schemas["DrillEvent"]["enum"] == ["halt", "timeout", "preempt", "node-fail"]
    assert "HTTPValidationError" not in schemas
    for reference in references(document):
        assert reference.removeprefix("#/components/schemas/") in schemas


def references(value: Any) -> list[str]:
    """Every `$ref` below `value`."""
    if isinstance(value, dict):
        own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
        return own + [r for v in value.values() for r in references(v)]
    return [r for v in value for r in references(v)] if isinstance(value, list) else []


def test_routes_build_no_reply_model_before_openapi_document_is_requested() -> None:
    routes = [route for module in ROUTES for route in module.router.routes if isinstance(route, APIRoute)]
    assert routes
    assert not any(route.response_field or route.response_fields for route in routes)
    described = [route for module in ROUTES for route in module.router.documented() if isinstance(route, APIRoute)]
    assert len(described) == len(routes)
    assert all(route.response_fields for route in described if route.methods != {"HEAD"})


def test_replies_match_openapi_schemas(desk: Desk) -> None:
    document = desk.ask("GET", "/openapi.json").json
    job_id = submit(desk)["id"]
    array_id = submit(desk, "a", options={"array": "0-2"})["id"]
    replies = {
        "ArrayReply": f"/api/v1/arrays/{array_id}",
        "JobReply": f"/api/v1/jobs/{job_id}",
        "JobsReply": "/api/v1/jobs",
        "EventsReply": f"/api/v1/jobs/{job_id}/events",
        "Health": "/api/v1/health",
        "SecretsReply": "/api/v1/secrets",
        "ErrorReply": "/api/v1/arrays/none",
    }
    for name, target in replies.items():
        schema = {"$ref": f"#/components/schemas/{name}", "components": document["components"]}
        jsonschema.validate(desk.ask("GET", target).json, schema)
