"""What the benchmarks make of two moments of a daemon, and of their options."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.benchmarks.__main__ import NAMES, _read
from tests.benchmarks.counted_daemon import Counts, read_counts
from tests.benchmarks.figures import Figure
from tests.benchmarks.knobs import Knobs
from tests.benchmarks.load import Moment, compare, side_by_side


def test_load_benchmark_compares_two_moments_per_minute_and_core() -> None:
    before = Moment(100.0, 5.0, 1.0, 10, 2, 1000, Counter(squeue=3, sbatch=7))
    after = Moment(130.0, 5.6, 1.3, 70, 12, 4000, Counter(squeue=18, sbatch=7, others=1))
    figures = compare("10 live", before, after)
    assert {figure.measure: (round(figure.samples[0], 6), figure.unit) for figure in figures} == {
        "daemon itself, of one core": (2.0, "%"),
        "its children, of one core": (1.0, "%"),
        "squeue calls": (30.0, "1/min"),
        "other scheduler calls": (2.0, "1/min"),
        "SQL statements": (120.0, "1/min"),
        "commits": (20.0, "1/min"),
        "reads and writes": (6000.0, "1/min"),
    }


def test_load_benchmark_groups_figures_by_measure() -> None:
    figures = [Figure(what, measure, "ffdl", "s", [1.0]) for what in ("1000", "10000") for measure in ("b", "a")]
    assert [(one.measure, one.benchmark) for one in side_by_side(figures)] == [
        ("b", "1000"),
        ("b", "10000"),
        ("a", "1000"),
        ("a", "10000"),
    ]


def test_counted_daemon_counts_are_readable_while_they_grow(tmp_path: Path) -> None:
    counts = Counts(tmp_path / "counts")
    assert read_counts(tmp_path / "counts") == (0, 0)
    counts.add(statements=2**33)
    counts.add(statements=1, commits=3)
    assert read_counts(tmp_path / "counts") == (2**33 + 1, 3)


def test_benchmark_options_set_knobs() -> None:
    names, knobs, output = _read(["load", "--load", "10,20", "--database", "both", "--output", "here.json", "--real"])
    assert (names, output) == (["load"], Path("here.json"))
    assert knobs == Knobs(load=(10, 20), databases=("sqlite", "postgres"), real=True)
    assert _read([])[:2] == (list(NAMES), Knobs())


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("nothing", "no benchmark 'nothing'"),
        ("--load=0", "at least 1"),
        ("--load=many", "invalid"),
        ("--deaths=0", "at least 1"),
        ("--settle=-1", "below 0"),
        ("--staged-files=0", "at least 1"),
        ("--in-arrays=101", "percentage"),
    ],
)
def test_benchmark_options_reject_value_that_measures_nothing(
    argument: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        _read([argument])
    assert said in capsys.readouterr().err
