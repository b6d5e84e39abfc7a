"""What `ffdl convert` knows of sbatch, against the real one: its options, and how it reads a script's lines."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ffdl_slurm.convert.directives import read_directives
from tests.cluster.people import Person
from tests.proof.convert.cases import Case, read_cases

RECORDED = Path(__file__).parents[1] / "proof" / "convert" / "sbatch-26.05.txt"
NAMES = ("dependency", "exports", "from-outside", "heredoc", "lightning", "modules-and-venv", "quoting",
         "srun-two-nodes", "trap-requeue")  # fmt: skip
CASES = [case for case in read_cases() if case.name in NAMES]
SAID_AS_GIVEN = ("account", "comment", "job-name", "partition", "qos")
QUIET = frozenset({"verbose", "test-only"})


def test_recorded_sbatch_options_match_installed_sbatch(alice: Person) -> None:
    assert alice.run("sbatch", "--autocomplete=--").stdout.split() == RECORDED.read_text().split()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_directive_reader_finds_same_options_as_sbatch(alice: Person, case: Case) -> None:
    """-vv has it say what it read, before it asks anybody; the trial submits nothing, whatever comes of it."""
    script = alice.write(f"~/convert/{case.name}.sbatch", case.text)
    done = alice.run("sbatch", "-vv", "--test-only", *case.options, script, env=case.environ, check=False)
    told = re.search(r"defined options\n(.*?)end of defined options", done.stderr, re.DOTALL)
    assert told is not None, done.stderr
    real = dict(re.findall(r"^sbatch: ([a-z-]+) +: (.*)$", told[1], re.MULTILINE))
    given = read_directives(case.text, case.options, case.environ).given
    assert real.keys() - QUIET == given.keys()
    ours = {name: given[name].value for name in SAID_AS_GIVEN if name in given}
    assert {name: text for name, text in real.items() if name in SAID_AS_GIVEN} == ours
