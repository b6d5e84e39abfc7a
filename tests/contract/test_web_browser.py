"""The page of `ffdl web` in a real browser: Chromium, driven by Playwright. Screenshots go to build/web."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.contract.daemon_rig import LIMIT_S
from tests.contract.scheduler_harness import FakeSlurmHarness
from tests.contract.test_daemon_logs import Desk, desk_in
from tests.contract.test_scaler import ends_without_loss, slurm_site, trains_with
from tests.contract.test_scaler import submit as submit_elastic
from tests.contract.test_web_page import OTHER_UID, needs_root
from tests.contract.web_rig import Page as Server
from tests.contract.web_rig import page_of, run_sweep
from tests.preloaded import ROOT

TRAIN = """\
import os, pathlib, signal, sys, time
signal.signal(signal.SIGUSR2, lambda *_: sys.exit(0))
print("\\x1b[31mred\\x1b[0m <img src=x onerror=\\"document.title='hacked'\\">", flush=True)
place = pathlib.Path(sys.argv[1])
step = 0
while True:
    if place.with_name(f"{place.name}-step-{step}").exists():
        print(f"step {step} loss={1 / (step + 1)}", flush=True)
        step += 1
    elif place.with_name(place.name + "-ends").exists():
        break
    time.sleep(0.05)
print("last", flush=True)
"""
LINES = 1_000_000
LONG = f"""\
import pathlib, sys, time
for number in range({LINES}):
    print(f"line {{number}} ".ljust(99, "x"))
print("the end", flush=True)
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.05)
"""
METRICS = """\
evaluation_metrics:
  type: regex_extractor
  groups:
    train:
      regex: 'step (?P<step>\\d+) loss=(?P<loss>[0-9.]+)'
      scalars: {{loss: {{type: FLOAT, value: $loss}}}}
      etimes: {{iteration: {{type: INT, value: $step}}}}
