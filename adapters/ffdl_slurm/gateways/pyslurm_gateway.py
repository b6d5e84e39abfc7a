"""The gateway that uses pyslurm in a child process (:mod:`ffdl_slurm.gateways.pyslurm_worker`).

It submits, lists and cancels jobs through libslurm. All other requests use the commands: pyslurm has no trial
submission and no filter by state, and sacct prints the same text in every release.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, TypeVar

from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.domain.backend_facts import AccountingOutage
from ffdl_batch.domain.scheduler_errors import InvalidRequest, SchedulerUnreachable, SubmissionUncertain
from ffdl_slurm import commands
from ffdl_slurm.gateways import error_mapping, submission_files
from ffdl_slurm.gateways.cli_gateway import CommandLineGateway
from ffdl_slurm.gateways.command_runner import check_conf, query_environment, submit_environment
from ffdl_slurm.gateways.gateway import SiteShape
from ffdl_slurm.observing.accounted_runs import RunRecord, UseRecord
from ffdl_slurm.observing.parsers import Garbled, JobRecord, JobRow, parse_row
from ffdl_slurm.output_text import shorten

T = TypeVar("T")


class WorkerLost(Exception):
    """The worker died or did not answer. The message has its standard error."""


class SlurmRefused(Exception):
    """libslurm returned an error. The message is Slurm's, after what it has printed."""

    def __init__(self, answer: str, printed: str = "") -> None:
        super().__init__(f"{printed}{answer}")
        self.as_of_sbatch = f"{printed.rstrip()}\nBatch job submission failed: {answer}"
        """The same, as sbatch prints it."""


