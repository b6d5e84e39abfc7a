"""`make proof-main`: two users at once, through both gateways, on the real cluster; every result is recomputed.

    python -m tests.proof.main [--jobs N] [--seed N]

Prints one line with the counts. Exit status 1 on any count that falls short; times are printed and not judged.
"""

from __future__ import annotations

import argparse
import json
import secrets
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cluster.images import provide_image
from tests.cluster.rig import Cluster
from tests.proof.checker import Late, Outcome, Tally, judge, slowest
from tests.proof.desk import SOURCE, VENV_PYTHON, Desk
from tests.proof.workload import LEARNER, Task, make_tasks, manifest

GATEWAYS = {"alice": "cli", "bob": "pyslurm"}
POLL_S = 0.1
PATIENCE_S = 1200.0
ACCOUNTING_S = 300.0
"""How long the accounting may take to learn of all jobs (slurmctld sends records in the background)."""
_STATE_OF_PHASE = {
    "load-model": "DOWNLOADING",
    "load-data": "DOWNLOADING",
    "learner": "PROCESSING",
    "store-results": "STORING",
    "store-logs": "STORING",
}


@dataclass(frozen=True, slots=True)
class Part:
    """One user's jobs. `ids` are in the order of `tasks`; "" where a submission was refused."""

    desk: Desk
    tasks: Sequence[Task]
    ids: Sequence[str]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the proof on the cluster that is up, or on a new one."""
    parser = argparse.ArgumentParser(prog="python -m tests.proof.main", description=__doc__.partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=20, metavar="N", help="jobs of both users together (default 20)")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**6), metavar="N", help="of the inputs")
    options = parser.parse_args(arguments)
    if options.jobs < len(GATEWAYS):
        parser.error(f"--jobs {options.jobs}: at least {len(GATEWAYS)}, one for each user")
    with Cluster.session() as cluster:
        provide_image(cluster, "custom")
        tally, late = prove(cluster, options.jobs, options.seed)
    for trouble in tally.troubles:
        print(trouble, file=sys.stderr)
    if not tally.holds:
        print(f"repeat with --jobs {options.jobs} --seed {options.seed}", file=sys.stderr)
    print(f"seen last: {late.state} of {late.job_id}", file=sys.stderr)
    print(tally.line(late.seconds), flush=True)
    return 0 if tally.holds else 1


def prove(cluster: Cluster, jobs: int, seed: int, gateways: Mapping[str, str] = GATEWAYS) -> tuple[Tally, Late]:
    """Submit `jobs` jobs as two users at once, wait for their ends, and judge what is left of them. `gateways`: user ->
    the gateway of their daemon."""
    with ExitStack() as stack:
        desks = [stack.enter_context(Desk(cluster, user, "proof", way)) for user, way in gateways.items()]
        shares = [jobs // 2, jobs - jobs // 2]
        tasks = [
            make_tasks(share, seed + n, desk.user) for n, (desk, share) in enumerate(zip(desks, shares, strict=True))
        ]
        parts = _submit(desks, tasks)
        seen = _follow(parts)
        outcomes = [outcome for part in parts for outcome in _outcomes(part)]
        happened = {key: at for part in parts for key, at in _happened(part).items()}
        return judge(outcomes), slowest(happened, seen)


def _submit(desks: Sequence[Desk], tasks: Sequence[Sequence[Task]]) -> list[Part]:
    """One command a user, both at the same time."""
    commands = []
    for desk, own in zip(desks, tasks, strict=True):
        files = {f"{desk.base}/store/{task.name}/numbers.txt": task.numbers for task in own}
        files |= {f"{desk.base}/{task.name}.yml": manifest(task, f"{desk.base}/store") for task in own}
        desk.write({**files, f"{desk.base}/model/compute.py": LEARNER, f"{desk.base}/store/results/.keep": ""})
        names = [f"{task.name}.yml" for task in own]
        commands.append(desk.popen("ffdl-submit", "--json", *names, "model"))
    parts = []
    for desk, own, command in zip(desks, tasks, commands, strict=True):
        parts.append(Part(desk, own, _ids(desk, command, len(own))))
    return parts


def _ids(desk: Desk, command: subprocess.Popen[str], count: int) -> list[str]:
    try:
        out, complaints = command.communicate(timeout=600)
    finally:
        desk.cluster.kill(command)
    if complaints:
        print(complaints, end="", file=sys.stderr)
    answers = [json.loads(line) for line in out.splitlines()]
    ids = [str(answer["result"].get("id") or "") for answer in answers]
    return ids + [""] * (count - len(ids))


def _follow(parts: Sequence[Part]) -> dict[tuple[str, str], float]:
    """When each state was first visible to a client of each user; until all jobs have ended or patience has."""
    pollers = []
    for part in parts:
        argv = [VENV_PYTHON, f"{SOURCE}/tests/proof/poller.py", str(POLL_S), *filter(None, part.ids)]
        pollers.append(part.desk.popen(*argv))
    seen: dict[tuple[str, str], float] = {}
    deadline = time.monotonic() + PATIENCE_S
    for part, poller in zip(parts, pollers, strict=True):
        out, complaints = _await(part.desk, poller, max(1.0, deadline - time.monotonic()))
        print(complaints, end="", file=sys.stderr)
        for line in out.splitlines():
            entry = json.loads(line)
            seen[entry["id"], entry["state"]] = entry["seen_at"]
    return seen


def _await(desk: Desk, command: subprocess.Popen[str], timeout_s: float) -> tuple[str, str]:
    """All that a command printed, also when it had to be ended."""
    try:
        return command.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        command.kill()
        return command.communicate()
    finally:
        desk.cluster.kill(command)


def _outcomes(part: Part) -> list[Outcome]:
    known = {job["id"]: job for job in part.desk.jobs()}
    allocations = _allocations(part)
    outcomes = []
    for task, job_id in zip(part.tasks, part.ids, strict=True):
        job = known.get(job_id)
        executions = _executions(part.desk.host_path(job["job_dir"])) if job else []
        values = _values(part.desk.host_path(job["results"])) if job and job["results"] else {}
        natives = allocations.get(job_id, frozenset()) if job_id else frozenset()
        outcomes.append(Outcome(task, job_id, job["state"] if job else "", executions, natives, values))
    return outcomes


def _executions(job_dir: Path) -> list[int]:
    """What the learners recorded of themselves, over all attempts."""
    counter = job_dir / "checkpoints" / "executions.txt"
    return [int(line) for line in counter.read_text(encoding="utf-8").split()] if counter.exists() else []


def _values(results: Path) -> dict[int, dict[str, Any]]:
    found = {}
    for path in results.glob("value-*.json"):
        found[int(path.stem.removeprefix("value-"))] = dict(json.loads(path.read_text(encoding="utf-8")))
    return found


def _allocations(part: Part) -> dict[str, frozenset[str]]:
    """The ids that accounting has for each job (its name there is the token), once it has all of them."""
    wanted = frozenset(filter(None, part.ids))
    argv = ["sacct", "-n", "-X", "-P", "-S", "now-2hours", "-o", "JobID,JobName"]
    deadline = time.monotonic() + ACCOUNTING_S
    while True:
        found: dict[str, set[str]] = {}
        for line in part.desk.run(*argv).stdout.splitlines():
            native, _, name = line.partition("|")
            found.setdefault(name.rpartition("-")[0], set()).add(native)
        if wanted <= set(found) or time.monotonic() > deadline:
            return {job_id: frozenset(natives) for job_id, natives in found.items()}
        time.sleep(0.5)


def _happened(part: Part) -> dict[tuple[str, str], float]:
    """When each state began, by the controllers' own files, read without the product."""
    happened: dict[tuple[str, str], float] = {}
    for job_id in filter(None, part.ids):
        attempt = part.desk.host_path(f"{part.desk.base}/jobs/jobs/{job_id}/attempt-1")
        for path in sorted(attempt.glob("events/*.jsonl")):
            for line in path.read_text(encoding="utf-8").splitlines():
                event = json.loads(line)
                state = _STATE_OF_PHASE.get(event.get("x_phase", ""))
                if state and event.get("x_status") == "started":
                    key = (job_id, state)
                    happened[key] = min(event["at"], happened.get(key, event["at"]))
        final = attempt / "final.json"
        if final.exists() and final.stat().st_size:
            happened[job_id, "COMPLETED"] = float(json.loads(final.read_text(encoding="utf-8"))["at"])
    return happened


if __name__ == "__main__":
    sys.exit(main())
