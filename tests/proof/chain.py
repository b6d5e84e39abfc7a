"""What an interrupted training leaves while it runs and at its end: logs and events on disk, the product's record,
accounting, and what Slurm holds. Reads only."""

from __future__ import annotations

import json
import re
import time
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

from ffdl_batch.domain.outcome.continuation import Interruption, describe_interruption
from ffdl_batch.host.fast_dataclass import dataclass
from tests.cluster.rig import Cluster
from tests.proof.continuity import Record, Session, sessions_in
from tests.proof.desk import LOGIN_NODE, Desk

ACCOUNTING_S = 300.0
"""How long the accounting may take to learn of all jobs (slurmctld sends records in the background)."""
HELD_S = 300.0
"""How long Slurm may take to give back what an ended job had."""
_GPUS = re.compile(r"\bAllocTRES=\S*?gres/gpu=(\d+)")


class ProofError(Exception):
    """The proof could not be carried through; the text says what did not happen."""


def until(condition: Callable[[], bool], what: str, limit_s: float, every_s: float = 0.2) -> None:
    """Wait for what must happen."""
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            raise ProofError(f"waited {limit_s:.0f} s for {what}")
        time.sleep(every_s)


@dataclass(slots=True)
class Chain:
    """One training and its attempts. `cut_at` has the times at which sessions were ended without a word, by number (the
    first is 1)."""

    desk: Desk
    job_id: str
    cut_at: dict[int, float] = field(default_factory=dict)

    @property
    def directory(self) -> Path:
        """The job's directory, as this process finds it."""
        return self.desk.host_path(f"{self.desk.base}/jobs/jobs/{self.job_id}")

    def attempts(self) -> list[int]:
        """The numbers of the attempts that have a directory, in order."""
        names = (path.name.removeprefix("attempt-") for path in self.directory.glob("attempt-*"))
        return sorted(int(name) for name in names if name.isdigit())

    def sessions(self) -> list[Session]:
        """All lives of the learner so far, by its own logs."""
        found = []
        for number in self.attempts():
            log = self.directory / f"attempt-{number}" / "logs" / "learner-1" / "training-log.txt"
            if log.exists():
                found += sessions_in(number, log.read_text(encoding="utf-8", errors="replace"))
        return found

    def await_session(self, count: int, steps: int, limit_s: float) -> Session:
        """The session of that number (from 1), once it has run so many steps."""

        def there() -> bool:
            found = self.sessions()
            return len(found) >= count and len(found[count - 1].steps) >= steps

        until(there, f"{steps} steps of session {count} of {self.job_id} ({self.described()})", limit_s)
        return self.sessions()[count - 1]

    def described(self) -> str:
        """How far it is, for messages."""
        return ", ".join(f"attempt {one.attempt}: {one.after}+{len(one.steps)}" for one in self.sessions()) or "nothing"

    def placed(self, attempt: int) -> tuple[str, str]:
        """The id in Slurm and the node of a running attempt; its name there is the attempt's token."""
        listed = self.desk.run("squeue", "--me", "--noheader", "--states=R", "--format=%i %j %N").stdout.splitlines()
        for native, name, node in (line.split() for line in listed):
            if name == f"{self.job_id}-{attempt}":
                return native, node
        raise ProofError(f"attempt {attempt} of {self.job_id} does not run in Slurm: {listed}")

    def records(self, job: Mapping[str, Any], history: Sequence[Mapping[str, Any]]) -> list[Record]:
        """The product's record of the end of each session, with the times of its events.

        The last session of an attempt ends with the attempt; an earlier one ended because the scheduler started the
        attempt again, and the history says why.
        """
        views = {int(view["number"]): view for view in job["attempts"]}
        found: list[Record] = []
        sessions = self.sessions()
        for number, session in enumerate(sessions, 1):
            attempt = session.attempt
            runs = [index for index, one in enumerate(sessions, 1) if one.attempt == attempt]
            view = views.get(attempt, {})
            times = self._times(attempt, runs.index(number), number)
            native = str(view.get("native_id", "?"))
            if number == runs[-1]:
                confirmed, took_s = bool(view.get("checkpoint_confirmed")), view.get("checkpoint_took_s")
                found.append(Record(attempt, native, str(view.get("interruption", "")), confirmed, took_s, *times))
            else:
                found.append(
                    Record(attempt, native, _why_anew(attempt, runs.index(number), history), False, None, *times)
                )
        return found

    def _times(self, attempt: int, run: int, number: int) -> tuple[float | None, float | None]:
        """When the learner of that run began, and when it ended; or when it was cut off, for session `number`."""
        events = self._events(attempt)
        began = sorted(e["at"] for e in events if (e.get("x_phase"), e.get("x_status")) == ("learner", "started"))
        if run >= len(began):
            return None, self.cut_at.get(number)
        until_at = began[run + 1] if run + 1 < len(began) else float("inf")
        ended = [e["at"] for e in events if e["kind"] == "learner_ended" and began[run] <= e["at"] < until_at]
        return began[run], self.cut_at.get(number, max(ended, default=None))

    def _events(self, attempt: int) -> list[dict[str, Any]]:
        found = []
        for path in sorted((self.directory / f"attempt-{attempt}" / "events").glob("*.jsonl")):
            found += [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]
        return found

    def allocations(self, wanted: frozenset[str]) -> frozenset[str]:
        """The ids that accounting has for the job's attempts, once it has all that are wanted."""
        argv = ["sacct", "-n", "-X", "-P", "-S", "now-2hours", "-o", "JobID,JobName"]
        deadline = time.monotonic() + ACCOUNTING_S
        while True:
            pairs = [line.partition("|") for line in self.desk.run(*argv).stdout.splitlines()]
            found = frozenset(native for native, _, name in pairs if name.rpartition("-")[0] == self.job_id)
            if wanted <= found or time.monotonic() > deadline:
                return found
            time.sleep(0.5)


