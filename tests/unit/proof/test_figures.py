"""The benchmarks' figures and their table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.benchmarks import __main__ as benchmarks
from tests.benchmarks.figures import Figure, shown, table


def test_bench_keeps_figures_of_benchmarks_before_one_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(_cluster: object, name: str, _knobs: object, results: benchmarks.Results) -> None:
        if name == "logs":
            raise PermissionError("no")
        results.figures.append(Figure(name, "whole", "ffdl", "ms", [1.0]))

    monkeypatch.setattr(benchmarks, "_measure", measure)
    output = tmp_path / "new" / "bench.json"
    with pytest.raises(PermissionError):
        benchmarks.main(["load", "metrics", "logs", "--output", str(output)])
    assert [one["benchmark"] for one in json.loads(output.read_text())["figures"]] == ["load", "metrics"]
    assert "metrics    whole" in capsys.readouterr().out


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
