"""Runs the tiers of `make test` in order, each as processes of its own, and counts what they did.

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
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
REPORTS = ROOT / "build" / "tests"
PREPARATION_LOG = REPORTS / "prepare.log"
PACKAGES = Path(__file__).resolve().parent / "debian-packages.txt"
BIN = Path(sys.executable).parent
# Tests that may be skipped on CI, by their id (file::name). Empty on purpose.
ALLOWED_SKIPS: frozenset[str] = frozenset()
PYTEST_NOTHING_COLLECTED = 5


@dataclass
class Tally:
    """What one tier did. `troubles` are sentences for the end of the run."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    troubles: list[str] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        """Count another tier in."""
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped
        self.troubles += other.troubles

    def __str__(self) -> str:
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"


@dataclass(frozen=True)
class Tier:
    """A part of `make test`. `needs_cluster`: it needs root on Debian. `is_patient`: it does not care how fast it runs,
    and so it runs beside the tiers that follow, which wait much of their time, and yields to them."""

    name: str
    run: Callable[[], Tally]
    needs_cluster: bool = False
    is_patient: bool = False


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
    total, times = Tally(), []
    if any(tier.name != "lint" for tier in chosen):
        total.add(install_packages())
    preparation = Preparation(any(tier.needs_cluster for tier in chosen))
    began = time.monotonic()
    others = ThreadPoolExecutor()
    beside = [others.submit(run_tier, tier) for tier in chosen if tier.is_patient]
    try:
        for tier in chosen:
            if tier.is_patient:
                continue
            if tier.needs_cluster and preparation.is_running:
                times.append(("prepare", preparation.wait(), "waited for what was built beside the tiers above"))
            say(f"tier {tier.name}")
            started = time.monotonic()
            tally = run_tier(tier)
            times.append((tier.name, time.monotonic() - started, str(tally)))
            total.add(tally)
        for done in beside:
            total.add(done.result())
            times.append(("beside", time.monotonic() - began, f"{done.result()}: the patient tiers"))
    finally:
        preparation.end()
        others.shutdown()
    for name, seconds, counts in times:
        print(f"{name:10} {seconds:6.0f} s  {counts}")
    for trouble in total.troubles:
        print(f"note: {trouble}")
    print(total, flush=True)
    return 1 if total.failed else 0


class Preparation:
    """Builds what the cluster needs while the tiers run that do not need it: most of that is waiting for a mirror."""

    def __init__(self, wanted: bool) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        if wanted and not missing_for_cluster():
            REPORTS.mkdir(parents=True, exist_ok=True)
            with PREPARATION_LOG.open("wb") as log:
                argv = ["nice", "-n", "10", sys.executable, "-m", "tests.cluster.prepare"]
                self._process = subprocess.Popen(
                    argv, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
                )

    @property
    def is_running(self) -> bool:
        """Whether nobody has waited for it yet."""
        return self._process is not None

    def wait(self) -> float:
        """Seconds until it was done. What it could not build the tests try again, and say why it fails."""
        started = time.monotonic()
        if self._process is not None and self._process.wait() != 0:
            last = (PREPARATION_LOG.read_text(encoding="utf-8", errors="replace").strip().splitlines() or ["?"])[-1]
            say(f"preparing ended with exit status {self._process.returncode}: {last}")
        self._process = None
        return time.monotonic() - started

    def end(self) -> None:
        """Stop it where the run ends early."""
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGTERM)
            self._process.wait()


def run_tier(tier: Tier) -> Tally:
    """The tier, or why it cannot run here."""
    reason = missing_for_cluster() if tier.needs_cluster else ""
    return refuse(f"tier {tier.name} did not run: {reason}") if reason else tier.run()


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
        if subprocess.run(argv, cwd=ROOT, check=False).returncode == 0:
            tally.passed += 1
        else:
            tally.failed += 1
            tally.troubles.append(f"failed: {' '.join([Path(argv[0]).name, *argv[1:]])}")
    return tally


def run_pytest(name: str, *paths: str, nice: int = 0) -> Tally:
    """pytest over the folders of `paths` that exist; counted from its report. What it prints is shown at its end where
    it is `nice`: others run beside it."""
    return finish_pytest(start_pytest(name, *paths, quietly=bool(nice), nice=nice))


def run_beside(*runs: tuple[str, ...]) -> Tally:
    """Several of them at once, each a name and its folders: much of what they do is waiting for processes."""
    tally = Tally()
    started = [start_pytest(name, *paths, quietly=number > 0) for number, (name, *paths) in enumerate(runs)]
    for run in started:
        tally.add(finish_pytest(run))
    return tally


@dataclass(frozen=True)
class Run:
    """One pytest. `log` holds what it prints where it runs beside another; `why_not`: there is nothing to run."""

    name: str
    report: Path
    process: subprocess.Popen[bytes] | None = None
    log: Path | None = None
    why_not: str = ""


def start_pytest(name: str, *paths: str, quietly: bool = False, nice: int = 0) -> Run:
    """Begin; see :func:`finish_pytest`."""
    report = REPORTS / f"{name}.xml"
    present = [path for path in paths if (ROOT / path).is_dir()]
    if not present:
        return Run(name, report, why_not=f"{', '.join(paths)} not found")
    REPORTS.mkdir(parents=True, exist_ok=True)
    report.unlink(missing_ok=True)
    argv = ["nice", "-n", str(nice), sys.executable, "-m", "pytest", "-q"]
    argv += [f"--junitxml={report}", "-o", f"cache_dir=.pytest_cache/{name}"]
    if not quietly:
        return Run(name, report, subprocess.Popen([*argv, *present], cwd=ROOT))
    path = REPORTS / f"{name}.log"
    with path.open("wb") as log:
        return Run(name, report, subprocess.Popen([*argv, *present], cwd=ROOT, stdout=log, stderr=log), path)


def finish_pytest(run: Run) -> Tally:
    """Wait for its end, and count."""
    if run.process is None:
        return refuse(f"{run.name} has no tests: {run.why_not}")
    status = run.process.wait()
    if run.log is not None:
        print(run.log.read_text(encoding="utf-8", errors="replace"), flush=True)
    if status == PYTEST_NOTHING_COLLECTED:
        return refuse(f"{run.name} has no tests")
    if not run.report.is_file():
        return Tally(failed=1, troubles=[f"pytest of {run.name} left no report (exit status {status})"])
    tally = read_report(run.report, ci=on_ci())
    if status != 0 and not tally.failed:
        tally.failed = 1
        tally.troubles.append(f"pytest of {run.name} ended with exit status {status}")
    return tally


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


TIERS = (
    Tier("lint", run_lint),
    Tier("unit", lambda: run_pytest("unit", "tests/unit", "tests/golden", nice=10), is_patient=True),
    Tier(
        "processes",
        lambda: run_beside(("contract", "tests/contract"), ("crash", "tests/crash"), ("faults", "tests/faults")),
    ),
    Tier("quickstart", run_quickstart),
    Tier("python39", lambda: run_pytest("python39", "tests/python39"), needs_cluster=True),
    Tier("cluster", lambda: run_pytest("cluster", "tests/cluster"), needs_cluster=True),
    Tier("docs", run_docs),
)

if __name__ == "__main__":
    sys.exit(main())
