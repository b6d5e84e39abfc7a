"""The comparison of two revisions' benchmarks."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.benchmarks import compare as comparison
from tests.benchmarks.compare import Compared, compare, main, medians, table
from tests.benchmarks.figures import Figure

OURS, PLAIN = ("submit one", "whole process", "ffdl", "ms"), ("submit one", "whole process", "sbatch", "ms")


def run(ours: float, plain: float) -> Mapping[tuple[str, str, str, str], float]:
    figures = [Figure(*OURS, [ours, ours, 99.0]), Figure(*PLAIN, [plain])]
    return medians({"figures": [figure.plain() for figure in figures]})


def test_comparison_has_median_ratio_and_its_spread_over_turns() -> None:
    compared, rest = compare([run(100, 7), run(110, 7), run(90, 7)], [run(50, 7), run(66, 14), run(36, 7)])
    assert rest == []
    ours, plain = (one.row() for one in compared)
    assert ours == ("submit one", "whole process", "ffdl", "3", "100", "50", "ms", "0.50", "0.40", "0.60")
    assert plain[-3:] == ("1.00", "1.00", "2.00")
    assert table(compared).splitlines()[0].split()[-3:] == ["ratio", "min", "max"]


def test_comparison_names_figures_that_only_some_runs_have() -> None:
    new = {("drain", "one array", "ffdl", "s"): 3.0}
    compared, rest = compare([run(100, 7)] * 2, [{**run(50, 7), **new}, run(50, 7)])
    assert [one.name for one in compared] == [OURS, PLAIN] and rest == ["drain one array ffdl"]


def test_comparison_has_no_ratio_to_zero() -> None:
    assert Compared(OURS, [0.0], [1.0]).row()[-3:] == ("N/A", "N/A", "N/A")


@pytest.mark.parametrize("arguments", [["submit"], ["--base", "HEAD"], ["--base", "HEAD", "--turns", "0", "submit"]])
def test_comparison_refuses_incomplete_command(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2 and "usage:" in capsys.readouterr().err


def test_comparison_reports_unknown_revision(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--base", "no-such-revision", "submit"]) == 2
    assert "git knows no revision 'no-such-revision'" in capsys.readouterr().err


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository of two revisions whose benchmark is a file with its result."""
    tree = tmp_path / "tree"
    tree.mkdir()

    def commit(result: float) -> None:
        (tree / "Makefile").write_text("venv:\n\tmkdir -p .venv/bin && cp measure .venv/bin/python\n")
        document = json.dumps({"figures": [Figure(*OURS, [result]).plain()]})
        (tree / "measure").write_text(f"#!/bin/sh\nfor last; do :; done\ncat > \"$last\" <<'END'\n{document}\nEND\n")
        (tree / "measure").chmod(0o755)
        who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        for words in (["init", "--quiet"], ["add", "--all"], [*who, "commit", "--quiet", "-m", "measure"]):
            subprocess.run(["git", *words], cwd=tree, check=True)

    commit(80.0)
    commit(20.0)
    subprocess.run(["make", "venv"], cwd=tree, check=True)
    monkeypatch.setattr(comparison, "CHECKOUT", tree)
    monkeypatch.setattr(comparison, "BASE", tree / "build" / "bench-base")
    return tree


def test_comparison_measures_both_revisions_and_removes_base(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--base", "HEAD~1", "--turns", "3", "submit"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[-3:] == ["0.25"] * 3
    assert not (checkout / "build" / "bench-base").exists()


def test_comparison_removes_base_when_benchmark_fails(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (checkout / ".venv" / "bin" / "python").write_text("#!/bin/sh\nexit 3\n")
    assert main(["--base", "HEAD~1", "submit"]) == 2
    assert "the benchmarks of now failed with exit status 3" in capsys.readouterr().err
    assert not (checkout / "build" / "bench-base").exists()
