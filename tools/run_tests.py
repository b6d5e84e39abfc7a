"""Runs the tiers of `make test`, each as processes of its own, and counts what they did.

    run_tests.py [--tier NAME ...] [--list]

The last line is `N passed, N failed, N skipped` over all tiers; exit status 1 on any failure. With CI set, a test that
is skipped (and not in ALLOWED_SKIPS) or a tier that cannot run here fails the run. A check that is no test (lint,
docs) counts as one. Standard library alone; run it with the environment's Python, which finds this folder.
"""

# ruff: noqa: T201 - this is a command line program
from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum

from tools.checks import run_docs, run_lint, run_quickstart
from tools.packages import install_packages
from tools.processes import REPORTS, ROOT, compile_sources, prefer_interpreter, say
from tools.pytest_runs import VACANT, run_pytest, run_shares
from tools.tally import Tally, refuse

PREPARATION_LOG = REPORTS / "prepare.log"
# The clusters that are up at once; the first is the one that `make cluster-up` starts, and is used if it is up.
CLUSTERS = ("ffdl", "ffdl2")


class Lane(Enum):
    """Tiers of one lane run one after the other, and lanes beside each other: much of what they do is waiting."""

    HOST = "host"
    """Commands, daemons and controllers on this machine that are at work."""
    DAEMONS = "daemons"
    """Daemons and controllers that wait for each other most of the time."""
    FAULTS = "faults"
    """Those that wait for what does not answer."""
    CLUSTER = "cluster"
    """What needs root on Debian: the test clusters, of which a machine has room for two."""
    PATIENT = "patient"
    """What does not care how fast it runs, and yields to the others."""


@dataclass(frozen=True)
class Tier:
    """A part of `make test`. `run` is told whether other lanes run, and then shows what it printed at its end."""

    name: str
    lane: Lane
    run: Callable[[bool], Tally]


@dataclass(frozen=True)
class Done:
    """What came of one tier."""

    name: str
    seconds: float
    tally: Tally


def main() -> int:
    """Run the chosen tiers, or all; print times and the closing line."""
    parser = argparse.ArgumentParser(description="Run the tests, tier by tier.")
    parser.add_argument("--tier", action="append", choices=[tier.name for tier in TIERS], help="only this one")
    parser.add_argument("--list", action="store_true", help="name the tiers")
    options = parser.parse_args()
    if options.list:
        print("\n".join(tier.name for tier in TIERS))
        return 0
    chosen = [tier for tier in TIERS if not options.tier or tier.name in options.tier]
    total = Tally()
    if any(tier.name != "lint" for tier in chosen):
        total.add(install_packages())
        prefer_interpreter()
        compile_sources()
    done = run_lanes(chosen)
    for one in done:
        total.add(one.tally)
        print(f"{one.name:10} {one.seconds:6.0f} s {one.tally.cpu_s:6.0f} s of CPU  {one.tally}")
    for trouble in total.troubles:
        print(f"note: {trouble}")
    print(total, flush=True)
    return 1 if total.failed else 0


def run_lanes(tiers: list[Tier]) -> list[Done]:
    """Run the tiers, lane beside lane; an interrupt stops each lane after the tier that it is in."""
    lanes = [found for lane in Lane if (found := [tier for tier in tiers if tier.lane is lane])]
    stop = threading.Event()
    with ThreadPoolExecutor(max(1, len(lanes))) as pool:
        running = [pool.submit(run_lane, lane, beside=len(lanes) > 1, stop=stop) for lane in lanes]
        try:
            return [one for lane in running for one in lane.result()]
        finally:
            stop.set()


def run_lane(tiers: list[Tier], *, beside: bool, stop: threading.Event) -> list[Done]:
    """Run the tiers in order."""
    done = []
    if any(tier.lane is Lane.CLUSTER for tier in tiers) and not missing_for_cluster():
        done.append(Done("prepare", prepare_cluster(), Tally()))
    for tier in tiers:
        if stop.is_set():
            break
        say(f"tier {tier.name}")
        started = time.monotonic()
        tally = run_tier(tier, beside=beside)
        done.append(Done(tier.name, time.monotonic() - started, tally))
        say(f"tier {tier.name}: {tally}")
    VACANT.release()
    return done


def prepare_cluster() -> float:
    """Build what the cluster needs, where no run before has; the seconds that it took. What cannot be built the tests
    try again, and say why it fails."""
    started = time.monotonic()
    REPORTS.mkdir(parents=True, exist_ok=True)
    with PREPARATION_LOG.open("wb") as log:
        argv = [sys.executable, "-m", "tests.cluster.prepare"]
        status = subprocess.call(argv, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    if status != 0:
        last = (PREPARATION_LOG.read_text(encoding="utf-8", errors="replace").strip().splitlines() or ["?"])[-1]
        say(f"preparing ended with exit status {status}: {last}")
    return time.monotonic() - started


def run_tier(tier: Tier, *, beside: bool) -> Tally:
    """The tier, or why it cannot run here."""
    reason = missing_for_cluster() if tier.lane is Lane.CLUSTER else ""
    return refuse(f"tier {tier.name} did not run: {reason}") if reason else tier.run(beside)


def missing_for_cluster() -> str:
    """Why this machine cannot run a cluster, "" where it can."""
    if os.geteuid() != 0:
        return "the test cluster needs root (namespaces, device nodes, cgroups); run `sudo make test`"
    if shutil.which("apt-get") is None:
        return "the test cluster is built from Debian packages and this machine has no apt-get"
    return ""


def pytest_tier(name: str, lane: Lane, *paths: str, runs: int = 1) -> Tier:
    """A tier of pytest: one run, and beside other lanes as many as `runs`, once there is a vacancy for them."""
    under = ("nice", "-n", "10") if lane is Lane.PATIENT else ()

    def run(beside: bool) -> Tally:
        if beside and runs > 1:
            return run_shares(name, *paths, runs=[under] * runs, later=True)
        return run_pytest(name, *paths, quietly=beside, under=under if beside else ())

    return Tier(name, lane, run)


def run_cluster() -> Tally:
    """The tests of the cluster, one run for each of CLUSTERS."""
    return run_shares("cluster", "tests/cluster", runs=[("env", f"FFDL_TEST_CLUSTER={one}") for one in CLUSTERS])


TIERS = (
    Tier("lint", Lane.HOST, lambda _: run_lint()),
    Tier("quickstart", Lane.HOST, lambda _: run_quickstart()),
    Tier("docs", Lane.HOST, lambda _: run_docs()),
    pytest_tier("crash", Lane.HOST, "tests/crash"),
    pytest_tier("overlay", Lane.HOST, "tests/overlay"),
    pytest_tier("contract", Lane.DAEMONS, "tests/contract", runs=4),
    pytest_tier("faults", Lane.FAULTS, "tests/faults"),
    pytest_tier("python39", Lane.CLUSTER, "tests/python39"),
    Tier("cluster", Lane.CLUSTER, lambda _: run_cluster()),
    pytest_tier("unit", Lane.PATIENT, "tests/unit", "tests/golden", runs=2),
)

if __name__ == "__main__":
    sys.exit(main())
