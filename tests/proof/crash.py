"""`make proof-crash`: daemons are killed thousands of times under a stream of work, and nothing is lost or done twice.

    python -m tests.proof.crash [--kills N] [--real N] [--database both|sqlite|postgres] [--seed N]

`--kills` (or $KILLS) deaths with the fake cluster, then `--real` ones with the test cluster's Slurm. Prints how often
each named step was the place of death, and one line for each part. Exit status 1 unless all faults are 0 and, with the
fake cluster, every named step was hit. Times are printed and not judged.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.cluster.images import provide_image
from tests.cluster.rig import Cluster
from tests.crash.fuzz.aftermath import Line, read_all_marks, read_lines, sent_again
from tests.crash.fuzz.course import Assignment, Tally
from tests.crash.fuzz.steps import NAMED
from tests.postgres import running_postgres
from tests.proof.desk import LOGIN_NODE, SOURCE, VENV_PYTHON, Desk

WORKERS = 2
WORLD_KILLS = 150
"""A world with more jobs than this many deaths bring takes longer to look through than to live in."""
ON_POSTGRES = 0.3
"""The part of all kills that falls on PostgreSQL, where both databases are asked for."""
SECONDS_PER_KILL, SECONDS_PER_REAL_KILL, SECONDS_BESIDE = 10.0, 10.0, 1800.0
"""After which a worker counts as hanging."""
ENDING_S = 30.0
"""How long Slurm may take to end what it was told to."""
WITH_SLURM = (
    "deployer chunk written", "before call submit_array", "after call submit_array", "before reply drill",
    "after call signal",
)  # fmt: skip
"""With real Slurm, where so few deaths would not come to all of them by themselves, some are at these steps."""
USER = "alice"
SETTINGS = "fence_s = 10\nkill_wait_s = 5\n"
FAST = Path("/dev/shm")
"""Memory: a kill loses nothing that was written, synced or not."""
_WORDS = {
    "lost": "lost",
    "executed_twice": "executed twice",
    "sent_again": "sent again",
    "unacknowledged": "unacknowledged executed",
    "history_faults": "history faults",
    "lease_faults": "lease faults",
    "left_behind": "left behind",
    "wrong_answers": "wrong answers",
}


class WorkerFailed(Exception):
    """A worker did not play its worlds to the end; the text is what it said."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What several worlds came to. `missed` are named steps that should have been hit, and were in no world."""

    tallies: Sequence[Tally]
    missed: Sequence[str] = ()

    @property
    def counts(self) -> Counter[str]:
        """The faults, by kind."""
        return sum((Counter(tally.counts) for tally in self.tallies), Counter())

    @property
    def deaths(self) -> Counter[str]:
        """How often each step was the place of death."""
        return sum((Counter(tally.deaths) for tally in self.tallies), Counter())

    @property
    def troubles(self) -> list[str]:
        """Every fault in a sentence."""
        found = [f"seed {tally.seed}: {text}" for tally in self.tallies for text in tally.sentences]
        return found + [f"nobody died at: {name}" for name in self.missed]

    @property
    def holds(self) -> bool:
        """Whether all is as it must be, and something was done."""
        return not self.troubles and not self.counts.total() and all(tally.jobs for tally in self.tallies)

    def line(self) -> str:
        """All counts."""
        kills, jobs = sum(tally.kills for tally in self.tallies), sum(tally.jobs for tally in self.tallies)
        asked: Counter[str] = sum((Counter(tally.asked) for tally in self.tallies), Counter())
        requests = " ".join(f"{verb} {asked[verb]}" for verb in ("halt", "resume", "cancel", "drill"))
        arrays = sum(tally.arrays for tally in self.tallies)
        faults = " ".join(f"{words} {self.counts[name]}" for name, words in _WORDS.items())
        answer = max((s for tally in self.tallies for s in tally.answer_s), default=0.0)
        progress = max((s for tally in self.tallies for s in tally.progress_s), default=0.0)
        slowest = f"slowest recovery {answer:.2f} s to an answer, {progress:.2f} s to progress"
        return f"kills {kills} jobs {jobs} arrays {arrays} ({requests}) {faults} {slowest}"

    def table(self) -> str:
        """Every named step and every other place of death, with how often."""
        deaths = self.deaths
        names = [*NAMED, *sorted(deaths.keys() - set(NAMED))]
        return "\n".join(f"{deaths[name]:6}  {name}" for name in names)


