"""The page of `ffdl web` in a real browser: first paint and updates with few and many jobs, and what open pages cost.

Needs neither a cluster nor root. The plain tool is `ffdl list`, a whole process that shows the same first rows.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, Page, sync_playwright
from sqlalchemy import create_engine

from ffdl_batch.domain.job_state import JobState
from tests.benchmarks.figures import Figure
from tests.benchmarks.knobs import Knobs
from tests.benchmarks.place import Place, open_place
from tests.benchmarks.usage import cpu_seconds
from tests.first_start import write_schema
from tests.planted_jobs import PlantedJob, plant

JOBS = (10, 1000, 10_000)
OPEN_PAGES = 5
BEGAN = 1_700_000_000.0
_PAINT = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
_LOADED = "performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd"
_SIGHT_MS = 60_000


def measure_web(knobs: Knobs) -> list[Figure]:
    """All numbers of jobs."""
    program = shutil.which("chromium")
    if program is None:
        raise RuntimeError("Debian's chromium is not installed")
    figures: list[Figure] = []
    with sync_playwright() as playwright:
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=program, args=sandbox)
        for jobs in JOBS:
            with open_place("slurm") as place:
                figures += _measure(browser, place, jobs, knobs)
        browser.close()
    return figures


def _measure(browser: Browser, place: Place, jobs: int, knobs: Knobs) -> list[Figure]:
    what = f"page with {jobs} jobs"
    _fill(place, jobs)
    daemon = place.launch("ffdl_batch.daemon.main")
    with _served(place) as (server, address):
        context = browser.new_context(base_url=re.match(r"http://[^/]+", address)[0])  # type: ignore[index]
        page = context.new_page()
        page.goto(address)
        paints, loads = _load(page, knobs.rounds)
        lists = [_time_list(place) for _ in range(knobs.rounds)]
        updates = [_time_update(place, page, number) for number in range(knobs.rounds)]
        more = [context.new_page() for _ in range(OPEN_PAGES - 1)]
        for one in more:
            one.goto("/")
        used = _time_idle(server.pid, daemon.pid, knobs.seconds)
        context.close()
    return [
        Figure(what, "first paint", "ffdl web", "ms", paints),
        Figure(what, "loaded", "ffdl web", "ms", loads),
        Figure(what, "the same rows", "ffdl list", "ms", lists),
        Figure(what, "accepted job is in the table", "ffdl web", "ms", updates),
        Figure(what, "daemon, each idle page, of one core", "ffdl web", "%", [used[1] / OPEN_PAGES], "<= 0.2"),
        Figure(what, "page server, each idle page, of one core", "ffdl web", "%", [used[0] / OPEN_PAGES], "<= 0.2"),
    ]


def _fill(place: Place, jobs: int) -> None:
    """Ended jobs in the database, before the daemon starts."""
    place.state.mkdir(exist_ok=True)
    path = place.state / "ffdl.sqlite3"
    write_schema(path)
    engine = create_engine(f"sqlite:///{path}")
    steps = (JobState.PENDING, JobState.QUEUED, JobState.PROCESSING, JobState.COMPLETED)
    planted = [
        PlantedJob(
            [(BEGAN + number + 10 * step, state, 1) for step, state in enumerate(steps)],
            number=number,
            uid=os.getuid(),
            name=f"training {number}",
        )
        for number in range(jobs)
    ]
    plant(engine, planted)
    engine.dispose()


@contextmanager
def _served(place: Place) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The page server, and its one-time address."""
    argv = [sys.executable, "-P", "-m", "ffdl_batch.web.main", "--tcp", "0"]
    server = subprocess.Popen(argv, env=place.environment(), cwd="/", stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        for line in server.stdout:
            if found := re.search(r"http://\S+", line):
                yield server, found[0]
                return
        raise RuntimeError("ffdl web printed no address")
    finally:
        server.kill()
        server.wait()


def _load(page: Page, rounds: int) -> tuple[list[float], list[float]]:
    paints, loads = [], []
    for _ in range(rounds):
        page.goto("/", wait_until="load")
        while not page.evaluate("performance.getEntriesByName('first-contentful-paint').length"):
            page.wait_for_timeout(20)
        paints.append(float(page.evaluate(_PAINT)))
        loads.append(float(page.evaluate(_LOADED)))
    return paints, loads


def _time_list(place: Place) -> float:
    began = time.perf_counter()
    argv = [sys.executable, "-c", "from ffdl_batch.cli.main import main; main()", "list"]
    subprocess.run(argv, env=place.environment(), cwd="/", stdout=subprocess.DEVNULL, check=True)
    return 1000 * (time.perf_counter() - began)


def _time_update(place: Place, page: Page, number: int) -> float:
    """Milliseconds from the answer to a submission until the job is in the table."""
    time.sleep(1.5)  # the news of the last one have come
    manifest, model = place.add_manifest(f"held-{number}", "true"), place.add_model()
    with place.client() as client:
        job_id = client.submit(manifest, model, hold=True).id
    began = time.perf_counter()
    page.wait_for_selector(f"tr#{job_id}", timeout=_SIGHT_MS)
    return 1000 * (time.perf_counter() - began)


def _time_idle(server: int, daemon: int, seconds: float) -> tuple[float, float]:
    """Percent of a core that page server and daemon use while pages are open and nothing changes."""
    time.sleep(3.0)
    before = cpu_seconds(server)[0], cpu_seconds(daemon)[0]
    time.sleep(seconds)
    after = cpu_seconds(server)[0], cpu_seconds(daemon)[0]
    own, of_daemon = (100 * (late - early) / seconds for early, late in zip(before, after, strict=True))
    return own, of_daemon
