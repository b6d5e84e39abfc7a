"""`ffdl report usage`: periods, forms, files and exit codes, against a fake daemon."""

from __future__ import annotations

import csv
import io
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import click
import pytest

from ffdl_batch.cli.commands.report.usage import CSV_COLUMNS
from ffdl_batch.cli.commands.report.usage_document import read_month, read_period, span
from ffdl_batch.domain.codec import to_plain
from ffdl_batch.domain.findings import Finding
from ffdl_batch.domain.job.views import Problem
from ffdl_batch.domain.metrics.usage_report import (
    PUBLISHED_FRAMEWORKS,
    PUBLISHED_GPUS,
    PUBLISHED_LEARNERS,
    Agreement,
    AgreementRow,
    Efficiency,
    Group,
    JobUse,
    UsageReport,
    Waste,
    distribution,
    shares,
)
from tests.unit.cli.programs import FFDL, json_lines, run
from tests.unit.cli.test_report_rendering import Page
from tests.unit.client.fake_daemon import FakeDaemon

BERLIN = {"TZ": "Europe/Berlin"}
BEGIN, END = 1_793_487_600.0, 1_796_079_600.0  # November 2026 in Berlin
USE = JobUse(
    "training-000000001", "", "=cmd()", "ada", 1000, "physics", "pytorch", "2.4", "slurm", "a100", 2, 1.0, 1,
    "COMPLETED", "000", BEGIN + 60, BEGIN + 120, BEGIN + 7320, 60.0, 4.0, 16.0, 0.0, 9.5, "EUR",
)  # fmt: skip
GROUP = (Group("physics", 3, 7.0, 28.0, 1.5, 12.25), Group("-", 1, 0.0, 2.0, 0.0, 0.06))


def report(**changes: object) -> UsageReport:
    found = UsageReport(
        since=BEGIN, until=END, now=END + 1, jobs=4, submitted=3, attempts=5, running=1, never_ran=1, gpu_hours=7.0,
        cpu_hours=30.0, cost=12.31, currency="EUR", has_costs=True, tenants=GROUP, users=GROUP, frameworks=GROUP,
        by_framework=shares({"pytorch": 3, "tensorflow": 1}, PUBLISHED_FRAMEWORKS),
        gpus_per_learner=shares({"1": 4}, PUBLISHED_GPUS), learners_per_job=shares({"1": 4}, PUBLISHED_LEARNERS),
        times=(distribution("queueing", [2.0, 20.0]), distribution("download", []), distribution("processing", [90.0])),
        held=(Waste("held while data were loaded", 0.5, 2),), lost=(Waste("time limit", 1.5, 1),),
        efficiency=Efficiency(7.0, 3.5, 2.8, 0.5, 1),
    )  # fmt: skip
    return replace(found, **changes)  # type: ignore[arg-type]


@pytest.fixture
def told(daemon: FakeDaemon) -> FakeDaemon:
    """A daemon with a report of November."""
    daemon.reports["usage"] = {"usage": to_plain(report())}
    uses = (USE, replace(USE, job="training-000000002", started_at=None))
    rows = [json.dumps({"use": to_plain(one)}) for one in uses]
    daemon.reports["usage/jobs"] = [*rows, '{"end":2}']
    return daemon


def asked(daemon: FakeDaemon) -> dict[str, list[str]]:
    return parse_qs(urlsplit(daemon.requests[-1]).query)


def november(daemon: FakeDaemon, *arguments: str | Path) -> str:
    done = run(FFDL, "report", "usage", "--month", "2026-11", *arguments, daemon=daemon, env=BERLIN)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_report_usage_text_prints_hours_cost_times_and_waste(told: FakeDaemon) -> None:
    text = november(told)
    assert "From 2026-11-01T00:00:00+01:00 to 2026-12-01T00:00:00+01:00, local time." in text
    assert "7.0 GPU-hours and 30.0 CPU-hours were held; they cost 12.31 EUR." in text
    lines = [line.split() for line in text.splitlines()]
    assert ["physics", "3", "7.0", "100.0", "28.0", "1.5", "12.25"] in lines
    assert ["tensorflow", "1", "25.0", "69.3"] in lines
    assert ["caffe", "0", "0.0", "17.7"] in lines
    assert "For 3 or more, the paper has about 25 %." in text
    queueing = next(line for line in text.splitlines() if line.startswith("queueing"))
    assert "50.0 % up to 16 s" in queueing
    assert queueing.endswith("most within 16 s")
    assert "GPU utilisation was 80.0 %, weighted by GPU time. There are samples for 50.0 % of it" in text
    assert "The samples of 1 attempt were not read" in text
    assert ["time", "limit", "1", "1.5", "21.4"] in lines
    assert ["held", "while", "data", "were", "loaded", "2", "0.5", "7.1"] in lines
    assert ["idle", "according", "to", "samples,", "whatever", "the", "cause", "-", "0.5", "7.1"] in lines


