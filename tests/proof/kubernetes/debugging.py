"""Points about looking into a job that runs, by the command line."""

from __future__ import annotations

import json
import subprocess

from tests.preloaded import FFDL
from tests.proof.kubernetes.desk import Desk
from tests.proof.kubernetes.values import Failed, Impossible

WAITS = "echo up; exec sleep 3600"
NOT_PERMITTED = "commands in pods are not permitted"


def ask(desk: Desk, *words: str) -> subprocess.CompletedProcess[str]:
    """One command of the owner's."""
    return subprocess.run(
        [*FFDL, *words], env=desk.site.environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=desk.options.patience_s, check=False,
    )  # fmt: skip


def commands(desk: Desk) -> str:
    """A command runs in the learner, or its owner is told that nobody permitted that."""
    job_id = desk.submit(desk.manifest(WAITS))
    with desk.cancelled(job_id):
        desk.await_log(job_id, "up")
        done = ask(desk, "exec", job_id, "--", "sh", "-c", 'echo "learner $LEARNER_ID"; exit 4')
    if NOT_PERMITTED in done.stderr and not desk.options.debugging:
        raise Impossible(f"{NOT_PERMITTED}: the proof's tenant has that with --debugging alone")
    if (done.returncode, done.stdout) != (4, "learner 1\n"):
        raise Failed(f"ffdl exec: {done.returncode}, {done.stdout!r}, {done.stderr!r}")
    return f"{job_id}: ffdl exec ran in learner 1, exit code 4"


def processes(desk: Desk) -> str:
    """The learner's processes are shown, whether or not commands are permitted."""
    job_id = desk.submit(desk.manifest(WAITS))
    with desk.cancelled(job_id):
        desk.await_log(job_id, "up")
        table = ask(desk, "top", "--once", "--json", job_id)
        stack = ask(desk, "stack", job_id)
    if table.returncode or "sleep 3600" not in table.stdout:
        raise Failed(f"ffdl top: {table.returncode}, {table.stdout!r}, {table.stderr!r}")
    if "learner 1 on " not in stack.stdout:
        raise Failed(f"ffdl stack: {stack.returncode}, {stack.stdout!r}, {stack.stderr!r}")
    (learner,) = json.loads(table.stdout)["learners"]
    return f"{job_id}: ffdl top shows {len(learner['processes'])} processes, ffdl stack their threads"