"""
EVIL = "<img src=x onerror=document.title=1>"
SHOTS = ROOT / "build" / "web"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = shutil.which("chromium")
    assert program, "Debian's chromium is not installed: tools/debian-packages.txt"
    with sync_playwright() as playwright:
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
        chromium = playwright.chromium.launch(executable_path=program, args=sandbox)
        yield chromium
        chromium.close()


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with desk_in(tmp_path, {"train.py": TRAIN}, max_jobs=3) as made:
        yield made


@pytest.fixture
def server(desk: Desk) -> Iterator[Server]:
    with page_of(desk, "--tcp", "0") as made:
        yield made


@pytest.fixture
def tab(browser: Browser, server: Server) -> Iterator[Page]:
    with tab_of(browser, server) as made:
        yield made


@contextmanager
def tab_of(browser: Browser, server: Server) -> Iterator[Page]:
    """A tab that has opened the one-time address. Every error of a script or of the policy fails the test."""
    context = browser.new_context(base_url=f"http://localhost:{server.port}", viewport={"width": 1200, "height": 800})
    context.set_default_timeout(LIMIT_S * 1000)
    expect.set_options(timeout=LIMIT_S * 1000)
    page = context.new_page()
    troubles: list[str] = []
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.on("console", lambda message: troubles.append(message.text) if "Content Security" in message.text else None)
    try:
        page.goto(server.address)
        yield page
    finally:
        context.close()
    assert troubles == []


@contextmanager
def without_scripts(browser: Browser, server: Server, tab: Page) -> Iterator[Page]:
    """A tab with the cookie of `tab` and without JavaScript."""
    plain = browser.new_context(base_url=f"http://localhost:{server.port}", java_script_enabled=False)
    plain.add_cookies(tab.context.cookies())  # type: ignore[arg-type]  # two types of one dictionary
    try:
        yield plain.new_page()
    finally:
        plain.close()


def shot(name: str) -> Path:
    SHOTS.mkdir(parents=True, exist_ok=True)
    return SHOTS / f"{name}.png"


def start(desk: Desk, name: str = "digits") -> str:
    job_id = desk.submit(name, f"python3 train.py '{desk.base}/{name}'")
    desk.await_state(job_id, "PROCESSING")
    return job_id


def row(tab: Page, job_id: str) -> str:
    return tab.locator(f"tr#{job_id}").inner_text()


def test_table_follows_jobs_and_notices_ends(desk: Desk, tab: Page) -> None:
    expect(tab.get_by_text("No jobs yet")).to_be_visible()
    job_id = desk.submit("digits", f"python3 train.py '{desk.base}/digits'")
    expect(tab.locator(f"tr#{job_id} .state")).to_have_text("PROCESSING")
    (desk.base / "digits-ends").touch()
    expect(tab.locator(f"tr#{job_id} .state")).to_have_text("COMPLETED")
    expect(tab.locator(".notice")).to_have_text("A job completed.")


def test_table_keeps_selection_while_jobs_change_and_cancels_it(desk: Desk, tab: Page) -> None:
    job_id = start(desk)
    tab.locator(f"tr#{job_id} input").check()
    other = desk.submit("other", "sleep 600")
    expect(tab.locator(f"tr#{other} .state")).to_have_text("PROCESSING")
    expect(tab.locator(f"tr#{job_id} input")).to_be_checked()
    tab.get_by_role("button", name="Cancel").click()
    expect(tab.get_by_role("heading")).to_have_text("Cancel 1 job or array?")
    tab.get_by_role("button", name="Cancel").click()
    expect(tab.locator("h1 .state")).to_have_text("CANCELLED")
    tab.goto("/")
    assert "PROCESSING" in row(tab, other)


def test_job_is_halted_and_continued(desk: Desk, tab: Page) -> None:
    job_id = start(desk)
    tab.goto(f"/jobs/{job_id}")
    tab.get_by_role("button", name="Halt").click()
    tab.get_by_role("button", name="Halt").click()
    expect(tab.locator("h1 .state")).to_have_text("HALTED")
    tab.get_by_role("button", name="Continue").click()
    tab.get_by_label("Time limit").fill("30:00")
    tab.get_by_role("button", name="Continue").click()
    expect(tab.locator("h1 .state")).to_have_text("PROCESSING")
    expect(tab.get_by_role("row").filter(has_text=re.compile("^2"))).to_be_visible()


def test_log_grows_and_ends(desk: Desk, tab: Page) -> None:
    job_id = start(desk)
    tab.goto(f"/jobs/{job_id}/log")
    expect(tab.locator("#log .fg1")).to_have_text("red")
    for step in range(3):
        (desk.base / f"digits-step-{step}").touch()
        expect(tab.locator("#log")).to_contain_text(f"step {step} loss")
    (desk.base / "digits-ends").touch()
    expect(tab.locator("#log")).to_contain_text("last")
    expect(tab.locator("#log-end")).to_have_text("The log is complete.")
    lines = [line.strip() for line in tab.locator("#log .line").all_inner_texts()]
    assert [line.split()[0] for line in lines] == ["red", "step", "step", "step", "last"]
    tab.get_by_label("Find in the whole log").fill("step 1")
    tab.get_by_role("button", name="Find").click()
    expect(tab.locator("#log .line")).to_have_count(1)


def test_file_of_job_is_downloaded_and_not_opened(desk: Desk, tab: Page) -> None:
    page = "<script>document.title='hacked'</script>"
    (desk.base / "page.html").write_text(page)
    job_id = desk.submit("writes", f"cp '{desk.base}/page.html' $RESULT_DIR/")
    desk.await_state(job_id, "COMPLETED")
    tab.goto(f"/jobs/{job_id}")
    tab.get_by_role("navigation", name="Job").get_by_role("link", name="Files").click()
    with tab.expect_download() as awaited:
        tab.get_by_role("link", name="page.html").click()
    assert awaited.value.suggested_filename == "page.html"
    assert Path(awaited.value.path()).read_text() == page
    address = tab.get_by_role("link", name="page.html").get_attribute("href")
    with tab.expect_download():  # also as an address that another page links to, without the attribute `download`
        tab.evaluate("(address) => { location.href = address }", address)
    assert "Files of writes" in tab.title()


def test_log_of_100_mb_is_shown_searched_and_downloaded_in_little_memory(desk: Desk, server: Server, tab: Page) -> None:
    config = desk.base / "ffdl.toml"
    config.write_text(f'log_rate = "1GiB"\n{config.read_text()}')
    desk.run("daemon", "restart")
    (desk.base / "model" / "long.py").write_text(LONG)
    job_id = desk.submit("long", f"python3 long.py '{desk.base}/long-ends'")
    desk.await_state(job_id, "PROCESSING")
    before = peak_memory(server.process.pid)
    tab.goto(f"/jobs/{job_id}/log")
    expect(tab.locator("#log")).to_contain_text(f"line {LINES - 1} ")
    assert tab.locator("#log .line").count() <= 5000
    tab.get_by_label("Wrap lines").uncheck()
    expect(tab.locator("#log")).to_have_class("log unwrapped")
    (desk.base / "long-ends").touch()
    expect(tab.locator("#log-end")).to_have_text("The log is complete.")
    tab.reload()
    expect(tab.locator("#log .line").last).to_contain_text("the end")
    assert tab.locator("#log .line").count() == 1000
    tab.get_by_label("Find in the whole log").fill("line 12345 ")
    tab.get_by_role("button", name="Find").click()
    expect(tab.locator("#log .line")).to_have_count(1)
    with tab.expect_download() as awaited:
        tab.get_by_role("link", name="Download").click()
    assert Path(awaited.value.path()).stat().st_size == LINES * 100 + len("the end\n")
    assert peak_memory(server.process.pid) - before < LINES * 100 // 2


def peak_memory(pid: int) -> int:
    """The most bytes of memory that the process has held."""
    (found,) = re.findall(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found) * 1024


def test_page_goes_on_after_restart_of_daemon(desk: Desk, tab: Page) -> None:
    job_id = start(desk)
    expect(tab.locator(f"tr#{job_id} .state")).to_have_text("PROCESSING")
    (daemon,) = desk.site.processes
    daemon.send_signal(signal.SIGKILL)
    daemon.wait()
    (desk.base / "digits-ends").touch()
    desk.await_state(job_id, "COMPLETED")
    expect(tab.locator(f"tr#{job_id} .state")).to_have_text("COMPLETED")


def test_page_reports_end_of_its_server(server: Server, tab: Page) -> None:
    expect(tab.get_by_text("No jobs yet")).to_be_visible()
    server.end()
    expect(tab.get_by_role("status")).to_have_text("ffdl web does not answer")


def test_texts_of_users_are_no_markup(desk: Desk, tab: Page) -> None:
    manifest = desk.base / "evil.yml"
    manifest.write_text(
        f"name: '{EVIL}'\nframework:\n  name: custom\n  version: python-numpy\n"
        f"  command: python3 train.py '{desk.base}/evil'\ncpus: 1\nmemory: 100MB\n"
        f"batch:\n  sweep: {{VALUE: ['{EVIL}', b]}}\n" + METRICS.format()
    )
    array = desk.run("submit", "--parsable", str(manifest), str(desk.base / "model")).strip()
    first = next(job["id"] for job in desk_jobs(desk, array) if job["array_index"] == 0)
    desk.await_state(first, "PROCESSING")
    (desk.base / "evil-step-0").touch()
    for path in (
        "/", f"/?array={array}", f"/?text={EVIL}", f"/jobs/{first}", f"/jobs/{first}/log",
        f"/jobs/{first}/log?text={EVIL}",
        f"/jobs/{first}/metrics", f"/jobs/{first}/submitted", f"/compare?array={array}", f"/jobs/{EVIL}",
        f"/submit?job={first}",
    ):  # fmt: skip
        tab.goto(path)
        tab.wait_for_timeout(100)
        assert tab.locator("img").count() == 0, path
        assert "ffdl" in tab.title(), path


def desk_jobs(desk: Desk, array: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(desk.run("list", "--json", "--array", array))["jobs"]
    return found


def test_metrics_are_drawn_and_can_be_read_without_scripts(
    desk: Desk, server: Server, tab: Page, browser: Browser
) -> None:
    manifest = desk.base / "measured.yml"
    manifest.write_text(
        "name: measured\nframework:\n  name: custom\n  version: python-numpy\n"
        f"  command: python3 train.py '{desk.base}/measured'\ncpus: 1\nmemory: 100MB\n" + METRICS.format()
    )
    for step in range(5):
        (desk.base / f"measured-step-{step}").touch()
    (desk.base / "measured-ends").touch()
    job_id = desk.run("submit", "--parsable", str(manifest), str(desk.base / "model")).strip()
    desk.await_state(job_id, "COMPLETED")
    tab.goto(f"/jobs/{job_id}/metrics")
    expect(tab.locator(".chart").first).to_contain_text("train/loss by iteration")
    expect(tab.locator(".chart canvas").first).to_be_visible()
    tab.get_by_label("Log scale").check()
    tab.get_by_label("Smoothing").fill("0.9")
    expect(tab.locator(".chart canvas").first).to_be_visible()
    with without_scripts(browser, server, tab) as other:
        other.goto(f"/jobs/{job_id}/metrics")
        expect(other.get_by_role("row").filter(has_text="train/loss")).to_contain_text("0.2")
        other.goto(f"/jobs/{job_id}/log")
        expect(other.locator("#log")).to_contain_text("step 4")


def test_editor_checks_as_one_types_and_submits_uploaded_archive(desk: Desk, tab: Page) -> None:
    archive = desk.base / "model.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        packed.write(desk.base / "model" / "train.py", "train.py")
    tab.get_by_role("link", name="Submit", exact=True).click()
    expect(tab.get_by_text("The manifest is valid.")).to_be_visible()
    editor = tab.get_by_label("Manifest")
    editor.fill("name: typed\nlearners: many\n")
    expect(tab.locator(".findings .error").first).to_contain_text("line")
    tab.get_by_role("link", name="line 2").first.click()
    chosen = editor.evaluate("(e) => e.value.slice(e.selectionStart, e.selectionEnd)")
    assert chosen == "learners: many"
    editor.fill(
        f"name: typed\nframework: {{name: custom, version: python-numpy, "
        f"command: 'python3 train.py {desk.base}/typed'}}\n"
        "cpus: 1\nmemory: 100MB\n"
    )
    expect(tab.get_by_text("The manifest is valid.")).to_be_visible()
    tab.get_by_label("or a zip archive").set_input_files(archive)
    tab.get_by_role("button", name="Submit").click()
    expect(tab.locator("h1 .state")).to_have_text("PROCESSING")


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.full)])
def test_pages_are_accessible_and_fit_narrow_screens(desk: Desk, tab: Page, scheme: str) -> None:
    job_id, failed = start(desk), desk.submit("fails", "python3 nothing.py")
    desk.await_state(failed, "FAILED")
    waiting = [desk.submit(f"waits-{number}", "sleep 600") for number in range(3)]
    tab.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    pages = {
        "jobs": "/", "job": f"/jobs/{job_id}", "failed": f"/jobs/{failed}", "waits": f"/jobs/{waiting[-1]}",
        "log": f"/jobs/{job_id}/log", "metrics": f"/jobs/{job_id}/metrics", "submitted": f"/jobs/{job_id}/submitted",
        "files": f"/jobs/{failed}/results?kind=logs",
        "compare": f"/compare?id={job_id}&id={failed}", "error": "/jobs/training-000000000", "submit": "/submit",
        "usage": "/reports?days=1", "cluster": "/cluster", "notices": "/notices",
    }  # fmt: skip
    for name, path in pages.items():
        tab.set_viewport_size({"width": 1200, "height": 800})
        tab.goto(path)
        tab.screenshot(path=shot(f"{name}-{scheme}"))
        found = Axe().run(tab)
        assert found.violations_count == 0, f"{path}: {found.generate_report()}"
        tab.set_viewport_size({"width": 380, "height": 700})
        tab.screenshot(path=shot(f"{name}-{scheme}-narrow"))
        wide = tab.evaluate("document.documentElement.scrollWidth")
        assert wide <= 380, f"{path} is {wide} pixels wide"


def test_cluster_page_draws_sizes_of_elastic_jobs(browser: Browser, tmp_path: Path) -> None:
    with slurm_site(tmp_path) as site, page_of(Desk(site, tmp_path), "--tcp", "0") as server:
        first = submit_elastic(site, "first")
        trains_with(site, first, 4)
        second = submit_elastic(site, "second")
        trains_with(site, first, 2)
        trains_with(site, second, 2)
        for what, shown in FakeSlurmHarness.SHOWN.items():
            (tmp_path / "slurm" / f"show-{what}").write_text(shown)
        with tab_of(browser, server) as tab:
            tab.get_by_role("link", name="Cluster").click()
            expect(tab.locator(".chart canvas")).to_be_visible()
            expect(tab.locator(".chart")).to_contain_text("Pool default: GPUs by hours from now")
            expect(tab.locator(".u-legend")).to_contain_text(first)
            expect(tab.locator(".card tr").filter(has_text=second)).to_contain_text("PROCESSING")
            tab.get_by_label("GPUs of each").fill("2")
            tab.get_by_label("GPU type").fill("a100")
            tab.get_by_role("button", name="Look").click()
            expect(tab.get_by_label("GPUs of each")).to_have_value("2")
            capacity = tab.locator("section").filter(has_text="Capacity now").locator("tbody td")
            expect(capacity).to_have_text(["main", "a100", "1", "4", "1", "0"])
            expect(tab.locator("section").filter(has_text="accept no jobs")).to_contain_text("no power")
            expect(tab.locator(".chart canvas")).to_be_visible()
            tab.screenshot(path=shot("pool"), full_page=True)
            assert Axe().run(tab).violations_count == 0
            drawn = tab.evaluate("fetch('/cluster/pools.json').then((answer) => answer.json())")
        curves = drawn["metrics"]["charts"][0]["curves"]
        assert [len(set(curve["ys"])) > 1 for curve in curves if first in curve["label"]] == [True]
        ends_without_loss(site, first, second)


def test_comparison_of_sweep_draws_points_and_can_be_read_without_scripts(
    desk: Desk, server: Server, tab: Page, browser: Browser
) -> None:
    array = run_sweep(desk)
    tab.goto(f"/?array={array}")
    tab.get_by_role("link", name="Compare metrics").click()
    expect(tab.get_by_role("heading", level=2)).to_have_text(
        ["Least train/loss by LR", "Least train/loss by OPT", "train/loss by iteration"]
    )
    expect(tab.locator(".chart canvas")).to_have_count(3)
    expect(tab.locator(".u-legend").first).to_contain_text("OPT=adam LR=0.001")
    tab.screenshot(path=shot("sweep"), full_page=True)
    assert Axe().run(tab).violations_count == 0
    tab.set_viewport_size({"width": 380, "height": 700})
    assert tab.evaluate("document.documentElement.scrollWidth") <= 380
    with without_scripts(browser, server, tab) as plain:
        plain.goto(f"/compare?array={array}")
        plain.get_by_label("Best is the").select_option("most")
        plain.get_by_role("button", name="Show").click()
        expect(plain.locator("tbody tr").first).to_contain_text("sgd")
        expect(plain.locator("tbody tr").first).to_contain_text("iteration 0")


def test_other_browsers_need_their_own_address(browser: Browser, server: Server, tab: Page) -> None:
    expect(tab.get_by_role("heading", name="Jobs")).to_be_visible()
    context = browser.new_context(base_url=f"http://localhost:{server.port}")
    try:
        stranger = context.new_page()
        for path in ("/", server.address):
            assert stranger.goto(path).status == 403  # type: ignore[union-attr]
    finally:
        context.close()


@needs_root
def test_browser_of_another_user_is_refused(desk: Desk, server: Server, tab: Page) -> None:
    job_id = start(desk)
    tab.goto(f"/jobs/{job_id}")
    expect(tab.locator("h1 .state")).to_have_text("PROCESSING")
    server_address = f"http://localhost:{server.port}"
    with tempfile.TemporaryDirectory() as home:
        os.chown(home, OTHER_UID, OTHER_UID)
        for path in ("/", f"/jobs/{job_id}", f"/jobs/{job_id}/log", "/open?token=guessed", server.address):
            shown = browse_as(OTHER_UID, home, f"{server_address}{path}")
            assert "This page belongs to another user." in shown
            assert job_id not in shown
        own = browse_as(0, home, f"{server_address}/")
    assert "open the address that it prints" in own
    tab.goto(f"/jobs/{job_id}/log")
    expect(tab.locator("#log .fg1")).to_have_text("red")


def browse_as(uid: int, home: str, address: str) -> str:
    """What the browser of that user has as the page."""
    program = shutil.which("chromium")
    assert program
    argv = [program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
            f"--user-data-dir={home}/{uid}", "--dump-dom", address]  # fmt: skip
    done = subprocess.run(
        argv, cwd="/", env={"HOME": home, "PATH": os.defpath}, user=uid, group=uid, extra_groups=[],
        capture_output=True, text=True, check=True, timeout=LIMIT_S,
    )  # fmt: skip
    return done.stdout
