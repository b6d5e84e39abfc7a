"""The benchmarks' figures and their table."""

from __future__ import annotations

import pytest

from tests.benchmarks.figures import Figure, shown, table


def test_figure_computes_percentiles_and_keeps_samples() -> None:
    figure = Figure("submit", "whole", "ffdl", "ms", [float(n) for n in range(1, 201)], "<= 150")
    assert (figure.percentile(99), figure.percentile(50), figure.percentile(100)) == (198.0, 100.0, 200.0)
    assert figure.plain()["n"] == 200
    assert figure.plain()["median"] == 100.5
    assert figure.row() == ("submit", "whole", "ffdl", "200", "1", "100", "198", "200", "ms", "<= 150")


@pytest.mark.parametrize("value, text", [(0.01234, "0.0123"), (12.34, "12.3"), (123.4, "123"), (-0.5, "-0.5")])
def test_figure_value_is_printed_with_three_digits(value: float, text: str) -> None:
    assert shown(value) == text


def test_figure_table_aligns_its_columns() -> None:
    lines = table([Figure("a", "b", "ffdl", "s", [1.0]), Figure("a", "b", "sbatch", "s", [10.0], "x")]).splitlines()
    assert len(lines) == 3
    assert lines[2].endswith("x")
    assert len({line.find("ffdl") for line in lines if "ffdl" in line}) == 1