def main(arguments: Sequence[str] | None = None) -> int:
    """Both parts."""
    parser = argparse.ArgumentParser(prog="python -m tests.proof.crash", description=__doc__.partition("\n")[0])
    kills = int(os.environ.get("KILLS", "2000"))
    parser.add_argument(
        "--kills",
        type=int,
        default=kills,
        metavar="N",
        help=f"with the fake cluster, at least: each named step has its own, about 200 in all ({kills})",
    )
    parser.add_argument(
        "--real", type=int, default=200, metavar="N", help="with real Slurm (200); needs root on Debian"
    )
    parser.add_argument("--database", choices=("both", "sqlite", "postgres"), default="both", help="(both)")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**6), metavar="N", help="of plans and jobs")
    options = parser.parse_args(arguments)
    holds = True
    try:
        if options.kills:
            verdict = prove(split(options.kills, options.database, options.seed))
            print(verdict.table())
            holds = report("fake cluster", verdict)
        if options.real:
            with Cluster.session() as cluster:
                provide_image(cluster, "custom")
                holds = report("real Slurm", prove_real(cluster, options.real, options.seed)) and holds
    except WorkerFailed as failure:
        print(f"proof-crash: {failure}", file=sys.stderr)
        holds = False
    if not holds:
        again = f"--kills {options.kills} --real {options.real} --database {options.database} --seed {options.seed}"
        print(f'repeat with PROOF="{again}"; what happens between the steps stays the machine\'s', file=sys.stderr)
    return 0 if holds else 1


def report(part: str, verdict: Verdict) -> bool:
    """Print what came of a part; whether it holds."""
    for trouble in verdict.troubles:
        print(trouble, file=sys.stderr)
    print(f"{part}: {verdict.line()}", flush=True)
    return verdict.holds


@dataclass(frozen=True, slots=True)
class World:
    """One to be played. `wanted` are steps that somebody has to die at."""

    kills: int
    seed: int
    postgres: bool = False
    wanted: Sequence[str] = ()
    mutation: str = ""


def split(kills: int, database: str, seed: int) -> list[World]:
    """Worlds with `kills` deaths between them. The steps are divided among those of the first database."""
    on_postgres = {"both": round(kills * ON_POSTGRES), "sqlite": 0, "postgres": kills}[database]
    shares = [(share, False) for share in _shares(kills - on_postgres)]
    shares += [(share, True) for share in _shares(on_postgres)]
    first = [number for number, (_, postgres) in enumerate(shares) if postgres == shares[0][1]]
    return [
        World(share, seed + number, postgres, NAMED[number :: len(first)] if number in first else ())
        for number, (share, postgres) in enumerate(shares)
    ]