class PyslurmGateway:
    """Sends requests to one worker, which is started when it is needed and replaced if it died. Calls wait for a
    lock."""

    def __init__(self, timeout_s: float, host: str = "", worker: Sequence[str] = ()) -> None:
        """`worker` is the argv of the worker; without it, the worker module is run by this interpreter."""
        self._timeout_s = timeout_s
        self._commands = CommandLineGateway(timeout_s, host)
        self._argv = tuple(worker) or (sys.executable, "-E", "-P", "-m", "ffdl_slurm.gateways.pyslurm_worker")
        self._lock = threading.Lock()
        self._worker: subprocess.Popen[bytes] | None = None
        self._complaints: IO[bytes] | None = None
        self._complaints_read = 0

    def submit(self, attempt: AttemptDir, umask: int) -> str:
        """See :class:`ffdl_slurm.gateways.gateway.SlurmGateway`."""
        environ = submit_environment(os.environ, umask)
        environ.pop("LC_ALL")
        request = {
            "call": "submit",
            "script": Path(attempt.script).read_text(encoding="utf-8"),
            "environment": {**environ, "SLURM_SUBMIT_DIR": attempt.path},
            "reply": str(Path(attempt.submit) / submission_files.REPLY),
        }
        with submission_files.hold_submission(attempt), self._lock:
            self._ensure_worker()
            try:
                job = str(self._exchange(request))
            except WorkerLost as error:
                raise SubmissionUncertain(f"{error}; the job is looked for before it is submitted again") from error
            except SlurmRefused as error:
                raise error_mapping.explain_refusal(error.as_of_sbatch, "pyslurm") from error
        if not commands.is_job_id(job):
            raise SubmissionUncertain(f"pyslurm says that the job has the id {job!r}; the job is looked for first")
        return job

    def test_only(self, attempt: AttemptDir, script: str) -> str:
        """See the port."""
        return self._commands.test_only(attempt, script)

    def list_own_jobs(self) -> Sequence[JobRecord]:
        """See the port."""
        return self._list({"call": "list"})

    def list_named(self, *names: str) -> Sequence[JobRecord]:
        """See the port."""
        return self._list({"call": "list", "names": list(names)})

    def list_all_users(self) -> Mapping[int, Sequence[str]]:
        """See the port."""
        return self._commands.list_all_users()

    def account_for(self, ids: Collection[str]) -> Sequence[JobRecord] | None:
        """See the port."""
        return self._commands.account_for(ids)

    def account_for_names(self, names: Sequence[str], since: str) -> Sequence[JobRecord] | None:
        """See the port."""
        return self._commands.account_for_names(names, since)

    def account_for_runs(self, ids: Collection[str]) -> Sequence[RunRecord] | None:
        """See the port."""
        return self._commands.account_for_runs(ids)

    def account_for_all_users(self, since: float, until: float) -> Sequence[UseRecord] | None:
        """See the port."""
        return self._commands.account_for_all_users(since, until)

    def accounting_outage(self) -> AccountingOutage | None:
        """See the port."""
        return self._commands.accounting_outage()

    def signal(self, signal: str, *jobs: str) -> None:
        """See the port; pyslurm's KILL to the children ends the whole job, and its signal to a step reaches none."""
        self._commands.signal(signal, *jobs)

    def cancel(self, *jobs: str) -> None:
        """See the port; pyslurm takes the number of one job, and no task of an array."""
        if len(jobs) == 1 and jobs[0].isdigit() and commands.is_job_id(jobs[0]):
            self._request({"call": "cancel", "job": jobs[0]}, f"the cancellation of job {jobs[0]}")
        else:
            self._commands.cancel(*jobs)

    def withdraw(self, *jobs: str) -> None:
        """See the port; libslurm's kill request has no filter by state."""
        self._commands.withdraw(*jobs)

    def exclude(self, job: str, nodes: Collection[str]) -> None:
        """See the port."""
        self._commands.exclude(job, nodes)

    def exclude_only(self, job: str, nodes: str) -> None:
        """See the port; by scontrol."""
        self._commands.exclude_only(job, nodes)

    def shrink(self, job: str, nodes: Sequence[str]) -> None:
        """See the port; by scontrol."""
        self._commands.shrink(job, nodes)

    def describe_site(self) -> SiteShape:
        """See the port; also proves that the worker starts. Raises InvalidRequest where pyslurm does not fit."""
        with self._lock:
            self._ensure_worker()
        return self._commands.describe_site()

    def query(self, argv: list[str], parse: Callable[[str], T]) -> T:
        """See the port."""
        return self._commands.query(argv, parse)

    def close(self) -> None:
        """See the port: end the worker."""
        with self._lock:
            self._drop_worker()

    def _list(self, request: Mapping[str, object]) -> list[JobRecord]:
        with self._lock:
            self._ensure_worker()
            try:
                rows: Any = self._exchange(request)
                return [parse_row(JobRow(**row)) for row in rows]
            except (WorkerLost, SlurmRefused) as error:
                raise SchedulerUnreachable(f"pyslurm gave no list of jobs: {error}") from error
            except (Garbled, TypeError) as error:
                raise SchedulerUnreachable(f"pyslurm's list of jobs cannot be read: {error}") from error

    def _request(self, request: Mapping[str, object], what: str) -> None:
        with self._lock:
            self._ensure_worker()
            try:
                self._exchange(request)
            except WorkerLost as error:
                raise SchedulerUnreachable(f"{what} was not answered: {error}") from error
            except SlurmRefused as error:
                error_mapping.check_refused_request(str(error), what)

    # ------------------------------------------------------------------------------- the worker (lock held)

    def _ensure_worker(self) -> None:
        if self._worker is not None and self._worker.poll() is None:
            return
        self._drop_worker()
        environ = query_environment(os.environ)
        check_conf(environ)
        self._complaints = TemporaryFile()  # noqa: SIM115 - lives as long as the worker
        self._worker = subprocess.Popen(
            self._argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._complaints,
            env=environ, start_new_session=True,
        )  # fmt: skip
        try:
            self._read_answer()
        except WorkerLost as error:
            # libslurm calls fatal() on import where it finds no slurm.conf.
            raise SchedulerUnreachable(f"pyslurm did not start: {error}") from error

    def _exchange(self, request: Mapping[str, object]) -> object:
        worker = self._worker
        assert worker is not None and worker.stdin is not None
        self._read_complaints()
        try:
            worker.stdin.write((json.dumps(request) + "\n").encode())
            worker.stdin.flush()
        except OSError as error:
            raise self._lost(f"its pipe is closed ({error.strerror})") from error
        return self._read_answer()

    def _read_answer(self) -> object:
        try:
            answer = json.loads(self._read_line())
        except ValueError as error:
            raise self._lost(f"its answer cannot be read ({error})") from error
        if not isinstance(answer, dict) or not ("ok" in answer or "error" in answer):
            raise self._lost("its answer is none")
        if "ok" in answer:
            return answer["ok"]
        if answer.get("kind") == "slurm":
            raise SlurmRefused(str(answer["error"]), self._read_complaints())
        if answer.get("kind") == "import":
            self._drop_worker()
            raise InvalidRequest(
                f"pyslurm cannot be loaded ({answer['error']}); install the pyslurm release of this Slurm, "
                'or set gateway = "cli" in [backend.slurm]'
            )
        raise InvalidRequest(f"pyslurm cannot carry the request: {answer['error']}")

    def _read_line(self) -> bytes:
        worker = self._worker
        assert worker is not None and worker.stdout is not None
        line, deadline = b"", time.monotonic() + self._timeout_s
        with selectors.DefaultSelector() as selector:
            selector.register(worker.stdout, selectors.EVENT_READ)
            while not line.endswith(b"\n"):
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise self._lost(f"it did not answer within {self._timeout_s:g} s")
                piece = os.read(worker.stdout.fileno(), 1 << 16)
                if not piece:
                    raise self._lost("it died")
                line += piece
        return line

    def _read_complaints(self) -> str:
        """Return the text that libslurm has printed since the last call, as the message of a site's plugin. The worker
        writes at the offset of the same file, so the offset must not change."""
        if self._complaints is None:
            return ""
        descriptor, start = self._complaints.fileno(), self._complaints_read
        self._complaints_read = os.fstat(descriptor).st_size
        return os.pread(descriptor, self._complaints_read - start, start).decode("utf-8", "replace")

    def _lost(self, what: str) -> WorkerLost:
        said = shorten(self._read_complaints())
        self._drop_worker()
        return WorkerLost(f"the pyslurm worker: {what}" + (f"; it said: {said}" if said else ""))

    def _drop_worker(self) -> None:
        if self._worker is not None:
            self._worker.kill()
            self._worker.wait()
            for pipe in (self._worker.stdin, self._worker.stdout):
                if pipe is not None:
                    _close(pipe)
            self._worker = None
        if self._complaints is not None:
            self._complaints.close()
            self._complaints, self._complaints_read = None, 0


def _close(pipe: IO[bytes]) -> None:
    try:
        pipe.close()
    except BrokenPipeError:
        return  # the request that was never read
