"""Logs: how fast a learner's output gets into its log and out of it, and what followers cost the daemon.

Needs neither a cluster nor root. Beside the writer of logs stands cat(1), which bounds and times nothing.
"""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import field
from pathlib import Path

from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.client import Client, Grep
from ffdl_batch.client.api import JobFilter
from ffdl_batch.controller.logs.rotated_log import LogFiles
from ffdl_batch.controller.own_program import module_argv
from ffdl_batch.domain.launch.limits import LogLimits
from ffdl_batch.host.fast_dataclass import dataclass
from tests.benchmarks.figures import Figure
from tests.benchmarks.knobs import Knobs
from tests.benchmarks.load import fill
from tests.benchmarks.place import Place, open_place
from tests.benchmarks.usage import cpu_seconds, resident_mib

LINE_BYTES = 100
LINES = 300_000
"""Of one log that is written and read."""
PER_S, TICK_S = 100, 0.1
REST_S = 15.0
NO_BOUND = LogLimits(bytes_per_s=10**12)
RUNS = 3
UNREAD = 2
"""The number of a learner that no job has: nobody reads its log."""


@dataclass(slots=True)
class Follower:
    """One reader of one job: how many lines came, and how late."""

    job_id: str
    lines: int = 0
    late_s: list[float] = field(default_factory=list)

    def follow(self, client: Client) -> None:
        """Until the daemon ends."""
        for line in client.logs(self.job_id, follow=True):
            self.lines += 1
            if line.at is not None and line.index % PER_S == 0:
                self.late_s.append(time.time() - line.at)


