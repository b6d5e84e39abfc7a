"""The client's calls against a fake daemon on a real socket."""

from __future__ import annotations

import itertools
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import field
from pathlib import Path
from typing import ClassVar

import pytest

import ffdl_batch
from ffdl_batch.client import (
    Client,
    DaemonUnreachable,
    InputUnusable,
    JobHandle,
    NotAllowed,
    OtherSchema,
    RequestRefused,
    UnknownJob,
    WaitTimedOut,
)
from ffdl_batch.client.api import JobFilter, job_exit_code
from ffdl_batch.client.connection import http_client
from ffdl_batch.client.connection.daemon_start import Dialling
from ffdl_batch.client.connection.http_client import Channel
from ffdl_batch.client.submissions.manifest_source import MAX_MANIFEST_BYTES
from ffdl_batch.config.fingerprint import named_slurm
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.findings import Finding, Severity
from ffdl_batch.domain.job.submission import Expected, SubmissionResult
from ffdl_batch.domain.job.views import EventView, JobView, LogLine, Problem
from ffdl_batch.host.fast_dataclass import dataclass
from tests.unit.client.fake_daemon import FakeDaemon, make_job


@pytest.fixture
def client(daemon: FakeDaemon) -> Iterator[Client]:
    with Client(daemon.path, start=False) as client:
        yield client


def test_submit_takes_file_or_text_uploads_model_once_and_returns_job_handle(
    client: Client, daemon: FakeDaemon, manifest: Path, model: Path
) -> None:
    first = client.submit(manifest, model, time="2h", cpus_per_task=4, hold=True, requeue=False, backend="local")
    second = client.submit(manifest, model)
    assert (first.id, second.id) == ("training-000000001", "training-000000002")
    assert first.network == "none"
    sent = next(iter(daemon.submissions.values()))
    assert sent.options == {"time": "2h", "cpus-per-task": "4", "hold": ""}
    assert (sent.manifest, sent.backend, sent.base_dir) == ("name: digits\n", "local", str(manifest.parent))
    assert sent.expected is Expected.JOB
    assert sent.cluster == named_slurm(os.environ) and sent.utc_offsets
    client.submit("name: x\nlearners: 1\n", model)
    assert list(daemon.submissions.values())[-1].manifest == "name: x\nlearners: 1\n"
    assert sum(request.startswith("PUT") for request in daemon.requests) == 1
    assert repr(first) == "JobHandle(id='training-000000001', warnings=(), network='none')", "without the client"
    assert first.view().id == first.id
    assert first.cancel().requested_action == "cancel"
    client.close()
    assert ffdl_batch.Client is Client


def test_submit_many_sends_600_manifests_in_two_batches_with_one_upload(
    client: Client, daemon: FakeDaemon, manifest: Path, model: Path
) -> None:
    results = client.submit_many([manifest] * 600, model)
    assert [r.id for r in results] == [f"training-{n:09d}" for n in range(1, 601)]
    assert daemon.batches == [500, 100]
    assert sum(request.startswith("PUT") for request in daemon.requests) == 1


def test_submit_creates_no_second_job_after_lost_reply(
    client: Client, daemon: FakeDaemon, manifest: Path, model: Path
) -> None:
    daemon.hang_ups, daemon.hang_up_after_work = 1, True
    assert client.submit(manifest, model).id == "training-000000001"
    assert (daemon.batches, len(daemon.jobs)) == ([1, 1], 1)


def test_client_reconnects_after_daemon_restart(client: Client, daemon: FakeDaemon) -> None:
    assert client.health().version == "9.9"
    daemon.stop()
    daemon.start()
    assert client.health().version == "9.9"


def test_client_raises_daemon_unreachable_if_daemon_always_hangs_up(client: Client, daemon: FakeDaemon) -> None:
    daemon.hang_ups = 100
    with pytest.raises(DaemonUnreachable, match="did not answer GET /api/v1/health") as caught:
        client.health()
    assert caught.value.problem.exit_code == 75


class Noting(socket.socket):
    """Notes how long it is waited for."""

    limits_s: ClassVar[list[float | None]] = []

    def settimeout(self, value: float | None) -> None:
        self.limits_s.append(value)
        super().settimeout(value)


