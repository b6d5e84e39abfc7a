"""The table of sbatch's options, held against what the real program tells, and against the lists that it meets."""

from __future__ import annotations

from pathlib import Path

import pytest

from ffdl_batch.manifest.slurm_words import SLURM_ARGS
from ffdl_batch.ports.conversion import Fate
from ffdl_slurm.convert.directives import read_directives
from ffdl_slurm.convert.options import ARGS, BY_LETTER, BY_NAME, BY_VARIABLE, TABLE, SbatchName, Takes
from ffdl_slurm.convert.plugins import FORMER, PLUGINS
from ffdl_slurm.options import ALLOWED_ARGS
from tests.proof.convert.cases import read_cases, variables
from tests.proof.convert.running import LETTERS, option_names
from tests.unit.cli.sbatch_26_05 import OPTIONS, VARIABLES

PAGE = Path("docs/convert.md").read_text().splitlines()
_KINDS = {"": Takes.NONE, "=": Takes.NEEDED, "?": Takes.OPTIONAL}


def test_option_table_has_every_sbatch_option_with_argument_kind() -> None:
    assert {row.name: row.takes for row in TABLE} == {name: _KINDS[kind] for name, kind in option_names().items()}


def test_option_table_letters_and_variables_match_sbatch_manual() -> None:
    assert {letter: row.name for letter, row in BY_LETTER.items()} == LETTERS
    assert {letter: name for name, letter in OPTIONS.items() if letter} == LETTERS
    assert {variable: row.name for variable, row in BY_VARIABLE.items()} == variables()
    assert sorted(BY_VARIABLE) == sorted(VARIABLES)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_option_table_row_has_reason_unless_mapped(row: SbatchName) -> None:
    assert bool(row.reason) == (row.fate is not Fate.MAPPED)
    assert row.fate is not Fate.MAPPED or row.to
    assert row.fate is not Fate.DROPPED or not row.to


def test_option_table_passthrough_options_are_allowed_by_manifest_and_adapter() -> None:
    passed = {row.name for row in TABLE if row.to == ARGS}
    assert passed == SLURM_ARGS & passed
    assert passed <= ALLOWED_ARGS
    assert passed >= SLURM_ARGS - {"power"}


def test_convert_proof_corpus_covers_every_option_letter_and_variable() -> None:
    names: set[str] = set()
    given: set[str] = set()
    letters: set[str] = set()
    for case in read_cases():
        directives = read_directives(case.text, case.options, case.environ)
        words = [one.text for one in directives.given.values()] + [one.text for one in directives.judged]
        names |= {one.option.name for one in directives.given.values()}
        letters |= {word[1] for word in words if word.startswith("-") and not word.startswith("--")}
        names |= {row.name for row in TABLE for word in words if word.split("=")[0].split(" ")[0] == f"--{row.name}"}
        given |= {name for name in case.environ if name.startswith("SBATCH_")}
    assert names - PLUGINS.keys() == set(BY_NAME)
    assert letters == set(BY_LETTER)
    assert given | {"SBATCH_NO_REQUEUE", "SBATCH_MEM_PER_GPU"} == set(BY_VARIABLE)


def test_plugin_options_are_documented_and_distinct_from_sbatch_options() -> None:
    assert not PLUGINS.keys() & BY_NAME.keys() and not FORMER.keys() & BY_NAME.keys()
    assert {*FORMER.values()} <= BY_NAME.keys()
    assert {name for name in PLUGINS if not any(f"`--{name}`" in line for line in PAGE)} == set()
    assert all(row.fate is not Fate.MAPPED and row.reason for row in PLUGINS.values())


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_convert_document_has_row_for_each_option(row: SbatchName) -> None:
    option = f"`--{row.name}`" + (f", `-{row.letter}`" if row.letter else "")
    variables = ", ".join(f"`{variable}`" for variable in row.variables)
    to = f"`{row.to}`" if row.to else ""
    assert f"| {option} | {variables} | {row.fate} | {to} | {row.reason} |" in PAGE
