"""`make fuzz-api`: thousands of requests from the OpenAPI document to a real daemon with the local backend.

    python -m tests.proof.api [--cases N] [--seed N] [--database both|sqlite|postgres]

Schemathesis makes valid and invalid requests for each operation. Half of those that name a job, an array or a secret
name an existing one, and half of the submissions are a valid one with one value replaced.

Prints each kind of server error with its first request, and a line with the counts for each database and for all.
Server errors are replies with status 5xx, streams that break off, error replies in another form than `ErrorReply`, and
tracebacks in the daemon's log. Exit status 1 on any of them.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import http.client
import json
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import requests
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable

from tests.contract.daemon_rig import PLAIN, Site, UnixHttp, model_zip, site_in, submission, until
from tests.postgres import running_postgres

CASES = 6000
REPLY_S = 60.0
BROKEN_OFF = 599
"""Status that represents a stream that broke off."""
_NUMBERS = (
    "-1", "0", "1", "2147483648", "9223372036854775807", "9223372036854775808", "1e19", "1e308", "1e400", "-1e400",
    "nan", "inf", "9" * 400, "9" * 5000, "1.5", "0x10", "0-9223372036854775808", "1-9999999999", "9999999999-00:00:00",
    "9999999999999999999GiB", "now+9999999999999hours", "\0", "9223372036854775808.1:9", "1.1:999999999999999999",
)  # fmt: skip
_OPTIONS = (
    "array", "begin", "comment", "cpus", "cpus-per-task", "dependency", "gpus", "gres", "job-name", "learners", "mem",
    "nodelist", "output", "signal", "time",
)  # fmt: skip
_KEYS = (
    "name", "cpus", "gpus", "memory", "learners", "batch.time", "batch.array", "batch.begin", "batch.priority",
    "batch.signal", "batch.gres", "batch.health.hang_s", "batch.retry.failures", "batch.checkpoint.lead_s",
)  # fmt: skip
_SUBMISSIONS = ("submit", "plan", "outlook")
_ENDING = ("cancel", "halt", "cancel_array", "halt_array", "ffdl_delete_model", "ffdl_patch_model")
"""Operations that run last, because the others need running jobs."""
_FORM = "ffdl_create_model"
"""The operation whose body is a form with a manifest and an archive."""


@dataclass(slots=True)
class Tally:
    """Counts the requests to one daemon, and the replies that are server errors."""

    cases: int = 0
    errors: dict[str, str] = field(default_factory=dict)
    """The first request of each kind of error."""
    counts: dict[str, int] = field(default_factory=dict)
    statuses: dict[int, int] = field(default_factory=dict)

    def add(self, operation: str, status: int, body: bytes, request: str) -> None:
        """Count one reply."""
        self.cases += 1
        self.statuses[status] = self.statuses.get(status, 0) + 1
        if status >= 500:
            self._error(f"{operation}: {status} {body[:200]!r}", request)
        elif status >= 400 and body and not is_error_reply(body, of_ffdl=" /v1/" in operation):
            self._error(f"{operation}: {status} in another form: {body[:200]!r}", request)

    def _error(self, kind: str, request: str) -> None:
        self.errors.setdefault(kind, request)
        self.counts[kind] = self.counts.get(kind, 0) + 1

    def check_log(self, log: str) -> None:
        """Count a traceback in the daemon's log."""
        if "Traceback" in log:
            self._error("traceback", log[log.index("Traceback") :][:4000])

    def line(self) -> str:
        """The counts."""
        statuses = " ".join(f"{status}:{count}" for status, count in sorted(self.statuses.items()))
        return f"cases {self.cases} server errors {sum(self.counts.values())} (replies {statuses})"


def is_error_reply(body: bytes, *, of_ffdl: bool = False) -> bool:
    """Return whether an error has the form that the OpenAPI document promises."""
    try:
        return set(json.loads(body)) == ({"code", "error", "description"} if of_ffdl else {"problem", "schema"})
    except ValueError:
        return False