def test_wire_reports_slow_daemon_once(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it holds back on purpose is not slow."""
    monkeypatch.setattr(http_client, "FIRST_BYTE_S", 0.1)
    monkeypatch.setattr(http_client, "_POLL_MARGIN_S", 0.1)
    said: list[str] = []

    def dial() -> http_client.Channel:
        connected = Noting(socket.AF_UNIX)
        connected.connect(str(short_dir / "s"))
        return http_client.DirectChannel(connected)

    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(short_dir / "s"))
        silent.listen()
        rows = ((0.1, None, [0.1], 0), (0.2, 0.3, [0.4], 0), (0.3, None, [0.3, 0.2], 1))
        for timeout_s, held_s, limits_s, words in rows:
            began = time.monotonic()
            Noting.limits_s.clear()
            asked = http_client.Request("GET", "/api/v1/jobs", timeout_s=timeout_s, held_s=held_s)
            with pytest.raises(DaemonUnreachable, match="did not answer"):
                http_client.Wire(dial, said.append).ask(asked)
            assert time.monotonic() - began >= limits_s[0]
            assert Noting.limits_s == pytest.approx(limits_s)
            assert len(said) == words
    waits = "has not answered for 0.1 s (it may be waiting for its scheduler)"
    assert said == [f"the daemon {waits}; waiting up to 0.3 s"]


def test_client_rejects_empty_job_id_and_escapes_others_in_path(client: Client, daemon: FakeDaemon) -> None:
    """As of a variable of a shell that is not set: the path of the request would be another one."""
    for ask in (client.get, client.cancel, client.halt, client.resume, client.wait):
        with pytest.raises(UnknownJob, match="the id is empty"):
            ask("")
    for read in (client.metrics, client.usage):
        with pytest.raises(UnknownJob, match="the id is empty"):
            next(read(""))
    assert daemon.acts == []
    with pytest.raises(UnknownJob):
        client.get("health?x")
    assert daemon.requests == ["GET /api/v1/jobs/health%3Fx"]


@pytest.mark.parametrize("job_id", ["../x", "..", ".", "a/b"])
def test_client_rejects_id_that_would_change_path(client: Client, daemon: FakeDaemon, job_id: str) -> None:
    for ask in (client.get, client.cancel, client.halt, client.resume, client.wait, client.pools.explain):
        with pytest.raises(UnknownJob, match=f"there is no job '{job_id}'"):
            ask(job_id)
    for read in (client.metrics, client.usage, client.events, client.logs):
        with pytest.raises(UnknownJob, match=f"there is no job '{job_id}'"):
            next(iter(read(job_id)))
    with pytest.raises(RequestRefused, match=f"unknown pool '{job_id}'"):
        client.pools.pause(job_id)
    assert daemon.requests == []


def test_client_raises_typed_errors_with_problem(client: Client, daemon: FakeDaemon) -> None:
    problem = Problem("C101", "the job is not yours", 77, "ask its owner")
    daemon.refusals["/api/v1/jobs/training-000000009"] = (403, problem)
    with pytest.raises(NotAllowed) as not_allowed:
        client.get("training-000000009")
    assert not_allowed.value.problem == problem
    with pytest.raises(UnknownJob, match="there is no job training-000000008"):
        client.get("training-000000008")
    with pytest.raises(UnknownJob):
        next(client.logs("training-zzzzzzzzz"))
    daemon.refusals["/api/v1/health"] = (503, None)
    with pytest.raises(RequestRefused) as busy:
        client.health()
    assert busy.value.problem.exit_code == 75


def test_client_rejects_answer_in_other_schema(client: Client, daemon: FakeDaemon) -> None:
    daemon.schema = 2
    with pytest.raises(OtherSchema, match="answers in schema 2, this client reads schema 1") as caught:
        client.list()
    assert caught.value.problem.exit_code == 69


def test_submit_raises_refusal_with_cure(client: Client, daemon: FakeDaemon, manifest: Path, model: Path) -> None:
    daemon.refuse_names = frozenset({str(manifest)})
    with pytest.raises(RequestRefused, match=r"is wrong \(correct it\)") as caught:
        client.submit(manifest, model)
    assert caught.value.problem.exit_code == 78


def test_plan_uploads_no_archive(client: Client, daemon: FakeDaemon, manifest: Path, model: Path) -> None:
    plan = client.plan(manifest, model, trial=True)
    assert (plan.trial, plan.submit_argv[0]) == ("would start at once", "sbatch")
    assert [request.split()[0] for request in daemon.requests] == ["POST"]


def test_list_sends_filter_to_daemon(client: Client, daemon: FakeDaemon) -> None:
    daemon.jobs = {"a": make_job("a"), "b": make_job("b", state="FAILED")}
    which = JobFilter(states=("FAILED", "HALTED"), name="a b", since=5.0, limit=3, all_users=True)
    assert [job.id for job in client.list(which)] == ["b"]
    asked = "state=FAILED&state=HALTED&name=a+b&since=5.000000&limit=3&all_users=true"
    assert daemon.requests == [f"GET /api/v1/jobs?{asked}"]


def test_wait_polls_until_job_has_ended_or_raises_after_timeout(client: Client, daemon: FakeDaemon) -> None:
    daemon.jobs["a"] = make_job("a")
    with pytest.raises(WaitTimedOut, match="a is PROCESSING after 0 s and continues") as caught:
        client.wait("a", 0)
    assert caught.value.problem.exit_code == 124
    daemon.requests.clear()
    answers = iter([make_job("a"), make_job("a"), make_job("a", state="COMPLETED")])
    daemon.on_wait = lambda _: next(answers)
    assert client.wait("a").state == "COMPLETED"
    assert daemon.requests == ["GET /api/v1/jobs/a/wait?wait_s=30"] * 3


@dataclass(frozen=True, slots=True)
class FailingDialling(Dialling):
    """Raises each of `faults` once before it connects."""

    faults: Iterator[DaemonUnreachable] = field(default_factory=lambda: iter(()))

    def dial(self) -> Channel:
        for fault in self.faults:
            raise fault
        return Dialling.dial(self)


def test_wait_keeps_asking_while_daemon_cannot_be_reached(daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "_PAUSE_S", 0.0)
    daemon.jobs["a"] = make_job("a", state="COMPLETED")
    told: list[str] = []
    faults = iter([DaemonUnreachable("it is away")] * 3)
    client = Client(dialling=FailingDialling(socket_path=daemon.path, start=False, report=told.append, faults=faults))
    assert client.wait("a").state == "COMPLETED"
    assert told == ["it is away; trying again until the daemon answers"]


def test_wait_keeps_asking_while_daemon_answers_503(
    client: Client, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon.jobs["a"] = make_job("a", state="COMPLETED")
    daemon.refusals["/api/v1/jobs"] = (503, None)
    monkeypatch.setattr(time, "sleep", lambda _: daemon.refusals.clear())
    with pytest.warns(RuntimeWarning, match="trying again"):
        assert client.wait("a").state == "COMPLETED"


@pytest.mark.parametrize("code", [ExitCode.UNAVAILABLE, ExitCode.NOT_ALLOWED])
def test_wait_raises_if_later_try_cannot_help(daemon: FakeDaemon, code: ExitCode) -> None:
    faults = iter([DaemonUnreachable("it is another's", "", code)])
    client = Client(dialling=FailingDialling(socket_path=daemon.path, start=False, faults=faults))
    with pytest.raises(DaemonUnreachable, match="it is another's"):
        client.wait("a")


def test_wait_raises_at_timeout_while_daemon_does_not_answer(daemon: FakeDaemon) -> None:
    faults = itertools.repeat(DaemonUnreachable("it is away"))
    client = Client(dialling=FailingDialling(socket_path=daemon.path, start=False, faults=faults))
    with pytest.raises(DaemonUnreachable, match="it is away"):
        client.wait("a", 0)


@pytest.mark.parametrize(
    ("job", "code"),
    [
        (make_job(state="COMPLETED", exit_code=0), 0),
        (make_job(state="FAILED", exit_code=3), 3),
        (make_job(state="FAILED", exit_signal=9), 137),
        (make_job(state="FAILED"), 1),
        (make_job(state="FAILED", exit_code=0), 1),
        (make_job(state="CANCELLED"), 1),
        (make_job(state="HALTED", exit_code=0), 1),
        (make_job(state="HALTED", exit_signal=12), 1),
        (make_job(state="FAILED", error_code="C203", exit_code=143), 124),
        (make_job(state="FAILED", error_code="C203", exit_signal=9), 124),
        (make_job(state="FAILED", error_code="C201", exit_code=3), 3),
    ],
)
def test_job_exit_code_maps_state_error_exit_code_and_signal(job: JobView, code: int) -> None:
    assert job_exit_code(job) == code


def test_events_follow_reads_until_job_has_ended_or_raises_after_timeout(client: Client, daemon: FakeDaemon) -> None:
    daemon.jobs["a"] = make_job("a")
    daemon.events = [EventView("a", n, float(n), "QUEUED", 1, "progress") for n in (1, 2, 3)]
    events = client.events("a", follow=True, timeout_s=0)
    assert [next(events).seq for _ in range(3)] == [1, 2, 3]
    with pytest.raises(WaitTimedOut, match="a has not ended, and nothing has happened") as caught:
        next(events)
    assert caught.value.problem.exit_code == 124
    daemon.jobs["a"] = make_job("a", state="COMPLETED")
    assert [event.seq for event in client.events("a", follow=True, timeout_s=0)] == [1, 2, 3]
    assert [event.seq for event in client.events("a", follow=True, after=1)] == [2, 3]
    assert daemon.requests[-1] == "GET /api/v1/jobs/a/events?after=3&wait_s=0"


def test_logs_resumes_broken_stream_without_repeating_lines(client: Client, daemon: FakeDaemon) -> None:
    daemon.jobs["a"] = make_job("a", learners=2)
    daemon.lines = [LogLine(n % 2 + 1, n // 2 + 1, f"line {n}") for n in range(10)]
    daemon.break_log_after = 5
    got = [line.line for line in client.logs("a", follow=True, tail=10)]
    assert got == [f"line {n}" for n in range(10)]
    assert daemon.requests == ["GET /api/v1/jobs/a/logs?follow=true&tail=10", "GET /api/v1/jobs/a/logs?follow=true"]


def test_client_answers_other_calls_while_log_is_read(client: Client, daemon: FakeDaemon) -> None:
    daemon.jobs["a"] = make_job("a")
    daemon.lines = [LogLine(1, n, "x" * 100_000) for n in range(1, 30)]
    lines = client.logs("a")
    assert next(lines).index == 1
    assert client.get("a").id == "a"
    assert [line.index for line in lines] == list(range(2, 30))


def test_job_handle_sends_halt_resume_and_drill_arguments(client: Client, daemon: FakeDaemon) -> None:
    daemon.jobs["a"] = make_job("a")
    handle = JobHandle(client, "a")
    assert handle.halt().requested_action == "halt"
    assert handle.resume(gpus=2, time="1-00", learners=4, global_batch=512).id == "a"
    assert client.resume("a").id == "a"
    assert handle.drill("node-fail").id == "a"
    assert daemon.acts == [
        ("halt", "a", None),
        ("resume", "a", {"gpus": 2.0, "time": "1-00", "learners": 4, "global_batch": 512}),
        ("resume", "a", {"gpus": None, "time": None, "learners": None, "global_batch": None}),
        ("drill", "a", {"event": "node-fail"}),
    ]
    with pytest.raises(UnknownJob, match="there is no job nope"):
        client.resume("nope")


@pytest.mark.parametrize(
    ("content", "message", "code"),
    [
        (b"name: \xff\n", r"is not UTF-8 text: byte 6 is \\xff", 78),
        (b"x" * (MAX_MANIFEST_BYTES + 1), "has more than 1 MiB, the maximum", 78),
        (None, "there is no such file", 66),
    ],
)
def test_submit_rejects_unusable_manifest_before_any_request(
    client: Client, daemon: FakeDaemon, model: Path, tmp_path: Path, content: bytes | None, message: str, code: int
) -> None:
    path = tmp_path / "bad.yml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputUnusable, match=message) as caught:
        client.submit(path, model)
    assert caught.value.problem.exit_code == code
    assert "MiB" not in message or "is this the manifest?" in caught.value.problem.cure
    assert daemon.requests == []


def test_submit_sends_exported_values_apart_from_option(
    client: Client, daemon: FakeDaemon, manifest: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINE", "1")
    client.submit(manifest, model, export="MINE,TOKEN=secret")
    sent = next(iter(daemon.submissions.values()))
    assert sent.environ == {"MINE": "1", "TOKEN": "secret"}
    assert sent.options == {"export": "MINE,TOKEN"}


def test_submit_and_plan_report_only_wrong_option_as_python_keyword(
    client: Client, daemon: FakeDaemon, manifest: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = "this option is not taken; --cpus-per-task is"
    finding = Finding(Severity.ERROR, message, "did you mean --partition?", path="--partiton")
    problem = Problem("C101", str(finding), 2, findings=(finding,))
    monkeypatch.setattr(daemon, "accept", lambda _: SubmissionResult(problem=problem))
    with pytest.raises(RequestRefused) as refused:
        client.submit(manifest, model, partiton="gpu")  # type: ignore[call-arg]
    said = "error: partiton: this option is not taken; cpus_per_task is (did you mean partition?)"
    assert str(refused.value) == said
    daemon.refusals["/api/v1/plan"] = (422, problem)
    with pytest.raises(RequestRefused, match=r"^error: partiton: "):
        client.plan(manifest, model, partiton="gpu")  # type: ignore[call-arg]
    finding = Finding(Severity.ERROR, "give --signal to train", file="m.yml", line=3, path="framework.command")
    problem = Problem("C101", str(finding), 78, findings=(finding,))
    with pytest.raises(RequestRefused, match="give --signal to train"):  # of a manifest: it stays as it is
        client.submit(manifest, model)


def test_client_takes_default_backend_from_environment(daemon: FakeDaemon, manifest: Path, model: Path) -> None:
    client = Client(dialling=Dialling(environ={"FFDL_BACKEND": "slurm"}, socket_path=daemon.path, start=False))
    client.submit(manifest, model)
    client.submit(manifest, model, backend="local")
    assert [sent.backend for sent in daemon.submissions.values()] == ["slurm", "local"]


def test_channel_close_ends_connection_while_reply_is_held() -> None:
    """An interrupted command's frames hold it, and a socket only ends with all that is made of it."""
    ours, theirs = socket.socketpair()
    theirs.settimeout(5)
    with ours.makefile("rb"), theirs:
        http_client.DirectChannel(ours).close()
        assert theirs.recv(1) == b""
    http_client.DirectChannel(ours).close()
