"""#SBATCH lines carry any value, and nothing but values."""

from __future__ import annotations

import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffdl_batch.domain.sbatch.script_options import SbatchOption
from ffdl_batch.domain.scheduler_errors import InvalidRequest
from ffdl_slurm.sbatch_script import escape_pattern, parse_options, quote_value, render_option, render_script
from tests.fakes.slurm.jobs import read_options

LINE = st.text(st.characters(exclude_characters="\n\r\0", exclude_categories=["Cs"]), max_size=60)


@given(LINE)
def test_script_option_value_survives_render_and_parse(value: str) -> None:
    """By an independent reading of sbatch's rules, the fake's, and by our own."""
    script = render_script([SbatchOption("comment", value), SbatchOption("hold")], ["true"])
    assert read_options(script) == {"comment": value, "hold": ""}
    assert parse_options(script) == [SbatchOption("comment", value), SbatchOption("hold")]


@pytest.mark.parametrize("value", ["packjob", "a HetJob b", "x hetjob", "PACKJOB"])
def test_render_option_hides_packjob_and_hetjob_in_values_and_keeps_leading_dash(value: str) -> None:
    line = render_option(SbatchOption("comment", value))
    assert "packjob" not in line.lower() and "hetjob" not in line.lower()
    assert read_options(line) == {"comment": value}
    assert render_option(SbatchOption("comment", "--wrap=x")) == "#SBATCH --comment=--wrap=x"


@pytest.mark.parametrize("value", ["a\nb", "a\rb", "a\0b"])
def test_quote_value_rejects_line_break_and_null_character(value: str) -> None:
    with pytest.raises(InvalidRequest, match="--comment"):
        quote_value("comment", value)
    with pytest.raises(InvalidRequest):
        render_script([], ["python3", "/a\nb"])


def test_escape_pattern_doubles_percent_signs_and_rejects_backslash() -> None:
    assert escape_pattern("/a/%j/%%", "x") == "/a/%%j/%%%%"
    with pytest.raises(InvalidRequest, match="backslash"):
        escape_pattern("/a\\b", "x")


@given(st.lists(LINE.filter(bool), min_size=1, max_size=4))
def test_render_script_quotes_command_arguments_once(words: list[str]) -> None:
    script = render_script([], ["printf", "%s\\0", *words])
    said = subprocess.run(["sh", "-c", script], capture_output=True, check=True).stdout
    assert said.decode().split("\0")[:-1] == words
