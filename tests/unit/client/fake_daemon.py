"""A daemon made of the standard library: the HTTP contract over a real Unix socket, with faults on demand."""

from __future__ import annotations

import hashlib
import io
import json
import threading
import zipfile
from collections import Counter
from collections.abc import Callable
from dataclasses import field, replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingUnixStreamServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from ffdl_batch.domain.codec import from_plain, to_plain
from ffdl_batch.domain.daemon_health import BackendHealth, DatabaseOutage, Health
from ffdl_batch.domain.job.log_text import LogText, encode_text
from ffdl_batch.domain.job.submission import Submission, SubmissionResult
from ffdl_batch.domain.job.views import (
    SCHEMA,
    ArrayView,
    EventView,
    JobView,
    LogLine,
    OutputView,
    PlannedFileView,
    PlanView,
    Problem,
)
from ffdl_batch.domain.metrics.advice import Advice
from ffdl_batch.domain.pending.explanation import Outlook, WhyView
from ffdl_batch.host.fast_dataclass import dataclass


def make_job(job_id: str = "training-000000001", **changes: Any) -> JobView:
    """A job that runs, changed where a test wants it."""
    job = JobView(
        id=job_id, name="digits", user="alice", state="PROCESSING", requested_action="none", backend="slurm",
        native_id="4711",
        attempt=1, framework="pytorch", framework_version="debian", learners=1, cpus=2.0, gpus=1.0, gpu_type="",
        memory_bytes=8 * 1000**3, submitted_at=1_800_000_000.0, updated_at=1_800_000_010.0, nodes="n1",
        network_requested="auto", network="none",
    )  # fmt: skip
    return replace(job, **changes)


def make_plan(submission: Submission, *, trial: bool = False) -> PlanView:
    """What a fake adapter would send."""
    script = "#!/bin/bash\nexec head\n"
    files = (PlannedFileView("script", script, 0o700), PlannedFileView("launch.json", "{}", 0o600))
    return PlanView(
        backend=submission.backend or "slurm", script=script, submit_argv=("sbatch", "--job-name=a b"),
        learner_argv=("apptainer", "exec", "{image}"), environment={"A": "x y"}, files=files,
        network_requested="auto", network="none", warnings=("a warning",),
        trial="would start at once" if trial else "",
    )  # fmt: skip


def text_of(line: LogLine) -> LogText:
    """Return one line as a value of a log stream."""
    return LogText(line.learner, line.index, line.line, line.at, line.attempt, line.offset, line.end, line.partial)


@dataclass
class FakeDaemon:
    """State and faults. `acts` are halts, resumes and drills with their bodies; `on_act` hears of each first.

    `elements`: how many jobs each submission is an array of (0 = it is a job). `backend` is where they run.
    `output` is the output of jobs, `files` its tar, of which `files_cut_at` bytes come.
    `hang_ups`: requests to drop without an answer. `refusals`: path prefix → (status, problem).
    """

    path: Path
    archives: dict[str, bytes] = field(default_factory=dict)
    submissions: dict[str, Submission] = field(default_factory=dict)
    jobs: dict[str, JobView] = field(default_factory=dict)
    events: list[EventView] = field(default_factory=list)
    lines: list[LogLine] = field(default_factory=list)
    texts: list[LogText] = field(default_factory=list)
    """What is sent instead of lines to who takes it."""
    measured: dict[str, list[str]] = field(default_factory=dict)
    """Lines by the end of the request's path, as ``<id>/metrics``."""
    reports: dict[str, dict[str, Any] | list[str]] = field(default_factory=dict)
    """Replies, or lines of a stream, by the end of the request's path, as ``usage``."""
    requests: list[str] = field(default_factory=list)
    batches: list[int] = field(default_factory=list)
    elements: int = 0
    hang_ups: int = 0
    hang_up_after_work: bool = False
    break_log_after: int | None = None
    refusals: dict[str, tuple[int, Problem | None]] = field(default_factory=dict)
    output: OutputView | None = None
    files: bytes = b""
    files_cut_at: int | None = None
    refuse_names: frozenset[str] = frozenset()
    acts: list[tuple[str, str, Any]] = field(default_factory=list)
    on_act: Callable[[str, str], None] | None = None
    schema: int = SCHEMA
    outages: tuple[BackendHealth, ...] = ()
    backend: str = "slurm"
    trouble: DatabaseOutage | None = None
    on_wait: Callable[[str], JobView] | None = None
    whys: dict[str, WhyView] = field(default_factory=dict)
    outlook: Outlook | None = None
    advice: Advice | None = None
    server: ThreadingUnixStreamServer | None = None
    thread: threading.Thread | None = None

    def start(self) -> FakeDaemon:
        """Listen and serve in a thread."""
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.server = ThreadingUnixStreamServer(str(self.path), _handler(self))
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True)
        self.thread.start()
        return self

    def stop(self) -> None:
        """Stop listening; the socket's file goes."""
        if self.server and self.thread:
            self.server.shutdown()
            self.server.server_close()
            self.thread.join(5)
            self.path.unlink(missing_ok=True)
            self.server = None

    def accept(self, submission: Submission) -> SubmissionResult:
        """One job per key."""
        if submission.manifest_name in self.refuse_names:
            return SubmissionResult(problem=Problem("C101", f"{submission.manifest_name} is wrong", 78, "correct it"))
        if submission.archive not in self.archives:
            return SubmissionResult(problem=Problem("C102", "the archive was never uploaded", 66))
        known = list(self.submissions)
        if submission.key not in known:
            self.submissions[submission.key] = submission
            known.append(submission.key)
        number = known.index(submission.key) + 1
        if self.elements:
            return self._accept_array(f"array-{number:09d}")
        job_id = f"training-{number:09d}"
        self.jobs.setdefault(job_id, make_job(job_id, backend=self.backend))
        return SubmissionResult(id=job_id, network="none", backend=self.backend)

    def _accept_array(self, array: str) -> SubmissionResult:
        ids = tuple(f"training-{array[9:]}{index:03d}" for index in range(self.elements))
        for index, job_id in enumerate(ids):
            self.jobs.setdefault(job_id, make_job(job_id, name=f"digits[{index}]", array=array, array_index=index))
        return SubmissionResult(id=array, network="none", elements=ids, backend=self.backend)

    def array(self, array: str) -> ArrayView | None:
        """What its jobs come to."""
        jobs = [job for job in self.jobs.values() if job.array == array]
        if not jobs:
            return None
        states = Counter(job.state for job in jobs)
        ended = all(job.ended_at is not None for job in jobs)
        return ArrayView(array, "digits", "alice", "slurm", len(jobs), states, 1_800_000_000.0, ended, 2, ("LR",), "/a")


