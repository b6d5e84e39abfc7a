"""ffdl top: what its table looks like."""

from __future__ import annotations

import sys

import pytest

from ffdl_batch.cli.commands import running_learners
from ffdl_batch.cli.commands.running_learners import Block, rows_that_fit
from tests.unit.cli.programs import FFDL, run
from tests.unit.client.fake_daemon import FakeDaemon


def a_learner(number: int, *commands: str) -> dict[str, object]:
    process: dict[str, object] = {"pid": 4711, "pid_inside": 17, "cpu_percent": 99.5, "memory_bytes": 2_000_000_000}
    process |= {"gpu_memory_bytes": None, "threads": 8, "state": "R"}
    processes = [{**process, "command": command} for command in commands]
    return {"learner": number, "host": "n1", "gpus": [], "processes": processes}


@pytest.mark.parametrize("every", ["0", "0s", "0.05"])
def test_top_rejects_interval_below_minimum(daemon: FakeDaemon, every: str) -> None:
    done = run(FFDL, "top", "--every", every, "training-000000001", daemon=daemon)
    assert done.returncode == 2 and daemon.requests == []
    assert f"Error: --every: '{every}' is not a time span of 0.1 s or more" in done.stderr


@pytest.mark.parametrize(("is_terminal", "widest"), [(True, 60), (False, 1044)])
def test_top_cuts_long_command_only_on_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, is_terminal: bool, widest: int
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)
    monkeypatch.setenv("COLUMNS", "60")
    running_learners._print([a_learner(1, "x" * 1000)], [1])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3 and max(map(len, lines)) == widest


def test_top_shows_as_many_rows_as_fit_on_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    learners = [a_learner(1, *(f"a{n}" for n in range(20))), a_learner(2, "b0", "b1"), a_learner(3, "c0")]

    def drawn(lines: int) -> list[str]:
        monkeypatch.setenv("LINES", str(lines))
        monkeypatch.setenv("COLUMNS", "80")
        running_learners._print_screen(learners)
        return capsys.readouterr().out.splitlines()

    whole = drawn(30)
    assert len(whole) == 29 and "not shown" not in whole[-1]
    cut = drawn(29)
    assert len(cut) == 28
    assert cut[-1] == "not shown: 2 processes; to show them: --learner N or --once"
    commands = [line.split()[-1] for line in cut if line.startswith("4711")]
    assert commands == [*(f"a{n}" for n in range(18)), "b0", "b1", "c0"]
    few = drawn(8)
    assert len(few) == 7
    assert few[-1] == "not shown, 1 of 3 learners: 21 processes; to show them: --learner N or --once"


@pytest.mark.parametrize(
    ("blocks", "height", "shown"),
    [
        ([], 10, []),
        ([(2, 8)], 10, [8]),
        ([(2, 9)], 10, [7]),
        ([(2, 5), (3, 50)], 20, [5, 9]),
        ([(2, 50), (2, 50)], 20, [8, 7]),
        ([(2, 0), (2, 9)], 9, [0, 4]),
        ([(2, 9), (2, 9), (2, 9)], 8, [2, 1]),
        ([(5, 9)], 1, [1]),
    ],
)
def test_rows_that_fit_shares_height_between_blocks(
    blocks: list[tuple[int, int]], height: int, shown: list[int]
) -> None:
    assert rows_that_fit([Block(*block) for block in blocks], height) == shown
