"""The table of concurrent jobs, with the published figures beside."""

from __future__ import annotations

from tests.benchmarks.concurrency_table import PUBLISHED, THEIRS, Level, concurrency_table, growth_figures

LEVELS = [
    Level(10, "ffdl", [2.0, 4.0]),
    Level(10, "srun", [1.0, 1.0]),
    Level(40, "ffdl", [4.0, 5.0]),
    Level(40, "srun", [3.0, 1.0]),
]


def test_concurrency_table_has_published_row_below_measured_ones_and_growth_of_each() -> None:
    _, *lines = concurrency_table(LEVELS).splitlines()
    assert [line.split()[0] for line in lines] == ["10"] * 3 + ["40"] * 3
    assert lines[0].split() == ["10", "ffdl", "2", "3", "2", "4", "1.41", "s", "+0", "%"]
    assert [line.split()[-2] for line in lines[3:]] == ["+50", "+100", "+62"]
    assert [THEIRS in line for line in lines] == [False, False, True] * 2


def test_concurrency_table_has_no_published_row_for_other_numbers_of_jobs() -> None:
    assert THEIRS not in concurrency_table([Level(2, "ffdl", [1.0])])


def test_growth_is_that_of_means_and_beyond_srun_by_ratio() -> None:
    rows = [(one.who, round(one.samples[0])) for one in growth_figures(LEVELS)]
    assert rows == [("ffdl", 50), ("srun", 100), (THEIRS, 62), ("ffdl", -25)]


def test_growth_has_no_published_row_for_other_numbers_of_jobs() -> None:
    levels = [Level(jobs, who, [float(jobs)]) for jobs in (2, 4) for who in ("ffdl", "srun")]
    assert [one.who for one in growth_figures(levels)] == ["ffdl", "srun", "ffdl"]


def test_concurrency_figure_keeps_samples_and_published_times() -> None:
    plain = LEVELS[2].figure().plain()
    assert (plain["samples"], plain["mean"], plain["published"]) == ([4.0, 5.0], 4.5, PUBLISHED[40])