def measure_logs(knobs: Knobs) -> list[Figure]:
    """One log; then as many as asked for, followed at once."""
    text = b"".join(b"%0*d\n" % (LINE_BYTES - 1, number) for number in range(LINES))
    figures = _measure_writing(text)
    with open_place("slurm") as place, fill(place, knobs.log_jobs, 0) as crowd, place.client() as client:
        jobs = [job.id for job in client.list(JobFilter(limit=knobs.log_jobs))]
        logs = [LogFiles(str(_attempt(place, job_id)), 1, NO_BOUND) for job_id in jobs]
        unread = [LogFiles(str(_attempt(place, job_id, UNREAD)), UNREAD, NO_BOUND) for job_id in jobs]
        figures += _measure_nobody(crowd.daemon.pid, unread, knobs.seconds)
        figures += _measure_following(place, crowd.daemon.pid, jobs, logs, knobs.seconds)
        logs[0].write(text)
        figures += _measure_printing(place, crowd.daemon.pid, jobs[0])
        return figures + _measure_reading(client, jobs[0], len(text) // LINE_BYTES)


def _attempt(place: Place, job_id: str, learner: int = 1) -> Path:
    path = place.state / "jobs" / job_id / "attempt-1"
    attempt = AttemptDir(str(path))
    Path(attempt.learner_logs(learner)).mkdir(parents=True, exist_ok=True)
    Path(attempt.events).mkdir(exist_ok=True)
    return path


def _measure_writing(text: bytes) -> list[Figure]:
    rates: dict[str, list[float]] = {"ffdl": [], "cat": []}
    with tempfile.TemporaryDirectory(prefix="ffdl-bench-") as base:
        for run in range(RUNS):
            attempt = AttemptDir(str(Path(base, str(run))))
            Path(attempt.learner_logs(1)).mkdir(parents=True)
            Path(attempt.events).mkdir()
            numbers = (1, NO_BOUND.file_bytes, NO_BOUND.files, NO_BOUND.bytes_per_s, -1)
            writer = [*module_argv("ffdl_batch.controller.logs.log_writer"), attempt.path, *map(str, numbers)]
            rates["ffdl"].append(_rate(writer, text, os.devnull))
            rates["cat"].append(_rate(["cat"], text, str(Path(base, "cat"))))
    return [Figure("one learner", "output into its log", who, "lines/s", rate) for who, rate in rates.items()]


def _rate(argv: Sequence[str], text: bytes, output: str) -> float:
    began = time.monotonic()
    with Path(output).open("wb") as file:
        subprocess.run(argv, input=text, stdout=file, check=True)
    return LINES / (time.monotonic() - began)


def _measure_nobody(pid: int, logs: Sequence[LogFiles], seconds: float) -> list[Figure]:
    began, before = time.monotonic(), cpu_seconds(pid)[0]
    _print_to(logs, seconds)
    used = 100 * (cpu_seconds(pid)[0] - before) / (time.monotonic() - began)
    return [
        Figure(f"{len(logs)} jobs, {PER_S} lines/s each", "daemon while nobody reads, of one core", "ffdl", "%", [used])
    ]


def _measure_printing(place: Place, pid: int, job_id: str) -> list[Figure]:
    """The whole of a log into a file: processor time of the command, and of the daemon meanwhile."""
    log = str(_attempt(place, job_id) / "logs" / "learner-1" / "training-log.txt")
    ours = [str(Path(sys.executable).with_name("ffdl")), "logs", job_id]
    commands = {"ffdl": ours, "ffdl --json": [*ours, "--json"], "cat": ["cat", log]}
    taken: dict[str, list[float]] = {who: [] for who in commands}
    sizes, lines = set(), set()
    for _ in range(RUNS):
        for who, argv in commands.items():
            before = _used_s(pid)
            with tempfile.TemporaryFile(dir=place.base) as output:
                subprocess.run(argv, env=place.environment(), stdout=output, check=True)
                taken[who].append(_used_s(pid) - before)
                output.seek(0)
                lines.add(sum(1 for _ in output))
                if "--json" not in argv:
                    sizes.add(output.tell())
    if len(sizes) != 1 or len(lines) != 1:
        raise RuntimeError(f"what was printed has {sorted(sizes)} bytes and {sorted(lines)} lines")
    what = f"a log of {sizes.pop() / 1e6:.0f} MB into a file"
    return [Figure(what, "processor time, all processes", who, "s", samples) for who, samples in taken.items()]


def _used_s(pid: int) -> float:
    own = resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + sum(cpu_seconds(pid))


def _measure_following(
    place: Place, pid: int, jobs: Sequence[str], logs: Sequence[LogFiles], seconds: float
) -> list[Figure]:
    what = f"{len(jobs)} jobs followed, {PER_S} lines/s each"
    with _followers(place, jobs) as followers:
        first = _print_to(logs, 2.0)
        _await_lines(followers, first)  # all are there
        began, before = time.monotonic(), cpu_seconds(pid)[0]
        printed = _print_to(logs, seconds)
        used, elapsed = cpu_seconds(pid)[0] - before, time.monotonic() - began
        resident = resident_mib(pid)
        _await_lines(followers, first + printed)
        late = [1000 * late_s for follower in followers for late_s in follower.late_s]
    return [
        Figure(what, "daemon, of one core", "ffdl", "%", [100 * used / elapsed], aim="<= 5 %"),
        Figure(what, "printed in fact", "ffdl", "lines/s", [len(jobs) * printed / elapsed]),
        Figure(what, "seen by a follower after", "ffdl", "ms", late),
        Figure(what, "resident memory of the daemon", "ffdl", "MiB", [resident]),
    ]


@contextlib.contextmanager
def _followers(place: Place, jobs: Sequence[str]) -> Iterator[list[Follower]]:
    clients = [place.client() for _ in jobs]
    followers = [Follower(job_id) for job_id in jobs]
    for follower, client in zip(followers, clients, strict=True):
        threading.Thread(target=_quietly, args=(follower, client), daemon=True).start()
    yield followers


def _quietly(follower: Follower, client: Client) -> None:
    with contextlib.suppress(Exception):  # the daemon was ended: nothing is measured any more
        follower.follow(client)


def _print_to(logs: Sequence[LogFiles], seconds: float) -> int:
    """Print to all for so long; the lines of each."""
    count, lines = round(PER_S * TICK_S), 0
    began = time.monotonic()
    for tick in range(round(seconds / TICK_S)):
        for log in logs:
            log.write((b"x" * (LINE_BYTES - 1) + b"\n") * count)
        lines += count
        time.sleep(max(0.0, began + (tick + 1) * TICK_S - time.monotonic()))
    return lines


def _await_lines(followers: Sequence[Follower], lines: int) -> None:
    end = time.monotonic() + REST_S
    while any(follower.lines < lines for follower in followers):
        if time.monotonic() > end:
            raise RuntimeError(f"followers have {sorted({one.lines for one in followers})} lines instead of {lines}")
        time.sleep(0.05)


def _measure_reading(client: Client, job_id: str, lines: int) -> list[Figure]:
    what = f"a log of {lines} lines and more"
    wanted = {
        "all of it, through the daemon": (None, None),
        "searched for a text": (None, Grep("nothing like it")),
        "searched for an expression": (None, Grep("nothing.like [it]")),
        "its last 10 lines": (10, None),
    }
    figures = []
    for measure, (tail, grep) in wanted.items():
        taken = []
        for _ in range(RUNS):
            began = time.monotonic()
            found = sum(1 for _ in client.logs(job_id, tail=tail, grep=grep))
            taken.append(time.monotonic() - began)
        if grep is None and found != (tail or found):
            raise RuntimeError(f"{found} lines came of {tail}")
        is_tail = tail is not None
        unit, samples = ("ms", [1000 * s for s in taken]) if is_tail else ("lines/s", [lines / s for s in taken])
        figures.append(Figure(what, measure, "ffdl", unit, samples))
    return figures
