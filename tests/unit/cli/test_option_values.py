"""Errors about the value of an option name the option, the value and what is accepted, in every command."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import click
import pytest

from ffdl_batch.admin.main import ffdl_admin
from ffdl_batch.cli.commands.submit import submit
from ffdl_batch.cli.main import ffdl
from ffdl_batch.exit_handling import run_guarded
from ffdl_batch.option_types import Number, TrueOrFalse, WholeNumber

ROOTS = {"ffdl": ffdl, "ffdl-submit": submit, "ffdl-admin": ffdl_admin}
OURS = (WholeNumber, Number, TrueOrFalse)
DIGITS = "9" * 5000
"""More digits than Python converts."""


def _parameters(command: click.Command, context: click.Context) -> Iterator[tuple[str, click.Parameter]]:
    for name in command.list_commands(context) if isinstance(command, click.Group) else ():
        below = command.get_command(context, name) if isinstance(command, click.Group) else None
        assert below is not None
        yield from _parameters(below, click.Context(below, parent=context, info_name=name))
    for parameter in command.params:
        yield context.command_path, parameter


def _error(command: str, words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    monkeypatch.setattr(sys, "argv", [command, *words])
    assert run_guarded(ROOTS[command], command) == 2
    out, err = capsys.readouterr()
    assert out == ""
    return next(line for line in err.splitlines() if line.startswith("Error: ")).removeprefix("Error: ")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("list --limit 0", "--limit: '0' is not a whole number from 1 to 9999"),
        ("list -l many", "--limit: 'many' is not a whole number from 1 to 9999"),
        ("list -l 1.5", "--limit: '1.5' is not a whole number from 1 to 9999"),
        (f"list -l {DIGITS}", f"--limit: '{'9' * 57}...' is not a whole number from 1 to 9999"),
        ("logs -n -1 x", "--tail: '-1' is not a whole number of 0 or more"),
        ("logs -n x x", "--tail: 'x' is not a whole number of 0 or more"),
        ("logs --learner 0 x", "--learner: '0' is not a whole number of 1 or more"),
        ("logs -A 1001 x", "--after-context: '1001' is not a whole number from 0 to 1000"),
        ("loglines --pos a x", "--pos: 'a' is not a whole number"),
        ("events --after -1 x", "--after: '-1' is not a whole number of 0 or more"),
        ("resume -G -1 x", "--gpus: '-1' is not a number of 0 or more"),
        ("resume -G nan x", "--gpus: 'nan' is not a number of 0 or more"),
        ("wait --timeout inf x", "--timeout: 'inf' is not a number of 0 or more"),
        ("wait --timeout soon x", "--timeout: 'soon' is not a number of 0 or more"),
        ("token create --days 0", "--days: '0' is not a number greater than 0 and at most 365"),
        ("token create --scope all", "--scope: 'all' is not one of 'read', 'write'"),
        ("download -j 65 x", "--parallel: '65' is not a whole number from 1 to 64"),
        ("completion csh", "SHELL: 'csh' is not one of 'bash', 'zsh', 'fish'"),
        ("report nodes --format xml", "--format: 'xml' is not one of "),
        ("list --state GONE", "--state: 'GONE' is not a state; states are PENDING"),
        ("report faults --since soon", "--since: 'soon' is not a "),
        ("top --every 0.05 x", "--every: '0.05' is not a time span of 0.1 s or more"),
        ("submit --model-dir", "No such option '--model-dir'."),
    ],
)
def test_commands_name_option_value_and_accepted_values(
    words: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _error("ffdl", words.split(), monkeypatch, capsys).startswith(message)


@pytest.mark.parametrize(
    ("command", "words", "message"),
    [
        ("ffdl-admin", ["db", "backup", ""], "FILE: it is empty; name a file"),
        ("ffdl-admin", ["tenant", "create", "x", "--gpus", "x"], "--gpus: 'x' is not a whole number"),
    ],
)
def test_other_programs_name_option_and_value(
    command: str,
    words: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert _error(command, words, monkeypatch, capsys).startswith(message)


def test_submit_names_the_variable_whose_value_is_wrong(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FFDL_STRICT", "perhaps")
    message = _error("ffdl-submit", ["m.yml", "model"], monkeypatch, capsys)
    assert message == "FFDL_STRICT: 'perhaps' is neither true nor false"


@pytest.mark.parametrize("root", ROOTS)
def test_every_number_is_read_by_a_type_with_messages_of_its_own(root: str) -> None:
    """click's own types for numbers print "'x' is not a valid integer range"."""
    found = list(_parameters(ROOTS[root], click.Context(ROOTS[root], info_name=root)))
    assert len(found) > 30
    numbers = (click.types.IntParamType, click.types.FloatParamType, click.DateTime)
    takes_value = [(path, one) for path, one in found if not getattr(one, "count", False)]
    plain = [(path, one) for path, one in takes_value if not isinstance(one.type, OURS)]
    wrong = [(path, one.opts) for path, one in plain if isinstance(one.type, numbers)]
    variables = [
        (path, one.opts) for path, one in plain if one.envvar and isinstance(one.type, click.types.BoolParamType)
    ]
    assert wrong == variables == []
