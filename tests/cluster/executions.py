"""How often a job was executed, by what its learners themselves wrote; and waiting for what must happen."""

from __future__ import annotations

import time
from collections.abc import Callable

from tests.cluster.people import Person

LIMIT_S = 300.0
"""How long a test waits for what must happen; never how long it takes."""


def counted(work_s: float) -> str:
    """A learner's command that counts its executions, then works for `work_s` seconds."""
    return f'echo run >> "$RESULT_DIR/runs"; sleep {work_s}'


HELD = 'echo run >> "$RESULT_DIR/runs"; until [ -e "$JOB_STATE_DIR/go" ]; do sleep 0.1; done'
"""As `counted`, and works until it is let go."""


def attempt_directory(person: Person, job_id: str) -> str:
    """The directory of the job's first attempt on the nodes."""
    return f"{person.state}/jobs/{job_id}/attempt-1"


def let_go(person: Person, job_id: str) -> None:
    """The work of HELD is done; no daemon is asked."""
    person.run("touch", f"{attempt_directory(person, job_id)}/state/go")


def executions(person: Person, job_id: str) -> int:
    """How often learners of this job wrote that they run, over all its attempts."""
    found = person.run("sh", "-c", f"cat {person.state}/jobs/{job_id}/attempt-*/results/runs", check=False)
    return found.stdout.count("run")


def wait_until(condition: Callable[[], bool], what: str, limit_s: float = LIMIT_S) -> None:
    """Until the condition holds."""
    deadline = time.monotonic() + limit_s
    asked = time.monotonic()
    while not condition():
        assert time.monotonic() < deadline, f"waited {limit_s:g} s for {what}"
        time.sleep(max(0.1, time.monotonic() - asked))  # as long as the answer took: others need the cores
        asked = time.monotonic()