def _why_anew(attempt: int, run: int, history: Sequence[Mapping[str, Any]]) -> str:
    """Why the scheduler started the attempt again after run `run` (from 0), by the history; "" = it does not say."""
    requeues = [e for e in history if (e["attempt"], e["state"], e["cause"]) == (attempt, "QUEUED", "requeued")]
    if run >= len(requeues):
        return ""
    return next((kind.value for kind in Interruption if describe_interruption(kind) in requeues[run]["message"]), "")


def read_weights(path: Path) -> dict[str, bytes]:
    """The arrays of an .npz file, bit for bit; none where there is no file."""
    if not path.is_file():
        return {}
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def held(cluster: Cluster, chain: Chain) -> list[str]:
    """What Slurm still holds: living jobs of the training, and GPUs of nodes that belong to no living job."""
    deadline = time.monotonic() + HELD_S
    while True:
        found = _held(cluster, chain)
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.5)


def _held(cluster: Cluster, chain: Chain) -> list[str]:
    listed = cluster.run(LOGIN_NODE, ["squeue", "--noheader", "--format=%i %j %T"]).stdout.splitlines()
    found = [line for line in listed if line.split()[1].rpartition("-")[0] == chain.job_id]
    nodes = sum(int(n) for n in _GPUS.findall(cluster.run(LOGIN_NODE, ["scontrol", "-o", "show", "node"]).stdout))
    shown = cluster.run(LOGIN_NODE, ["scontrol", "-o", "show", "job"]).stdout.splitlines()
    living = [line for line in shown if re.search(r"\bJobState=(RUNNING|COMPLETING|SUSPENDED|CONFIGURING)\b", line)]
    jobs = sum(int(n) for line in living for n in _GPUS.findall(line))
    return found if nodes <= jobs else [*found, f"{nodes} GPUs of nodes, {jobs} of living jobs"]
