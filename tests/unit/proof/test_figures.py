"""The benchmarks' figures and their table."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from unittest.mock import Mock

import pytest

from tests.benchmarks import __main__ as benchmarks
from tests.benchmarks import running
from tests.benchmarks.figures import Figure, shown, table
from tests.proof.desk import SOURCE

_OF_ROOT = "-dac_override,-dac_read_search"
BOUND_BY_MODES = ("setpriv", f"--inh-caps={_OF_ROOT}", f"--bounding-set={_OF_ROOT}") if os.geteuid() == 0 else ()
"""Starts a program for which the modes of files count, also if it is root's."""


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


@pytest.mark.usefixtures("bound_by_modes")
@pytest.mark.parametrize("beside", ["results", "results/training-1", "digits.tmp"])
def test_training_benchmark_copies_example_beside_directories_of_another_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beside: str
) -> None:
    """`make quickstart` leaves results that only its user, usually root, can read."""
    example, base = tmp_path / "src" / "docs" / "examples" / "digits", tmp_path / "desk"
    for name in ("manifest.yml", "model/train.py", "data/digits/train.npz", f"data/{beside}/result.json"):
        (example / name).parent.mkdir(parents=True, exist_ok=True)
        (example / name).write_text(name)
    base.mkdir()

    def run_on_node(*argv: str) -> None:
        words = [word.replace(SOURCE, str(tmp_path / "src")) for word in argv]
        done = subprocess.run([*BOUND_BY_MODES, *words], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")

    monkeypatch.setattr(running, "EXAMPLE", example)
    closed = example / "data" / beside.partition("/")[0]
    closed.chmod(0)
    running.copy_example(Mock(**{"desk.base": str(base), "desk.run": run_on_node}))
    closed.chmod(0o700)
    copied = [str(path.relative_to(base / "digits")) for path in base.rglob("*") if path.is_file()]
    assert sorted(copied) == ["data/digits/train.npz", "manifest.yml", "model/train.py"]


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
