"""The daemon under load: thousands of live jobs in its store and in the fake Slurm, and what they cost.

Needs neither a cluster nor root: the daemon is the real one, with the pace and settings of the product, and its
scheduler are executables that answer as fast as a process can. The figures of all numbers of jobs stand side by side:
what does not grow with them is no work for each job.
"""

from __future__ import annotations

import contextlib
import math
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Sequence

from ffdl_batch.client.api import JobFilter
from ffdl_batch.domain.job_state import JobState
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_slurm.commands import squeue_argv
from tests.benchmarks.counted_daemon import read_counts
from tests.benchmarks.figures import Figure
from tests.benchmarks.knobs import Knobs
from tests.benchmarks.nodeside.acknowledge import acknowledge
from tests.benchmarks.nodeside.time_commands import time_in_turns
from tests.benchmarks.place import Place, await_true, open_place
from tests.benchmarks.ready_slurm import ReadySlurm
from tests.benchmarks.usage import cpu_seconds, io_calls, resident_mib
from tests.postgres import running_postgres

ARRAY = 1000
"""Elements of one array, of which Slurm's usual MaxArraySize allows 1,001."""
FILL_S = 1800.0
SLICE_S = 1.0
_ELSE = tuple(state.value for state in JobState if state is not JobState.QUEUED)


@dataclass(frozen=True, slots=True)
class Moment:
    """What was used and asked so far. `asked` are calls of the scheduler's commands."""

    at: float
    own_s: float
    children_s: float
    statements: int
    commits: int
    io_calls: int
    asked: Counter[str]


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """A daemon and its live jobs. `array` is one of their arrays, "" where there is none."""

    place: Place
    slurm: ReadySlurm
    daemon: subprocess.Popen[bytes]
    jobs: int
    accepted_s: float
    handed_over_s: float
    array: str

    def moment(self) -> Moment:
        """Now."""
        pid = self.daemon.pid
        statements, commits = read_counts(self.place.base / "counts")
        return Moment(time.monotonic(), *cpu_seconds(pid), statements, commits, io_calls(pid), self.slurm.asked())

    def check(self) -> None:
        """Raises RuntimeError unless every job lives and waits at the scheduler: else the figures are of something
        else."""
        with self.place.client() as client:
            live, others = client.health().live_jobs, client.list(JobFilter(states=_ELSE, limit=1))
        if live != self.jobs or others or self.slurm.listed() != self.jobs:
            raise RuntimeError(
                f"{live} of {self.jobs} jobs live, squeue lists {self.slurm.listed()}, and {others[:1]} is not QUEUED"
            )


def measure_load(knobs: Knobs) -> list[Figure]:
    """All numbers of jobs, on all databases asked for."""
    figures: list[Figure] = []
    for database in knobs.databases:
        for jobs in knobs.load:
            with _database_url(database) as url, open_place("slurm", database_url=url) as place:
                figures += _measure(place, jobs, knobs, f"{jobs} live, {database}")
    return side_by_side(figures)


def side_by_side(figures: Sequence[Figure]) -> list[Figure]:
    """The same measures below each other, in the order in which they come first."""
    order = {key: place for place, key in enumerate(dict.fromkeys((one.measure, one.who) for one in figures))}
    return sorted(figures, key=lambda one: order[one.measure, one.who])


def compare(what: str, before: Moment, after: Moment) -> list[Figure]:
    """What was used between two moments."""
    seconds = after.at - before.at

    def percent(used_s: float) -> list[float]:
        return [100 * used_s / seconds]

    def per_minute(count: int) -> list[float]:
        return [60 * count / seconds]

    asked = after.asked - before.asked
    others = asked["others"] + asked["sbatch"]
    return [
        Figure(what, "daemon itself, of one core", "ffdl", "%", percent(after.own_s - before.own_s), "< 1"),
        Figure(what, "its children, of one core", "ffdl", "%", percent(after.children_s - before.children_s)),
        Figure(what, "squeue calls", "ffdl", "1/min", per_minute(asked["squeue"]), "one an interval"),
        Figure(what, "other scheduler calls", "ffdl", "1/min", per_minute(others), "0"),
        Figure(what, "SQL statements", "ffdl", "1/min", per_minute(after.statements - before.statements), "no growth"),
        Figure(what, "commits", "ffdl", "1/min", per_minute(after.commits - before.commits), "no growth"),
        Figure(what, "reads and writes", "ffdl", "1/min", per_minute(after.io_calls - before.io_calls), "no growth"),
    ]