def _handler(daemon: FakeDaemon) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 20

        def log_message(self, format: str, *args: object) -> None:
            """Quiet: the address of a Unix client is empty, which the base class cannot print."""

        def dispatch(self) -> None:
            daemon.requests.append(f"{self.command} {self.path}")
            url = urlsplit(self.path)
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if daemon.hang_ups and not daemon.hang_up_after_work:
                daemon.hang_ups -= 1
                self.close_connection = True
                return
            for prefix, (status, problem) in daemon.refusals.items():
                if url.path.startswith(prefix):
                    self.reply({"problem": to_plain(problem)} if problem else None, status)
                    return
            self.answer(url.path, parse_qs(url.query), body)

        do_GET = do_POST = do_HEAD = do_PUT = do_DELETE = dispatch  # noqa: N815

        def answer(self, path: str, query: dict[str, list[str]], body: bytes) -> None:
            if path == "/api/v1/health":
                live = len(daemon.jobs) if daemon.trouble is None else None
                health = Health("9.9", "host", 1, 0, 0.0, "sqlite", live, daemon.outages, SCHEMA, daemon.trouble)
                self.reply(to_plain(health))
            elif path.startswith("/api/v1/archives/"):
                self.archive(path.rpartition("/")[2], body)
            elif path == "/api/v1/plan":
                asked = json.loads(body)
                plan = make_plan(from_plain(Submission, asked["submission"]), trial=asked["trial"])
                self.reply({"plan": to_plain(plan)})
            elif path == "/api/v1/outlook":
                self.reply({"outlook": to_plain(daemon.outlook or Outlook("slurm"))})
            elif path == "/api/v1/advice":
                name = json.loads(body)["submission"]["manifest_name"]
                self.reply({"advice": to_plain(daemon.advice or Advice(name, "custom", "slurm", ()))})
            elif path == "/api/v1/jobs" and self.command == "POST":
                self.submit(json.loads(body))
            elif path == "/api/v1/jobs":
                jobs = [j for j in daemon.jobs.values() if not query.get("state") or j.state in query["state"]]
                self.reply({"jobs": to_plain([j for j in jobs if j.array in query.get("array", [j.array])])})
            elif path.startswith("/api/v1/arrays/"):
                self.array(path.removeprefix("/api/v1/arrays/"))
            elif path.startswith("/api/v1/reports/"):
                self.report(daemon.reports[path.removeprefix("/api/v1/reports/")])
            else:
                self.job(path.removeprefix("/api/v1/jobs/"), query, body)

        def archive(self, digest: str, body: bytes) -> None:
            if self.command == "HEAD":
                self.reply(None, 200 if digest in daemon.archives else 404)
                return
            with zipfile.ZipFile(io.BytesIO(body)) as archive:
                assert archive.testzip() is None
            if hashlib.sha256(body).hexdigest() != digest:
                self.reply({"problem": to_plain(Problem("C102", "the digest differs", 78))}, 422)
                return
            daemon.archives[digest] = body
            self.reply({}, 201)

        def submit(self, asked: dict[str, Any]) -> None:
            parts = [from_plain(Submission, plain) for plain in asked["submissions"]]
            daemon.batches.append(len(parts))
            results = [daemon.accept(part) for part in parts]
            if daemon.hang_ups:
                daemon.hang_ups -= 1
                self.close_connection = True
                return
            self.reply({"results": to_plain(results)})

        def output(self, verb: str) -> None:
            if not verb.endswith("/files"):
                self.reply({"output": to_plain(daemon.output)})
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(daemon.files)))
            self.end_headers()
            self.wfile.write(daemon.files[: daemon.files_cut_at])
            self.close_connection = daemon.files_cut_at is not None

        def array(self, rest: str) -> None:
            array, _, verb = rest.partition("/")
            for job in list(daemon.jobs.values()):
                if verb in ("cancel", "halt") and job.array == array and job.ended_at is None:
                    daemon.jobs[job.id] = replace(job, requested_action=verb)
            if verb == "wait" and daemon.on_wait:
                daemon.on_wait(array)
            view = daemon.array(array)
            if view is None:
                self.reply({"problem": to_plain(Problem("C101", f"there is no array {array}", 1))}, 404)
            else:
                self.reply({"array": to_plain(view)})

        def job(self, rest: str, query: dict[str, list[str]], body: bytes) -> None:
            job_id, _, verb = rest.partition("/")
            job = daemon.jobs.get(job_id)
            if job is None:
                self.reply({"problem": to_plain(Problem("S104", f"there is no job {job_id}", 66))}, 404)
            elif self.command == "DELETE":
                self.remove(job, is_trial="dry_run" in query)
            elif verb == "events":
                after = int(query["after"][0])
                terminal = job.state in ("COMPLETED", "FAILED", "HALTED", "CANCELLED")
                self.reply({"events": to_plain([e for e in daemon.events if e.seq > after]), "terminal": terminal})
            elif verb == "why":
                self.reply({"why": to_plain(daemon.whys[job_id])})
            elif verb == "logs":
                self.stream(query)
            elif verb in ("metrics", "usage"):
                self.report(daemon.measured.get(rest, []))
            elif verb.startswith("output/"):
                self.output(verb)
            elif verb == "wait":
                self.reply({"job": to_plain(daemon.on_wait(job_id) if daemon.on_wait else job)})
            else:
                if verb in ("halt", "resume", "drill"):
                    daemon.acts.append((verb, job_id, json.loads(body) if body else None))
                    if daemon.on_act:
                        daemon.on_act(verb, job_id)
                if verb in ("cancel", "halt") and daemon.jobs[job_id].ended_at is None:
                    action = "cancel" if daemon.jobs[job_id].requested_action == "cancel" else verb
                    daemon.jobs[job_id] = replace(daemon.jobs[job_id], requested_action=action)
                self.reply({"job": to_plain(daemon.jobs[job_id])})

        def remove(self, job: JobView, *, is_trial: bool) -> None:
            if not is_trial:
                del daemon.jobs[job.id]
            self.reply({"job": to_plain(replace(job, disk_bytes=3 * 1024**2))})

        def report(self, found: dict[str, Any] | list[str]) -> None:
            if isinstance(found, dict):
                self.reply(found)
                return
            self.begin_stream()
            self.send_lines([line.encode() for line in found])

        def begin_stream(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "application/x-ndjson")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()

        def stream(self, query: dict[str, list[str]]) -> None:
            if daemon.texts:
                self.begin_stream()
                self.send_lines([json.dumps(to_plain(text)).encode() for text in daemon.texts])
                return
            self.begin_stream()
            lines = [line for line in daemon.lines if str(line.learner) in query.get("learner", [str(line.learner)])]
            if query.get("attempt", ["all"]) != ["all"]:
                first = int(query["attempt"][0])
                last = first if "follow" not in query else max(line.attempt for line in lines)
                lines = [line for line in lines if first <= line.attempt <= last]
            if "tail" in query:
                lines = lines[len(lines) - int(query["tail"][0]) :]
            self.send_lines([encode_text(text_of(line)).rstrip() for line in lines])

        def send_lines(self, lines: list[bytes]) -> None:
            for number, line in enumerate(lines):
                if number == daemon.break_log_after:
                    daemon.break_log_after = None
                    self.close_connection = True
                    return
                try:
                    self.chunk(b"\n" + line + b"\n")
                except BrokenPipeError:  # the reader has seen enough
                    self.close_connection = True
                    return
            self.wfile.write(b"0\r\n\r\n")

        def chunk(self, data: bytes) -> None:
            self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

        def reply(self, plain: dict[str, Any] | None, status: int = 200) -> None:
            if plain is not None and plain.keys() & {"jobs", "job", "results"}:
                plain = {**plain, "outages": to_plain(daemon.outages), "database_outage": to_plain(daemon.trouble)}
            body = b"" if plain is None else json.dumps({"schema": daemon.schema, **plain}).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

    return Handler
