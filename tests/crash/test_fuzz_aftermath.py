"""What Slurm's listings say of a world is read with the names of arrays and the ranges of their tasks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.fuzz.aftermath import Line, read_all_marks, read_lines, sent_again

JOB, OTHER, ARRAY = "training-000000001", "training-000000002", "array-000000001"
CHUNK = f"{ARRAY}-1"


def test_read_lines_keeps_only_jobs_and_arrays_of_the_given_ids() -> None:
    text = f"7|{JOB}-1\n8_[1-3]|{CHUNK}\n9|training-00000000x-1\n10|{ARRAY}\n"
    assert read_lines(text, {JOB, ARRAY}) == [Line("7", f"{JOB}-1"), Line("8_[1-3]", CHUNK)]


@pytest.mark.parametrize(
    ("native", "task", "found"),
    [
        ("8_2", "2", "8_2"),
        ("8_2", "3", ""),
        ("8_[0-3,7%2]", "7", "8_7"),
        ("8_[0-3,7%2]", "2", "8_2"),
        ("8_[0-3,7%2]", "4", ""),
        ("8_[0-8:4]", "4", "8_4"),
        ("8_[0-8:4]", "5", ""),
        ("8", "5", "8_5"),
    ],
)
def test_line_as_task_finds_task_id_in_array_range(native: str, task: str, found: str) -> None:
    assert Line(native, CHUNK).as_task(task) == found


def test_sent_again_accepts_attempts_listed_once() -> None:
    lines = [Line("7", f"{JOB}-1"), Line("8_[1-3]", CHUNK), Line("8_1", CHUNK), Line("9", f"{OTHER}-2")]
    marks = {f"{JOB}-1": [], f"{OTHER}-1": [(CHUNK, "1")], f"{OTHER}-2": [], f"{OTHER}-3": [(CHUNK, "9")]}
    assert list(sent_again(lines, marks)) == []


@pytest.mark.parametrize(
    ("lines", "tasks", "natives"),
    [
        ([Line("7", f"{JOB}-1"), Line("9", f"{JOB}-1")], [], "7 and 9"),
        ([Line("7", f"{JOB}-1"), Line("8_[0-4]", CHUNK)], [(CHUNK, "3")], "7 and 8_3"),
        ([Line("8_3", CHUNK), Line("9_0", f"{ARRAY}-2")], [(CHUNK, "3"), (f"{ARRAY}-2", "0")], "8_3 and 9_0"),
        ([Line("8_3", CHUNK), Line("9_3", CHUNK)], [(CHUNK, "3")], "8_3 and 9_3"),
    ],
)
def test_sent_again_reports_attempt_listed_twice(lines: list[Line], tasks: list[tuple[str, str]], natives: str) -> None:
    assert list(sent_again(lines, {f"{JOB}-1": tasks})) == [f"{JOB}-1: Slurm had it as {natives}"]


def test_read_all_marks_returns_array_tasks_of_every_begun_attempt(tmp_path: Path) -> None:
    for number, text in ((1, f"begun abc\narray {CHUNK} 3\n"), (2, "begun def\n")):
        (tmp_path / JOB / f"attempt-{number}" / "submit").mkdir(parents=True)
        (tmp_path / JOB / f"attempt-{number}" / "submit" / "begun").write_text(text, encoding="utf-8")
    (tmp_path / JOB / "attempt-3" / "submit").mkdir(parents=True)
    assert read_all_marks(tmp_path) == {f"{JOB}-1": [(CHUNK, "3")], f"{JOB}-2": []}
