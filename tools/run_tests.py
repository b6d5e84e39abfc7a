"""Runs the tiers of `make test`, each as processes of its own, and counts what they did.

    run_tests.py [--tier NAME ...] [--list]

The last line is `N passed, N failed, N skipped` over all tiers; exit status 1 on any failure. With CI set, a test that
is skipped (and not in ALLOWED_SKIPS) or a tier that cannot run here fails the run. A check that is no test (lint,
docs) counts as one. Standard library alone.
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
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import IO
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
REPORTS = ROOT / "build" / "tests"
PREPARATION_LOG = REPORTS / "prepare.log"
PACKAGES = Path(__file__).resolve().parent / "debian-packages.txt"
BIN = Path(sys.executable).parent
# Tests that may be skipped on CI, by their id (file::name). Empty on purpose.
ALLOWED_SKIPS: frozenset[str] = frozenset()
PYTEST_NOTHING_COLLECTED = 5
# The clusters that are up at once; the first is the one that `make cluster-up` starts, and is used if it is up.
CLUSTERS = ("ffdl", "ffdl2")
# As many lanes are through with their tiers, and give their place to second runs of tiers that are not.
VACANT = threading.Semaphore(0)
# So few files left are not worth the seconds that a second run needs to collect all tests.
FEW_FILES = 5


@dataclass
class Tally:
    """What one tier did. `cpu_s`: seconds of a core, those of processes that were waited for. `troubles` are sentences
    for the end of the run."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    cpu_s: float = 0
    troubles: list[str] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        """Count another tier in."""
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped
        self.cpu_s += other.cpu_s
        self.troubles += other.troubles

    def __str__(self) -> str:
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"


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


def refuse(sentence: str) -> Tally:
    """Something that did not happen: a failure on CI, elsewhere it is only said."""
    return Tally(failed=1 if on_ci() else 0, troubles=[sentence])


def on_ci() -> bool:
    """Whether this is the run that must leave nothing out."""
    return os.environ.get("CI", "").lower() not in ("", "0", "false")


def missing_for_cluster() -> str:
    """Why this machine cannot run a cluster, "" where it can."""
    if os.geteuid() != 0:
        return "the test cluster needs root (namespaces, device nodes, cgroups); run `sudo make test`"
    if shutil.which("apt-get") is None:
        return "the test cluster is built from Debian packages and this machine has no apt-get"
    return ""


def install_packages() -> Tally:
    """The Debian packages that tests need; what cannot be installed is named."""
    wanted = [line.split("#", 1)[0].strip() for line in PACKAGES.read_text(encoding="utf-8").splitlines()]
    if shutil.which("dpkg-query") is None or shutil.which("apt-get") is None:
        return refuse(
            f"not a Debian machine; install what matches these packages yourself: {' '.join(filter(None, wanted))}"
        )
    missing = [name for name in wanted if name and not is_installed(name)]
    if not missing:
        return Tally()
    if os.geteuid() != 0:
        return refuse(f"not root, so these Debian packages were not installed: {' '.join(missing)}")
    say(f"installing {' '.join(missing)}")
    # RUNLEVEL=1 keeps packages from starting their services.
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing]
    done = quiet(install, env)
    if done.returncode != 0:
        quiet(["apt-get", "update", "-qq"], env)
        done = quiet(install, env)
    if done.returncode == 0:
        return Tally()
    last = (done.stdout.strip().splitlines() or ["no output"])[-1]
    sentence = f"apt-get could not install {' '.join(missing)}; is the Debian mirror reachable? ({last})"
    return Tally(failed=1, troubles=[sentence])


def is_installed(package: str) -> bool:
    """Whether dpkg has it, configured."""
    done = quiet(["dpkg-query", "-W", "-f", "${db:Status-Status}", package], dict(os.environ))
    return done.stdout.strip() == "installed"


