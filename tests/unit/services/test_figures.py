"""The daemon's figures: counted once, over restarts, of its own user's jobs; the text is Prometheus' own; the dashboard
asks for what is there."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ffdl_batch.daemon.platform import Platform
from ffdl_batch.domain.job.job import AttemptEnd, Change
from ffdl_batch.domain.job_state import JobState
from ffdl_batch.domain.metrics.prometheus_text import Family, Histogram, render
from ffdl_batch.domain.outcome.continuation import Interruption
from ffdl_batch.domain.outcome.controller_events import Outcome
from ffdl_batch.domain.outcome.observation import EndCause, NativeId
from ffdl_batch.domain.scheduler_errors import SchedulerUnreachable
from ffdl_batch.services.reports.prometheus_metrics import Counted, Figures
from tests.unit.services.conftest import Site, write_events, write_final

DASHBOARD = Path(__file__).parents[3] / "docs" / "grafana" / "ffdl-dashboard.json"
Labels = tuple[tuple[str, str], ...]


def parsed(text: str) -> dict[str, dict[Labels, float]]:
    """By the library that Prometheus' users have: name → labels → value."""
    found: dict[str, dict[Labels, float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


def figures_of(platform: Platform) -> Figures:
    return Figures(platform.storage, platform.adapters, lambda: Counted(1000.0, 7, 2))


def value(found: dict[str, dict[Labels, float]], name: str, **labels: str) -> float:
    """The only one with these labels."""
    (only,) = [number for have, number in found[name].items() if labels.items() <= dict(have).items()]
    return only


@pytest.fixture
def ended(site: Site) -> Iterator[Site]:
    """One job that has ended, and one that waits."""
    job = site.deployed("k1")
    site.clock.tick(50.0)
    site.scheduler.run(NativeId(job.native_id))
    write_events(site, job, [("load-model", site.clock.now())])
    site.watch()
    site.clock.tick(100.0)
    write_final(site, job, Outcome.COMPLETED)
    site.end(job, EndCause.SUCCESS)
    site.accept("k2")
    yield site


def test_figures_report_states_ends_and_phase_times(ended: Site) -> None:
    found = parsed(figures_of(ended.platform).text())
    states = {dict(labels)["state"]: number for labels, number in found["ffdl_jobs"].items() if number}
    assert states == {"PENDING": 1.0, "COMPLETED": 1.0}
    assert value(found, "ffdl_jobs_ended_total", state="COMPLETED", error_code="000", backend="fake") == 1
    assert value(found, "ffdl_job_phase_seconds_count", state="QUEUED") == 1
    assert value(found, "ffdl_job_phase_seconds_sum", state="QUEUED") == pytest.approx(50.0, abs=1.0)
    assert value(found, "ffdl_job_phase_seconds_bucket", state="QUEUED", le="30.0") == 0
    assert value(found, "ffdl_job_phase_seconds_bucket", state="QUEUED", le="60.0") == 1
    assert value(found, "ffdl_attempts_total") == 1 and value(found, "ffdl_pending_uploads") == 0
    assert value(found, "ffdl_http_requests_total") == 7 and value(found, "ffdl_http_streams") == 2
    assert value(found, "process_resident_memory_bytes") > 1e6


def test_figures_count_each_event_once_after_repeated_reads_and_restart(ended: Site) -> None:
    figures = figures_of(ended.platform)

    def counted(which: Figures) -> dict[str, dict[Labels, float]]:
        found = parsed(which.text())
        return {name: found[name] for name in found if name.startswith(("ffdl_job", "ffdl_attempts"))}

    first = counted(figures)
    assert counted(figures) == first == counted(figures_of(ended.platform))
    ended.deployed("k3")
    later = counted(figures)
    assert value(later, "ffdl_job_phase_seconds_count", state="PENDING") > value(
        first, "ffdl_job_phase_seconds_count", state="PENDING"
    )
    assert later == counted(figures_of(ended.platform))


def test_figures_count_failed_job_once_after_late_upload(site: Site) -> None:
    job, store = site.deployed("k1"), site.platform.storage.store
    change = Change(
        ((JobState.FAILED, site.clock.now()),), error_code="S303", attempt_end=AttemptEnd(upload_pending=True)
    )
    assert store.apply(job, change) is not None
    assert store.note_uploaded(job.id, 1, site.clock.now() + 60.0)
    found = parsed(figures_of(site.platform).text())
    assert value(found, "ffdl_jobs_ended_total", state="FAILED") == 1
    assert value(found, "ffdl_jobs_ended_total", error_code="S303") == 1


def test_figures_exclude_jobs_of_other_users(ended: Site) -> None:
    from dataclasses import replace

    found = parsed(
        figures_of(
            replace(ended.platform, storage=replace(ended.platform.storage, uid=ended.platform.storage.uid + 1))
        ).text()
    )
    assert not {"ffdl_jobs", "ffdl_jobs_ended_total", "ffdl_attempts_total"} & found.keys()


def test_figures_count_interrupted_attempts_by_cause(site: Site) -> None:
    job = site.deployed("k1")
    site.scheduler.run(NativeId(job.native_id))
    site.watch()
    write_final(site, job, Outcome.TIMED_OUT, interruption=Interruption.TIMEOUT.value)
    site.end(job, EndCause.SUCCESS)
    found = parsed(figures_of(site.platform).text())
    assert value(found, "ffdl_recoveries_total", interruption="timeout", drill="no") == 1


def test_figures_report_backend_availability_and_request_times(site: Site) -> None:
    adapters, name = site.platform.adapters, "fake"
    with adapters.asking(name):
        site.clock.tick(0.2)
    found = parsed(figures_of(site.platform).text())
    assert value(found, "ffdl_backend_up", backend=name) == 1
    assert value(found, "ffdl_scheduler_request_seconds_count", backend=name, outcome="answered") == 1
    assert value(found, "ffdl_scheduler_request_seconds_bucket", le="0.1") == 0
    assert value(found, "ffdl_scheduler_request_seconds_bucket", le="0.25") == 1
    with pytest.raises(SchedulerUnreachable), adapters.asking(name):
        raise SchedulerUnreachable("away")
    found = parsed(figures_of(site.platform).text())
    assert value(found, "ffdl_backend_up", backend=name) == 0
    assert value(found, "ffdl_scheduler_request_seconds_count", outcome="failed") == 1


def test_render_produces_text_that_prometheus_client_parses() -> None:
    family = Family("a_total", "counter", "Two\nlines \\ and")
    family.put(1.5, name='x"y\\z\n')
    family.put(float("inf"), name="b")
    histogram = Histogram((1.0, 2.5))
    for number in (1.0, 1.1, 99.0):
        histogram.observe(number)
    times = Family("t_seconds", "histogram", "t")
    times.put(histogram)
    found = parsed(render([family, times]))
    assert found["a_total"] == {(("name", 'x"y\\z\n'),): 1.5, (("name", "b"),): math.inf}
    assert found["t_seconds_bucket"] == {(("le", "1.0"),): 1.0, (("le", "2.5"),): 2.0, (("le", "+Inf"),): 3.0}
    assert found["t_seconds_count"] == {(): 3.0} and found["t_seconds_sum"] == {(): pytest.approx(101.1)}


# --------------------------------------------------------------------------------------------------------- dashboard

_NAME = re.compile(r"\b(?:ffdl|process)_[a-z_]+")
_MATCHER = re.compile(r"\b((?:ffdl|process)_[a-z_]+)\{([^}]*)\}")
_LABEL = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)")
_BY = re.compile(r"\b(?:by|on) \(([^)]*)\)")


def expressions(board: dict[str, Any]) -> list[str]:
    return [target["expr"] for panel in board["panels"] for target in panel["targets"]]


def test_dashboard_uses_only_existing_metrics_and_labels_and_shows_every_exported_metric(ended: Site) -> None:
    with ended.platform.adapters.asking("fake"):
        pass
    names = set(re.findall(r"^# TYPE (\w+)", figures_of(ended.platform).text(), re.MULTILINE))
    labels = {name: {key for have in values for key, _ in have} for name, values in parsed(
        figures_of(ended.platform).text()
    ).items()}  # fmt: skip
    labels.setdefault("ffdl_recoveries_total", {"backend", "interruption", "drill"})
    board = json.loads(DASHBOARD.read_text())
    asked = expressions(board)
    assert len(asked) >= 15 and len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    for text in asked:
        for name in _NAME.findall(text):
            assert name in labels, f"{name} of {text!r} is not told"
            assert re.sub("_(bucket|sum|count)$", "", name) in names
        of_it = {label for name in _NAME.findall(text) for label in labels[name]} | {"instance"}
        for name, inside in _MATCHER.findall(text):
            assert set(_LABEL.findall(inside)) <= labels[name] | {"instance"}, text
        grouped = {word.strip() for inside in _BY.findall(text) for word in inside.split(",")}
        assert grouped <= of_it, text
    shown = {re.sub("_(bucket|sum|count)$", "", name) for text in asked for name in _NAME.findall(text)}
    assert not {name for name in names if name.startswith("ffdl_")} - shown
