"""Run one command of this terminal in a job that ends with the command, and with this process.

The job's learner waits for a session (``domain/launch/attach_protocol.py``), and ends with it. A child process cancels
the job if this process ends, which also covers the time before the session.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from ffdl_batch.client.api import is_ended
from ffdl_batch.client.errors import ClientError, RequestRefused, WaitTimedOut
from ffdl_batch.domain.job_state import JobState
from ffdl_batch.domain.launch.attach_protocol import ARRIVAL_S

if TYPE_CHECKING:
    from contextlib import ExitStack

    from ffdl_batch.client.api import Client
    from ffdl_batch.client.attach import AttachRequest, Helper
    from ffdl_batch.domain.job.views import JobView

BATCH = {"requeue": False, "retry": {"timeouts": 0, "preemptions": 0, "node_failures": 0, "failures": 0}}
"""The manifest's `batch` of an interactive job: one attempt."""
LOOK_S = 3.0
"""Interval at which the reason of a pending job is requested."""
_AGAIN_S = 0.5
_WATCH = "import sys\nif not sys.stdin.buffer.read():\n    from ffdl_batch.cli.main import main\n    main()"


class CancelAtEnd:
    """Cancels the job unless :meth:`keep` was called, also if this process is killed. A context manager."""

    def __init__(self, words: Sequence[str], job_id: str) -> None:
        """`words` are the options of ffdl that choose the daemon."""
        # Imports must not depend on the current directory, which may have modules of the same names.
        flags = ["-P", *(["-E"] if sys.flags.ignore_environment else [])]
        argv = [sys.executable, *flags, "-c", _WATCH, *words, "cancel", job_id]
        self._child = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # signals of the terminal must not end it
        )

    def __enter__(self) -> CancelAtEnd:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._child.stdin is not None
        if not self._child.stdin.closed:
            self._child.stdin.close()
        self._child.wait()

    def keep(self) -> None:
        """Do not cancel the job: it ends by itself."""
        self._child.communicate(b"keep")


def await_learner(client: Client, job_id: str, report: Callable[[str], None]) -> JobView | None:
    """Wait until the job runs, and return None; return the job if it ends before. `report` gets the reasons why it is
    pending."""
    after, reported = 0, ""
    while True:
        try:
            for event in client.events(job_id, follow=True, after=after, timeout_s=LOOK_S):
                after = event.seq
                if event.state == JobState.PROCESSING:
                    return None
            return client.get(job_id)
        except WaitTimedOut:
            sentence = client.why(job_id, alternatives=False).sentence
            if sentence != reported:
                report(f"{job_id}: {sentence}")
            reported = sentence


def connect(client: Client, job_id: str, request: AttachRequest, stack: ExitStack) -> Helper:
    """Start a helper beside the learner, and the request's command. Try again while the learner is starting. Raises
    ClientError."""
    end = time.monotonic() + ARRIVAL_S
    while True:
        try:
            (helper,) = (stack.enter_context(one) for one in client.open_helpers(job_id, 1))
            helper.begin(request)
        except RequestRefused:
            if time.monotonic() > end or client.get(job_id).state != JobState.PROCESSING:
                raise
            stack.close()
            time.sleep(_AGAIN_S)
        else:
            return helper


def ended_job(client: Client, job_id: str) -> JobView | None:
    """Return the job if it has ended; None if it has not, or the daemon does not answer."""
    try:
        job = client.get(job_id)
    except ClientError:
        return None
    return job if is_ended(job) else None