def quiet(argv: list[str], env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run and keep the output."""
    return subprocess.run(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)


def run_lint() -> Tally:
    """Formatting, lint, types, import layers."""
    return run_checks(
        [str(BIN / "ruff"), "format", "--check", "--quiet", "."],
        [str(BIN / "ruff"), "check", "--quiet", "."],
        [str(BIN / "mypy")],
        [str(BIN / "mypy"), "--strict", "tools", "containers"],
        [str(BIN / "lint-imports")],
    )


def run_docs() -> Tally:
    """Site and man pages, warnings as errors. Not by make: that would install into the environment we run in."""
    return run_checks(*(sphinx_argv(builder) for builder in ("html", "man")))


def sphinx_argv(builder: str) -> list[str]:
    """One builder's command, the same as in the Makefile's `docs`."""
    trees = f"docs/_build/doctrees-{builder}"
    options = ["-q", "-W", "--keep-going", "-b", builder, "-d", trees]
    return [sys.executable, "-m", "sphinx", *options, "docs", f"docs/_build/{builder}"]


def run_quickstart() -> Tally:
    """The README's first command."""
    return run_checks([sys.executable, "tools/quickstart.py"])


def run_checks(*commands: list[str]) -> Tally:
    """Commands that count as one check each."""
    tally = Tally()
    for argv in commands:
        say(" ".join([Path(argv[0]).name, *argv[1:]]))
        status, cpu_s = call(argv)
        tally.cpu_s += cpu_s
        if status == 0:
            tally.passed += 1
        else:
            tally.failed += 1
            tally.troubles.append(f"failed: {' '.join([Path(argv[0]).name, *argv[1:]])}")
    return tally


def run_shares(name: str, *paths: str, runs: list[tuple[str, ...]], later: bool = False) -> Tally:
    """pytest over those folders as several runs beside each other, to which the files are dealt out. `runs`: the
    command that starts each. `later`: all but the first begin when a lane is vacant, if files are left then."""
    shares = REPORTS / f"{name}.shares"
    shutil.rmtree(shares, ignore_errors=True)
    shares.mkdir(parents=True)
    say(f"what the tests of tier {name} print is in {REPORTS.relative_to(ROOT)}/{name}-*.log and shown at the end")
    options = ("-p", "tests.sharing", f"--shares={shares}")

    def left() -> int:
        return sum(1 for path in paths for _ in (ROOT / path).rglob("test_*.py")) - sum(1 for _ in shares.iterdir())

    def run(number: int, under: tuple[str, ...]) -> Tally:
        return run_pytest(f"{name}-{number}", *paths, quietly=True, under=under, options=options)

    def run_when_vacant(number: int, under: tuple[str, ...]) -> Tally:
        while left() > FEW_FILES:
            if VACANT.acquire(timeout=1.0):
                try:
                    return run(number, under) if left() > FEW_FILES else Tally()
                finally:
                    VACANT.release()
        return Tally()

    total = Tally()
    with ThreadPoolExecutor(len(runs)) as pool:
        started = [
            pool.submit(run_when_vacant if later and number > 1 else run, number, under)
            for number, under in enumerate(runs, 1)
        ]
        for one in started:
            total.add(one.result())
    return total


def run_pytest(
    name: str, *paths: str, quietly: bool, under: tuple[str, ...] = (), options: tuple[str, ...] = ()
) -> Tally:
    """pytest over those folders; counted from its report. `quietly`: what it prints is shown at its end. `under`: the
    command that starts it."""
    report, log = REPORTS / f"{name}.xml", REPORTS / f"{name}.log"
    if missing := [path for path in paths if not (ROOT / path).is_dir()]:
        return refuse(f"{name} has no tests: {', '.join(missing)} not found")
    REPORTS.mkdir(parents=True, exist_ok=True)
    report.unlink(missing_ok=True)
    argv = [*under, sys.executable, "-m", "pytest", "-q", f"--junitxml={report}"]
    argv += ["-o", f"cache_dir=.pytest_cache/{name}", *options, *paths]
    if quietly:
        with log.open("wb") as output:
            status, cpu_s = call(argv, output)
        print(log.read_text(encoding="utf-8", errors="replace"), flush=True)
    else:
        status, cpu_s = call(argv)
    if status == PYTEST_NOTHING_COLLECTED:
        return refuse(f"{name} has no tests")
    if not report.is_file():
        return Tally(failed=1, troubles=[f"pytest of {name} left no report (exit status {status})"])
    tally = read_report(report, ci=on_ci())
    tally.cpu_s = cpu_s
    if status != 0 and not tally.failed:
        tally.failed = 1
        tally.troubles.append(f"pytest of {name} ended with exit status {status}")
    return tally


def call(argv: list[str], output: IO[bytes] | None = None) -> tuple[int, float]:
    """Run it to its end: exit status, and the seconds of a core that it and what it waited for used."""
    process = subprocess.Popen(argv, cwd=ROOT, stdout=output, stderr=output)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, used.ru_utime + used.ru_stime


def read_report(report: Path, *, ci: bool) -> Tally:
    """Count a JUnit report; on CI a skipped test that is not allowed to be is a failure."""
    tally = Tally()
    for case in ElementTree.parse(report).getroot().iter("testcase"):  # noqa: S314 - pytest wrote it just now
        test = f"{case.get('classname', '')}::{case.get('name', '')}"
        if case.find("failure") is not None or case.find("error") is not None:
            tally.failed += 1
            tally.troubles.append(f"failed: {test}")
        elif (skip := case.find("skipped")) is not None:
            tally.skipped += 1
            tally.troubles.append(f"skipped: {test}: {skip.get('message', '')}")
            if ci and test not in ALLOWED_SKIPS:
                tally.failed += 1
        else:
            tally.passed += 1
    return tally


def say(text: str) -> None:
    """One line of progress."""
    print(f"==> {text}", flush=True)


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
    pytest_tier("contract", Lane.DAEMONS, "tests/contract", runs=2),
    pytest_tier("faults", Lane.FAULTS, "tests/faults"),
    pytest_tier("python39", Lane.CLUSTER, "tests/python39"),
    Tier("cluster", Lane.CLUSTER, lambda _: run_cluster()),
    pytest_tier("unit", Lane.PATIENT, "tests/unit", "tests/golden", runs=2),
)

if __name__ == "__main__":
    sys.exit(main())