def test_report_usage_month_follows_local_time_zone(told: FakeDaemon) -> None:
    november(told)
    assert [float(asked(told)[name][0]) for name in ("since", "until")] == [BEGIN, END]
    run(FFDL, "report", "usage", "--month", "2026-11", daemon=told, env={"TZ": "UTC"})
    assert float(asked(told)["since"][0]) == BEGIN + 3600


def test_report_usage_csv_has_row_per_job_and_escapes_formulas(told: FakeDaemon) -> None:
    rows = list(csv.DictReader(io.StringIO(november(told, "--format", "csv"))))
    assert tuple(rows[0]) == CSV_COLUMNS
    assert [row["job"] for row in rows] == ["training-000000001", "training-000000002"]
    first = rows[0]
    assert first["name"] == "'=cmd()"
    assert (first["gpu_hours"], first["cost"], first["currency"]) == ("4.000000", "9.5000", "EUR")
    assert (first["period_from"], first["submitted"]) == ("2026-11-01T00:00:00+01:00", "2026-11-01T00:01:00+01:00")
    assert rows[1]["started"] == ""


def test_report_usage_keeps_old_file_when_stream_breaks(told: FakeDaemon, tmp_path: Path) -> None:
    out = tmp_path / "november.csv"
    out.write_text("October\n")
    lines = told.reports["usage/jobs"]
    assert isinstance(lines, list)
    told.reports["usage/jobs"] = lines[:1]
    done = run(FFDL, "report", "usage", "--format", "csv", "-o", out, daemon=told)
    assert done.returncode == 75
    assert "the report broke off" in done.stderr
    assert out.read_text() == "October\n"
    assert [child.name for child in tmp_path.iterdir()] == ["november.csv"]


def test_report_usage_writes_html_file(told: FakeDaemon, tmp_path: Path) -> None:
    assert november(told, "--format", "html", "--output", tmp_path / "november.html") == ""
    page = Page((tmp_path / "november.html").read_text())
    assert page.open == [] and "svg" in {tag for tag, _ in page.seen} and "physics" in page.words
    assert [child.name for child in tmp_path.iterdir()] == ["november.html"]


def test_report_usage_prints_one_grouping_markdown_and_json(told: FakeDaemon) -> None:
    text = november(told, "--by", "framework")
    assert "By framework" in text and "By tenant" not in text
    assert "| physics | 3 | 7.0 | 100.0 | 28.0 | 1.5 | 12.25 |" in november(told, "--format", "markdown").splitlines()
    (document,) = json_lines(november(told, "--json"))
    assert document["usage"]["gpu_hours"] == 7.0
    assert document["usage"]["since"] == BEGIN


def test_report_usage_prints_no_figures_for_month_without_jobs_or_samples(told: FakeDaemon) -> None:
    empty = UsageReport(BEGIN, END, END, 0, 0, 0, 0, 0, 0.0, 0.0, 0.0)
    told.reports["usage"] = {"usage": to_plain(empty)}
    text = november(told)
    assert "0 jobs in 30.0 days" in text
    assert "no rates are configured" in text
    assert not any(word in text for word in ("TENANT", "Times", "Efficiency", "Waste"))
    told.reports["usage"] = {"usage": to_plain(report(efficiency=Efficiency(7.0)))}
    assert "There are no samples of GPUs" in november(told)


