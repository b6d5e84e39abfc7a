"""How lines of logs look on a terminal and in a pipe, and what `ffdl logs` asks for."""

from __future__ import annotations

import json
from typing import Any

import click
import pytest

from ffdl_batch.cli.options.selection import LineNames
from ffdl_batch.cli.render import log_lines
from ffdl_batch.cli.render.formatting import format_time
from ffdl_batch.cli.render.log_lines import LinePrinter
from ffdl_batch.domain.codec import to_plain
from ffdl_batch.domain.job.log_text import LogText
from ffdl_batch.domain.job.views import SCHEMA, LogLine
from tests.unit.cli.programs import FFDL, run
from tests.unit.client.fake_daemon import FakeDaemon, make_job, text_of

JOB = "training-000000001"
LOGS = f"GET /api/v1/jobs/{JOB}/logs"


@pytest.fixture
def job(daemon: FakeDaemon) -> FakeDaemon:
    daemon.jobs[JOB] = make_job(JOB, learners=2)
    return daemon


def piece(learner: int, index: int, text: str, *, partial: bool = False) -> LogLine:
    return LogLine(learner, index, text, None, 1, 0, 0, partial)


def printed(capsys: pytest.CaptureFixture[str], lines: list[LogLine], *, separate: bool = False) -> str:
    names = LineNames(learner=True, attempt=False)
    LinePrinter(names, timestamps=False, as_json=False, separate=separate).print(map(text_of, lines))
    return capsys.readouterr().out


def test_line_printer_joins_pieces_of_one_line_in_pipe_and_ends_it_for_another_learner(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = [piece(1, 1, "\r 1%", partial=True), piece(1, 1, "\r 2%", partial=True), piece(1, 1, ""), piece(1, 2, "x")]
    assert printed(capsys, lines) == "[1] \r 1%\r 2%\n[1] x\n"
    lines = [piece(1, 1, "a", partial=True), piece(2, 1, "b"), piece(1, 1, "c"), piece(2, 2, "d", partial=True)]
    assert printed(capsys, lines) == "[1] a\n[2] b\n[1] c\n[2] d\n"


def test_line_printer_redraws_bar_and_escapes_control_characters_on_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_lines, "is_terminal", lambda: True)
    lines = [piece(1, 1, "\r 1%\r 2%", partial=True), piece(1, 1, "\r 3%\x1b[2J", partial=True), piece(1, 1, " done")]
    assert printed(capsys, lines) == "[1]  2%\r\x1b[K[1]  3%\\x1b[2J done\n"
    texts = [LogText(1, 1, "a\x1b[2J\n1%\r2%\nc", None, 1, 0, 13)]
    LinePrinter(LineNames(learner=True, attempt=False), timestamps=False, as_json=False).print(texts)
    assert capsys.readouterr().out == "[1] a\\x1b[2J\n[1] 2%\n[1] c\n"


def test_line_printer_marks_gaps_between_lines_and_texts_that_are_not_adjacent(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = [piece(1, 3, "a"), piece(1, 4, "b"), piece(1, 9, "c"), piece(2, 1, "d"), piece(2, 2, "e")]
    assert printed(capsys, lines, separate=True) == "[1] a\n[1] b\n--\n[1] c\n--\n[2] d\n[2] e\n"
    places = ((3, "a\nb", 0, 4), (5, "c", 4, 6), (9, "d", 9, 11))
    texts = [LogText(1, first, text, None, 1, offset, end) for first, text, offset, end in places]
    LinePrinter(LineNames(learner=False, attempt=False), timestamps=False, as_json=False, separate=True).print(texts)
    assert capsys.readouterr().out == "a\nb\nc\n--\nd\n"


def test_logs_reports_lost_first_lines_unless_tail_is_given(job: FakeDaemon) -> None:
    job.lines = [piece(1, 7, "a"), piece(2, 1, "b"), piece(1, 8, "c")]
    done = run(FFDL, "logs", JOB, daemon=job)
    assert done.stdout == "[1] a\n[2] b\n[1] c\n"
    lost = "ffdl: the first 6 lines of learner 1 are gone: the log was too long, or the job shortened it\n"
    assert done.stderr == lost
    assert run(FFDL, "logs", "-n", "2", JOB, daemon=job).stderr == ""


def test_logs_replaces_characters_missing_in_output_encoding(job: FakeDaemon) -> None:
    job.lines = [piece(1, 1, "a\u2588"), piece(2, 1, "b")]
    done = run(FFDL, "logs", JOB, daemon=job, env={"PYTHONIOENCODING": "latin-1"})
    assert (done.returncode, done.stdout, done.stderr) == (0, "[1] a?\n[2] b\n", "")


def test_commands_reject_arguments_that_are_not_utf8(job: FakeDaemon) -> None:
    for words in (("logs", "-g", "\udcff", JOB), ("show", "\udcff")):
        done = run(FFDL, *words, daemon=job)
        assert (done.returncode, done.stdout) == (2, "") and done.stderr.startswith("ffdl: '\\xff' is not UTF-8")


def test_logs_sends_search_options_to_daemon(job: FakeDaemon) -> None:
    run(FFDL, "logs", "-g", "a b", "-iv", "-C", "2", "-A", "5", JOB, daemon=job)
    assert job.requests[-1] == f"{LOGS}?grep=a+b&ignore_case=true&invert=true&before=2&after=5"
    run(FFDL, "logs", "--grep", "-x", "-F", "-n", "3", JOB, daemon=job)
    assert job.requests[-1] == f"{LOGS}?tail=3&grep=-x&fixed=true"
    done = run(FFDL, "logs", "-C", "2", JOB, daemon=job)
    assert (done.returncode, "need --grep" in done.stderr) == (2, True)


def test_line_printer_writes_many_lines_in_one_call(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    writes: list[object] = []
    echo = click.echo

    def counted(message: str, **how: Any) -> None:
        writes.append(message)
        echo(message, **how)

    monkeypatch.setattr(click, "echo", counted)
    text = LogText(1, 1, "\n".join(map(str, range(1000))), 0.0, 1, 0, 3890)
    for as_json in (False, True):
        writes.clear()
        names = LineNames(learner=True, attempt=False)
        LinePrinter(names, timestamps=True, as_json=as_json).print([text])
        out = capsys.readouterr().out.splitlines()
        assert (len(writes), len(out)) == (1, 1000)
        when = format_time(0.0)
        if as_json:
            assert [json.loads(line)["line"]["index"] for line in out] == list(range(1, 1001))
            assert json.loads(out[1]) == {"schema": SCHEMA, "line": to_plain(list(text.lines())[1])}
        else:
            assert out == [f"{when} [1] {number}" for number in range(1000)]


@pytest.mark.parametrize(
    "text",
    [
        LogText(1, 1, "alone"),
        LogText(2, 7, 'a piece "of one\\n" \x1b[1m\r', 12.5, 3, 40, 60, partial=True),
        LogText(1, 9, 'one\n\n"two"\\\tthree \N{BELL}\x00\x85\u2028x', 1_800_000_000.123456, 2, 100, 138),
        LogText(1, 3, "\ufffd\nb\r\nc", None, 1, 10, 21, ends=(12, 15, 21)),
    ],
)
def test_json_lines_match_encoded_records(text: LogText) -> None:
    encode = json.JSONEncoder(ensure_ascii=True).encode
    wanted = [encode({"schema": SCHEMA, "line": to_plain(line)}) for line in text.lines()]
    assert log_lines.json_lines(text).splitlines() == wanted
    assert len(wanted) == text.count
