"""Pages of log lines and metrics for clients of FfDL's API."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ffdl_batch.domain.job.job import Job
from ffdl_batch.services.logs import ffdl_records
from ffdl_batch.services.logs.ffdl_records import MOST, Page, page_of_lines, page_of_metrics
from tests.unit.services.conftest import MANIFEST, Site


@pytest.fixture
def job(site: Site) -> Job:
    """A job with three learners."""
    accepted = site.accept(manifest=MANIFEST + "learners: 3\n")
    site.deploy()
    return site.job(accepted.id)


def write_log(site: Site, job: Job, learner: int, text: str, marks: str = "") -> None:
    attempt = site.attempt(job)
    log = Path(attempt.training_log(learner))
    log.parent.mkdir(parents=True, exist_ok=True)
    Path(attempt.events).mkdir(exist_ok=True)
    log.write_text(text)
    Path(attempt.marks(learner)).write_text(marks)


def page(site: Site, job: Job, first: int = 0, size: int = 10, since: float | None = None) -> list[tuple[int, str]]:
    """Number and text of each line."""
    platform = site.platform
    found = page_of_lines(platform.storage, platform.followed_jobs, site.caller, job.id, Page(first, size, since))
    return [(int(one["meta"]["rindex"]), one["line"]) for one in found]


def test_pages_have_each_line_of_each_learner_once(site: Site, job: Job) -> None:
    counts = {1: 2500, 2: 7, 3: 1200}
    for learner, count in counts.items():
        write_log(site, job, learner, "".join(f"{learner}.{n}\n" for n in range(1, count + 1)))
    seen: list[tuple[int, str]] = []
    first = 1
    while found := page(site, job, first, 5000):
        seen += found
        first = max(number for number, _ in found) + 1
    assert sorted(seen) == sorted(
        (number, f"{learner}.{number}") for learner, count in counts.items() for number in range(1, count + 1)
    )


@pytest.mark.parametrize(
    ("first", "size", "numbers"),
    [
        (0, 2, [1, 2]), (1, 2, [1, 2]), (2, 2, [2, 3]), (5, 9, [5]), (6, 9, []), (-1, 9, [5]), (-3, 2, [3, 4]),
        (-9, 2, [1, 2]),
    ],
)  # fmt: skip
def test_page_is_selected_by_number_from_beginning_or_end(
    site: Site, job: Job, first: int, size: int, numbers: list[int]
) -> None:
    write_log(site, job, 1, "".join(f"{n}\n" for n in range(1, 6)))
    assert page(site, job, first, size) == [(number, str(number)) for number in numbers]


def test_negative_position_beyond_maximum_page_begins_where_it_says(site: Site, job: Job) -> None:
    write_log(site, job, 1, "".join(f"{n}\n" for n in range(1, 6001)))
    assert page(site, job, -5000, 2) == [(1001, "1001"), (1002, "1002")]
    assert len(page(site, job, -5000, 5000)) == MOST


def test_large_lines_end_page_earlier_at_same_number_for_all_learners(
    site: Site, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ffdl_records, "MOST_BYTES", 10_000)
    for learner in (1, 2):
        write_log(site, job, learner, "".join(f"{n}{'x' * 1000}\n" for n in range(1, 21)))
    seen, first = list[int](), 1
    while found := page(site, job, first, 10):
        assert sum(len(text) for _, text in found) <= 11_000
        seen += [number for number, _ in found]
        first = max(seen) + 1
    assert sorted(seen) == sorted([*range(1, 21)] * 2)


def test_line_in_pieces_is_one_record_and_is_cut_at_its_maximum(
    site: Site, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_log(site, job, 1, f"{'x' * 300_000}\nshort\n")
    assert [(number, len(text)) for number, text in page(site, job)] == [(1, 300_000), (2, 5)]
    monkeypatch.setattr(ffdl_records, "LONGEST", 1000)
    assert [(number, len(text)) for number, text in page(site, job)] == [(1, 1000), (2, 5)]


def test_time_selects_lines_whatever_the_position_and_shown_times_select_their_own_lines(site: Site, job: Job) -> None:
    marks = "".join(f"{100 + n}.1236 {8 * (n - 1)} {n - 1}\n" for n in range(1, 6))
    write_log(site, job, 1, "".join(f"line {n:02}\n" for n in range(1, 6)), marks)
    assert [number for number, _ in page(site, job, 4, since=0.0)] == [1, 2, 3, 4, 5]
    platform = site.platform
    found = page_of_lines(platform.storage, platform.followed_jobs, site.caller, job.id, Page(since=0.0))
    third = int(found[2]["meta"]["time"]) / 1000
    assert [number for number, _ in page(site, job, since=third)] == [3, 4, 5]


def test_damaged_metrics_are_left_out_and_others_keep_their_numbers(site: Site, job: Job) -> None:
    path = Path(site.attempt(job).learner_metrics(2))
    path.parent.mkdir(parents=True)
    values = {"loss": {"type": "FLOAT", "value": "1"}}
    records = [{"meta": {"time": 1000 * n, "rindex": n}, "grouplabel": "g", "values": values} for n in (1, 2, 3)]
    records[1] = {"meta": [], "values": {}}
    path.write_text("".join(f"{json.dumps(one)}\n" for one in records))
    found = page_of_metrics(site.platform.storage, site.caller, job.id, Page(-3, 9))
    assert [(one["meta"]["rindex"], one["meta"]["time"]) for one in found] == [("1", "1000"), ("3", "3000")]
    assert page_of_metrics(site.platform.storage, site.caller, job.id, Page(3, 1)) == found[1:]
    assert page_of_metrics(site.platform.storage, site.caller, job.id, Page(since=2.0)) == found[1:]