@pytest.mark.parametrize(
    ("found", "code", "said"),
    [
        (Agreement(2, 0, 0, 1, 4.0, 4.0, backends=("slurm",)), 0, "1 job left out"),
        (Agreement(2, 1, 0, 0, 4.0, 3.0, backends=("slurm",)), 1, "1 differ by more than 30 s a run"),
        (Agreement(2, 0, 1, 0, 4.0, 3.0, backends=("slurm",)), 1, "1 are unknown to it"),
        (Agreement(2, 0, 1, 0, 4.0, 4.0, backends=("slurm",), gpus_counted=1), 1, "theirs, of the 1 whose GPUs it"),
        (Agreement(0, 0, 0, 0, 0.0, 0.0, without=("local",)), 69, "local has no accounting"),
        (Agreement(0, 0, 0, 0, 0.0, 0.0), 0, "There is nothing to compare with."),
    ],
)
def test_report_usage_check_exits_by_agreement_with_accounting(
    daemon: FakeDaemon, found: Agreement, code: int, said: str
) -> None:
    rows = (AgreementRow("training-000000001", ("7",), 1, 100.0, 200.0, 200.0, 400.0, known=True, differs=True),)
    found = replace(found, rows=rows if found.differing else ())
    daemon.reports["usage/agreement"] = {"agreement": to_plain(found)}
    done = run(FFDL, "report", "usage", "--month", "2026-11", "--check", daemon=daemon, env=BERLIN)
    assert (done.returncode, said in done.stdout) == (code, True), done.stdout
    assert ("training-000000001" in done.stdout) is bool(found.differing)
    assert float(asked(daemon)["tolerance_s"][0]) == 30.0
    if found.unknown:
        odd = AgreementRow("training-000000002", ("8",), 1, 9.0, 0.0, 9.0, None, known=False, differs=False, why="gone")
        daemon.reports["usage/agreement"] = {"agreement": to_plain(replace(found, rows=(odd,)))}
        assert "unknown: gone" in run(FFDL, "report", "usage", "--check", daemon=daemon, env=BERLIN).stdout
        daemon.reports["usage/agreement"] = {"agreement": to_plain(found)}
    as_csv = run(FFDL, "report", "usage", "--check", "--format", "csv", daemon=daemon)
    assert as_csv.stdout.startswith("job,native_ids,runs,ours_s,theirs_s")
    assert len(as_csv.stdout.splitlines()) == 1 + len(found.rows)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--month", "2026-13"], "is not a month"),
        (["--month", "November"], "is not a month"),
        (["--month", "2026-11", "--since", "1d"], "cannot be combined"),
        (["--until", "1d"], "needs --since"),
        (["--since", "1d", "--until", "2d"], "period is empty"),
        (["--format", "csv", "--by", "user"], "has a row for each job"),
        (["--check", "--by", "user"], "--check compares jobs"),
        (["--json", "--format", "html"], "exclude each other"),
        (["--output", "/nowhere/x.html"], "no directory"),
    ],
)
def test_report_usage_rejects_invalid_options_before_asking_daemon(
    daemon: FakeDaemon, arguments: list[str], said: str
) -> None:
    done = run(FFDL, "report", "usage", *arguments, daemon=daemon)
    assert (done.returncode, said in done.stderr) == (2, True), done.stderr
    assert daemon.requests == []


def test_report_usage_exits_with_code_of_daemon_refusal(daemon: FakeDaemon) -> None:
    problem = Problem("C101", "only administrators may have a report", 77, findings=tuple[Finding, ...]())
    daemon.refusals["/api/v1/reports/"] = (403, problem)
    done = run(FFDL, "report", "usage", "--all-users", daemon=daemon)
    assert (done.returncode, "only administrators" in done.stderr) == (77, True)


# ------------------------------------------------------------------------------------------------ periods


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A zone with summer time."""
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("berlin")
def test_read_month_counts_hours_across_clock_changes_without_gap_between_months() -> None:
    found = [read_month(f"2026-{number:02}") for number in range(1, 13)]
    hours = [(one.until - one.since) / 3600 for one in found]
    assert (hours[2], hours[9:]) == (743, [745, 720, 744])
    assert all(one.until == after.since for one, after in pairwise(found))
    assert found[-1].until == read_month("2027-1").since


@pytest.mark.usefixtures("berlin")
def test_read_period_defaults_to_current_month() -> None:
    now = datetime(2026, 11, 30, 23, 59).timestamp()
    assert read_period(None, None, None, now).name == "2026-11"
    assert read_period(None, now - 60, None, now).until == now


@pytest.mark.parametrize("text", ["", "2026", "2026-00", "0000-01", "9999-12", "2026-11-01", "2026-1١"])
def test_read_month_rejects_invalid_text(text: str) -> None:
    with pytest.raises(click.UsageError, match="is not a month"):
        read_month(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0 s"), (0.25, "0.25 s"), (16, "16 s"), (90, "1.5 min"), (7200, "2 h"), (90000, "1.04 d")],
)
def test_span_formats_duration_in_suitable_unit(seconds: float, text: str) -> None:
    assert span(seconds) == text