def main(arguments: Sequence[str] | None = None) -> int:
    """Fuzz one daemon for each database."""
    parser = argparse.ArgumentParser(prog="python -m tests.proof.api", description=__doc__.partition("\n")[0])
    parser.add_argument("--cases", type=int, default=CASES, metavar="N", help=f"for both databases together ({CASES})")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of the requests (1)")
    parser.add_argument("--database", choices=("both", "sqlite", "postgres"), default="both", help="(both)")
    options = parser.parse_args(arguments)
    chosen = ("sqlite", "postgres") if options.database == "both" else (options.database,)
    cases = errors = 0
    for database in chosen:
        with _site(database) as site:
            tally = fuzz(site, options.cases // len(chosen), options.seed)
        for kind, request in tally.errors.items():
            print(f"{kind}, {tally.counts[kind]} times, first: {request}", file=sys.stderr)
        print(f"{database}: {tally.line()}", flush=True)
        cases, errors = cases + tally.cases, errors + sum(tally.counts.values())
    print(f"cases {cases} server errors {errors}")
    return 0 if cases and not errors else 1


@contextlib.contextmanager
def _site(database: str) -> Iterator[Site]:
    """Start a daemon whose local backend runs one job at a time."""
    with contextlib.ExitStack() as stack:
        base = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ffdl-fuzz-")))
        (base / "ffdl.toml").write_text("[backend.local]\nmax_jobs = 1\n")
        environment = {"FFDL_BACKEND": "local", "FFDL_CONFIG": str(base / "ffdl.toml")}
        if database == "postgres":
            server = stack.enter_context(running_postgres())
            environment["FFDL_DATABASE_URL"] = server.url(server.create_database())
        site = stack.enter_context(site_in(base, more_environment=environment))
        site.start(program=PLAIN)
        yield site


def fuzz(site: Site, cases: int, number: int) -> Tally:
    """Send about `cases` requests, the same ones for the same `number`, with a job that runs and one that has ended."""
    import schemathesis  # the tests of the counts do not need it
    from schemathesis import GenerationMode

    tally, document = Tally(), site.ask("GET", "/openapi.json")[1]
    schemathesis.openapi.media_type("application/zip", _archives())
    schema = schemathesis.openapi.from_dict(document)
    schema.config.generation.update(modes=list(GenerationMode))
    results: Iterable[Any] = schema.get_all_operations()  # of a faulty operation `ok` raises AttributeError
    operations = sorted(
        (found.ok() for found in results), key=lambda one: one.definition.raw.get("operationId") in _ENDING
    )
    ended, running = _submit(site, "ended", "true"), _submit(site, "running", "sleep 3600")
    until(lambda: site.state_of(ended) == "COMPLETED", "the first job to end")
    array = str(_result(site, "array", "true", {"array": "0-2"})["id"])
    jobs = (ended, running)
    known = Known(document, {"job_id": jobs, "model_id": jobs, "array_id": (array,), "name": ("token",)})
    try:
        for operation in operations:
            for mode in GenerationMode:
                count = max(1, cases // (len(operations) * len(GenerationMode)))
                _run(site, tally, known, operation, operation.as_strategy(generation_mode=mode), count, number)
    finally:
        _cancel(site, [job["id"] for job in site.ask("GET", "/api/v1/jobs?limit=10000")[1]["jobs"]])
        until(lambda: not site.ask("GET", "/api/v1/health")[1]["live_jobs"], "all jobs to end")
    tally.check_log(site.log)
    return tally


def _run(site: Site, tally: Tally, known: Known, operation: Any, cases: Any, count: int, number: int) -> None:
    @seed(number)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=cases, data=st.data())
    def send(case: Any, data: Any) -> None:
        known.put_into(case, operation, data.draw)
        parts = case.as_transport_kwargs(base_url="http://ffdl")
        if "json" in parts:  # also with NaN and lone surrogates, which requests refuses
            parts["data"] = json.dumps(parts.pop("json"))
        made = requests.Request(**parts).prepare()
        status, body = ask(site, made)
        tally.add(operation.label, status, body, f"{made.method} {made.path_url} {made.body!r:.2000}")
        if operation.label == "POST /api/v1/jobs" and status == 200:
            results = json.loads(body)["results"]
            _cancel(site, [job for one in results for job in (one["elements"] or [one["id"]]) if job])
        if operation.label == "POST /v1/models" and status == 201:
            _cancel(site, [json.loads(body)["model_id"]])

    with contextlib.suppress(Unsatisfiable):  # an operation without parameters has no invalid requests
        send()


@dataclass(frozen=True, slots=True)
class Known:
    """Existing values in the daemon, by the name of the path parameter."""

    document: Mapping[str, Any]
    values: Mapping[str, Sequence[str]]

    def put_into(self, case: Any, operation: Any, draw: Any) -> None:
        """Replace parts of a generated case by existing values, and limit the time that it waits for news."""
        for name, values in self.values.items():
            if name in (case.path_parameters or {}) and draw(st.booleans()):
                case.path_parameters[name] = draw(st.sampled_from(values))
        names = [parameter.name for parameter in operation.query]
        if names and draw(st.booleans()):
            case.query = {**(case.query or {}), draw(st.sampled_from(names)): draw(st.sampled_from(_NUMBERS))}
        if "wait_s" in names:
            with contextlib.suppress(TypeError, ValueError):
                if 0 <= float((case.query or {}).get("wait_s", 0)) <= 30:
                    case.query = {**(case.query or {}), "wait_s": 0}
        named = operation.definition.raw.get("operationId")
        if named == "put_archive" and isinstance(case.body, bytes) and draw(st.booleans()):
            case.path_parameters["digest"] = hashlib.sha256(case.body).hexdigest()
        if named in _SUBMISSIONS and isinstance(case.body, dict) and draw(st.booleans()):
            one = draw(_altered())
            case.body = {"submissions": [one]} if named == "submit" else {"submission": one}
        if named == _FORM and isinstance(case.body, dict) and draw(st.booleans()):
            manifest = draw(_altered())["manifest"].encode("utf-8", "surrogatepass")
            case.body = {"manifest": manifest, "model_definition": draw(_archives())}


@st.composite
def _archives(draw: Any) -> bytes:
    """Return any bytes, or an archive with some bytes replaced."""
    archive = bytearray(model_zip())
    for place in draw(st.lists(st.integers(0, len(archive) - 1), max_size=4)):
        archive[place] = draw(st.integers(0, 255))
    drawn: bytes = draw(st.sampled_from((bytes(archive), b"")) | st.binary())
    return drawn


@st.composite
def _altered(draw: Any) -> dict[str, Any]:
    """Return a valid submission with one value replaced."""
    one = _valid(draw(st.text(max_size=4)) + draw(st.sampled_from(("", "ended"))), "true")
    value = draw(st.sampled_from(_NUMBERS) | st.text() | st.integers() | st.floats())
    where = draw(st.sampled_from(("field", "option", "key")))
    if where == "field":
        one[draw(st.sampled_from(sorted(one)))] = value
    elif where == "option":
        one["options"] = {draw(st.sampled_from(_OPTIONS)): str(value)}
    else:
        manifest: dict[str, Any] = json.loads(one["manifest"])
        *path, last = draw(st.sampled_from(_KEYS)).split(".")
        place = manifest
        for step in path:
            place = place.setdefault(step, {})
        place[last] = value
        one["manifest"] = json.dumps(manifest)
    return one


def _valid(key: str, command: str) -> dict[str, Any]:
    framework = {"name": "custom", "version": "python-numpy", "command": command}
    digest = hashlib.sha256(model_zip()).hexdigest()
    return {**submission(key, digest), "manifest": json.dumps({"name": "fuzz", "framework": framework}), "backend": ""}


def _cancel(site: Site, jobs: Sequence[str]) -> None:
    """Cancel jobs at once, because each waiting job has a process that polls for its turn."""
    for job in jobs:
        site.ask("POST", f"/api/v1/jobs/{job}/cancel")


def _submit(site: Site, key: str, command: str) -> str:
    return str(_result(site, key, command)["id"])


def _result(site: Site, key: str, command: str, options: Mapping[str, str] | None = None) -> dict[str, Any]:
    archive = model_zip()
    site.ask("PUT", f"/api/v1/archives/{hashlib.sha256(archive).hexdigest()}", archive)
    status, reply = site.ask(
        "POST", "/api/v1/jobs", {"submissions": [_valid(key, command) | {"options": options or {}}]}
    )
    assert status == 200 and reply["results"][0]["id"], reply
    result: dict[str, Any] = reply["results"][0]
    return result


def ask(site: Site, made: requests.PreparedRequest) -> tuple[int, bytes]:
    """Return status and body of one request; no body for a stream that ends with its job."""
    connection = UnixHttp(site.socket)
    connection.timeout = REPLY_S
    try:
        assert made.body is None or isinstance(made.body, str | bytes)
        connection.request(str(made.method), made.path_url, made.body, dict(made.headers))
        response = connection.getresponse()
        is_endless = response.length is None and "follow=" in made.path_url
        return response.status, b"" if is_endless else response.read()
    except http.client.IncompleteRead:
        return BROKEN_OFF, b""
    finally:
        connection.close()


if __name__ == "__main__":
    sys.exit(main())
