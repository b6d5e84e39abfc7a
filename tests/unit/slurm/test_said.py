"""What a command printed becomes one short clean line of a message."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ffdl_batch.domain.scheduler_errors import InvalidRequest, SchedulerUnreachable, SubmissionUncertain
from ffdl_slurm.gateways.command_runner import CommandResult
from ffdl_slurm.gateways.error_mapping import check_answer, read_submission
from ffdl_slurm.observing.parsers import Garbled, parse_squeue
from ffdl_slurm.output_text import LONG, SHORT, begin, clean, shorten

GARBAGE = "\x1b[31m\x07\x00\ufffd\x9b" * 60 + "x" * 300 + "\r\n\t\x08the end"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("one\n\ttwo  three\r\n", "one two three"),
        ("\x1b[1;31mred\x1b[0m and \x1b[2Jgone", "red and gone"),
        ("a\x00b\x07c\x9bd\u202ee\ufffdf", "a b c d e f"),
        ("Grüße, Ünïcode", "Grüße, Ünïcode"),
    ],
)
def test_clean_removes_line_breaks_and_terminal_control_sequences(text: str, line: str) -> None:
    assert clean(text) == line


SACCT = (
    "sacct: error: _open_persist_conn: failed to open persistent connection to host:ctl.cluster.example.org:6819: "
    "Connection refused\nsacct: error: Sending PersistInit msg: Connection refused\n"
    "sacct: error: Problem talking to the database: Connection refused\n"
)
FATAL = "sbatch: fatal: Unable to process configuration file"
HELP = "* for help, write to support and say which node you are on *"
WELCOME = f"{HELP}\n" * 3


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("short\n", "short"),
        (SACCT, "... sacct: error: Problem talking to the database: Connection refused"),
        pytest.param(f"{WELCOME}{FATAL}\n{WELCOME}", f"... {HELP} {FATAL}", id="fatal-error-before-trailing-banner"),
    ],
)
def test_shorten_cuts_between_lines_and_keeps_fatal_error_before_trailing_banner(text: str, line: str) -> None:
    assert shorten(text) == line


def test_shorten_keeps_end_and_begin_keeps_start_of_long_text_and_both_cut_between_terms() -> None:
    text = " ".join(str(number) for number in range(1000))
    assert shorten(text) == "... " + text[-SHORT:].lstrip()
    assert begin(text) == text[:SHORT] + " ..."
    assert begin("short\n") == "short"
    rest = shorten("sbatch: error: " + " ".join(f"rule{number}" for number in range(100)))
    assert rest.startswith("... rule") and rest.endswith(" rule99") and len(rest) <= SHORT + len("... ")


@pytest.mark.parametrize(
    "ask",
    [
        lambda: check_answer(CommandResult(("squeue",), 1, GARBAGE, "")),
        lambda: read_submission(CommandResult(("sbatch",), 0, GARBAGE, "")),
        lambda: parse_squeue(GARBAGE),
    ],
)
def test_error_messages_contain_no_unprintable_output(ask: Callable[[], object]) -> None:
    with pytest.raises((SchedulerUnreachable, SubmissionUncertain, Garbled)) as raised:
        ask()
    message = str(raised.value)
    assert message.isprintable() and "\\x" not in message and "\ufffd" not in message
    assert len(message) < SHORT + 130


def test_submission_error_keeps_long_message_of_submit_plugin() -> None:
    """Of job_submit plugins, before sbatch's own last word."""
    rules = "sbatch: error: " + "Trainings of more than a day belong into the partition long. " * 4
    complaint = f"{rules}\nsbatch: error: Batch job submission failed: Invalid partition name specified\n"
    with pytest.raises(InvalidRequest, match="Trainings of more than a day") as raised:
        read_submission(CommandResult(("sbatch",), 1, "", complaint))
    assert SHORT < len(str(raised.value)) < LONG + 100