def _shares(kills: int) -> list[int]:
    """`kills` in even numbers of even parts, so that all workers have the same to do."""
    parts = min(kills, WORKERS * -(-kills // (WORKERS * WORLD_KILLS)))
    return [kills // parts + (number < kills % parts) for number in range(parts)] if kills else []


def prove(worlds: Sequence[World]) -> Verdict:
    """Play `worlds` with the fake cluster, WORKERS at a time; raises WorkerFailed."""
    with ExitStack() as stack:
        base = stack.enter_context(_directory())
        server = stack.enter_context(running_postgres()) if any(world.postgres for world in worlds) else None
        assignments = []
        for number, world in enumerate(worlds):
            url = server.url(server.create_database()) if server is not None and world.postgres else ""
            place = str(base / f"world-{number}")
            assignments.append(Assignment(place, world.kills, world.seed, world.wanted, url, world.mutation))
        with ThreadPoolExecutor(WORKERS) as pool:
            played = list(pool.map(_play, [assignments[number::WORKERS] for number in range(WORKERS)]))
        tallies = [tally for tallies in played for tally in tallies]
    wanted = {step for world in worlds for step in world.wanted}
    died = {step for tally in tallies for step in tally.deaths}
    return Verdict(tallies, sorted(wanted - died))


def prove_real(cluster: Cluster, kills: int, seed: int) -> Verdict:
    """One world of a user on the login node of a real cluster; raises WorkerFailed."""
    with Desk(cluster, USER, "proof-crash", "cli", settings=SETTINGS) as desk:
        assignment = Assignment(desk.base, kills, seed, WITH_SLURM, slurm=True)
        done = cluster.run(
            LOGIN_NODE,
            [VENV_PYTHON, "-m", "tests.crash.fuzz.worker", json.dumps([asdict(assignment)])],
            user=desk.user,
            env={**desk.environment, "PYTHONPATH": SOURCE},
            cwd=desk.base,
            timeout_s=SECONDS_BESIDE + SECONDS_PER_REAL_KILL * kills,
            check=False,
        )
        (tally,) = _tallies(done)
        for line in _still_queued(desk):
            _add(tally, "left_behind", f"Slurm still has {line.native}, {line.name}")
        for text in _sent_again(desk):
            _add(tally, "sent_again", text)
        return Verdict([tally], sorted(set(WITH_SLURM) - tally.deaths.keys()))


def _still_queued(desk: Desk) -> list[Line]:
    """Jobs and tasks of this desk that Slurm has not ended, though the platform has; after the time that an end may
    take."""
    own, deadline = desk.own_names(), time.monotonic() + ENDING_S
    while True:
        left = read_lines(desk.run("squeue", "--me", "--noheader", "--format=%i|%j").stdout, own)
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.5)


def _sent_again(desk: Desk) -> list[str]:
    """Attempts that Slurm had more than once, by its accounting."""
    argv = ["sacct", "--allocations", "--noheader", "--parsable2", "--starttime=now-1days", "--format=JobID,JobName"]
    had = read_lines(desk.run(*argv).stdout, desk.own_names())
    return list(sent_again(had, read_all_marks(desk.host_path(f"{desk.base}/jobs/jobs"))))


def _add(tally: Tally, kind: str, sentence: str) -> None:
    tally.sentences.append(f"{kind}: {sentence}")
    tally.counts[kind] += 1


def _play(assignments: Sequence[Assignment]) -> list[Tally]:
    """The tallies of one worker."""
    if not assignments:
        return []
    argv = [sys.executable, "-m", "tests.crash.fuzz.worker", json.dumps([asdict(one) for one in assignments])]
    limit_s = sum(SECONDS_BESIDE + SECONDS_PER_KILL * one.kills for one in assignments)
    root = Path(__file__).resolve().parents[2]
    return _tallies(subprocess.run(argv, cwd=root, capture_output=True, text=True, check=False, timeout=limit_s))


def _tallies(done: subprocess.CompletedProcess[str]) -> list[Tally]:
    if done.returncode != 0:
        raise WorkerFailed(f"a worker ended with {done.returncode}: {done.stderr[-8000:]}")
    return [Tally(**json.loads(line)) for line in done.stdout.splitlines()]


@contextmanager
def _directory() -> Iterator[Path]:
    """Where worlds lie; it is kept, with all logs, where a worker failed."""
    base = Path(tempfile.mkdtemp(prefix="ffdl-crash-", dir=FAST if os.access(FAST, os.W_OK) else None))
    try:
        yield base
    except WorkerFailed as failure:
        raise WorkerFailed(f"{failure}\nwhat is left of it lies in {base}") from failure
    shutil.rmtree(base)


if __name__ == "__main__":
    sys.exit(main())