def _measure(place: Place, jobs: int, knobs: Knobs, what: str) -> list[Figure]:
    with fill(place, jobs, round(jobs * knobs.in_arrays / 100)) as crowd:
        time.sleep(knobs.settle_s)
        figures = [
            Figure(what, "accepted", "ffdl", "1/s", [jobs / crowd.accepted_s], ">= 200"),
            Figure(what, "handed to the fake Slurm", "ffdl", "1/s", [jobs / crowd.handed_over_s]),
            *_measure_rest(crowd, knobs, what),
        ]
        crowd.check()
        return figures + _measure_answers(crowd, knobs, what)


def _measure_rest(crowd: ConnectionLimits, knobs: Knobs, what: str) -> list[Figure]:
    before, resident = crowd.moment(), []
    slice_s = min(SLICE_S, knobs.seconds)
    for _ in range(math.ceil(knobs.seconds / slice_s)):
        time.sleep(slice_s)
        resident.append(resident_mib(crowd.daemon.pid))
    used = compare(what, before, crowd.moment())
    return [*used, Figure(what, "resident memory", "ffdl", "MiB", resident, "< 300")]


def _measure_answers(crowd: ConnectionLimits, knobs: Knobs, what: str) -> list[Figure]:
    """Listings and submissions as whole processes, beside the fake's commands as processes; then over the socket."""
    place = crowd.place
    manifest, model = str(place.base / "load.yml"), str(place.base / "model")
    commands = {
        ("ffdl list", "ffdl"): ["ffdl", "list"],
        ("ffdl list -t FAILED", "ffdl"): ["ffdl", "list", "-t", "FAILED"],
        **({("ffdl list --array", "ffdl"): ["ffdl", "list", "--array", crowd.array]} if crowd.array else {}),
        ("squeue, all jobs", "fake"): squeue_argv(),
        ("ffdl-submit", "ffdl"): ["ffdl-submit", "--hold", manifest, model],
        ("sbatch", "fake"): ["sbatch", "--parsable", str(next(place.state.glob("jobs/*/attempt-1/script.sh")))],
    }
    names = {str(number): key for number, key in enumerate(commands)}
    argv = {number: commands[key] for number, key in names.items()}
    taken = time_in_turns(knobs.repeat, argv, place.environment())
    with place.client() as client:
        acknowledged = acknowledge(client, knobs.batch, manifest, model)
    figures = [Figure(what, names[number][0], names[number][1], "ms", _ms(taken[number])) for number in names]
    return [*figures, Figure(what, "one submission, durable", "ffdl", "ms", _ms(acknowledged), "p99 <= 50")]


@contextlib.contextmanager
def fill(place: Place, jobs: int, in_arrays: int) -> Iterator[ConnectionLimits]:
    """A daemon whose jobs all wait at the scheduler: `in_arrays` of them as elements of arrays, the others alone."""
    slurm = ReadySlurm(place)
    manifest, model = place.add_manifest("load", "true"), place.add_model()
    daemon = place.launch("tests.benchmarks.counted_daemon", TEST_COUNTS=str(place.base / "counts"))
    try:
        began, array = time.monotonic(), ""
        with place.client() as client:
            for first in range(0, in_arrays, ARRAY):
                last = min(ARRAY, in_arrays - first) - 1
                array = client.submit_array(manifest, model, array=f"0-{last}").id
            results = client.submit_many([manifest] * (jobs - in_arrays), model)
            refused = next((result.problem for result in results if result.problem is not None), None)
            if refused is not None:
                raise RuntimeError(f"a submission was refused: {refused.message}")
            accepted_s = time.monotonic() - began
            waiting = JobFilter(states=("PENDING", "DEPLOYING"), limit=1)
            await_true(lambda: not client.list(waiting), "all jobs to be handed over", patience_s=FILL_S, pause_s=0.25)
        crowd = ConnectionLimits(place, slurm, daemon, jobs, accepted_s, time.monotonic() - began, array)
        crowd.check()
        yield crowd
    finally:
        daemon.terminate()
        daemon.wait()


@contextlib.contextmanager
def _database_url(database: str) -> Iterator[str]:
    """A database of its own; "" is SQLite in the state directory."""
    if database == "sqlite":
        yield ""
        return
    with running_postgres() as server, server.database() as name:
        yield server.url(name)


def _ms(seconds: Sequence[float]) -> list[float]:
    return [1000 * second for second in seconds]
