"""The table of sbatch's options against the real program and its lists, and #SBATCH lines as sbatch reads them."""

from __future__ import annotations

from pathlib import Path

import pytest

from ffdl_batch.domain.conversion import CannotConvert, Fate, Origin
from ffdl_batch.domain.sbatch.option_table import BY_LETTER, BY_NAME, BY_VARIABLE, TABLE, Takes
from ffdl_slurm.convert.directives import FORMER, PLUGINS, read_directives, usual
from tests.proof.convert.cases import read_cases, variables
from tests.proof.convert.running import LETTERS, option_names

PAGE = Path("docs/convert.md").read_text().splitlines()
_KINDS = {"": Takes.NONE, "=": Takes.NEEDED, "?": Takes.OPTIONAL}


def test_option_table_has_every_sbatch_option_with_argument_kind() -> None:
    assert {row.name: row.takes for row in TABLE} == {name: _KINDS[kind] for name, kind in option_names().items()}


def test_option_table_letters_and_variables_match_sbatch_manual() -> None:
    assert {letter: row.name for letter, row in BY_LETTER.items()} == LETTERS
    assert {variable: row.name for variable, row in BY_VARIABLE.items()} == variables()


def test_convert_proof_corpus_covers_every_letter_variable_and_option_with_manifest_key() -> None:
    names: set[str] = set()
    given: set[str] = set()
    letters: set[str] = set()
    for case in read_cases():
        directives = read_directives(case.text, case.options, case.environ)
        words = [one.text for one in directives.given.values()] + [one.text for one in directives.judged]
        names |= {one.option.name for one in directives.given.values()}
        letters |= {word[1] for word in words if word.startswith("-") and not word.startswith("--")}
        names |= {row.name for row in TABLE for word in words if word.split("=")[0].split(" ")[0] == f"--{row.name}"}
        given |= {name for name in case.environ if name in BY_VARIABLE}
    assert {row.name for row in TABLE if row.differs or (row.key and not row.is_passed)} <= names
    assert letters == set(BY_LETTER)
    assert given | {"SBATCH_NO_REQUEUE", "SBATCH_MEM_PER_GPU"} == set(BY_VARIABLE)


def test_plugin_options_are_documented_and_distinct_from_sbatch_options() -> None:
    assert not PLUGINS.keys() & BY_NAME.keys() and not FORMER.keys() & BY_NAME.keys()
    assert {*FORMER.values()} <= BY_NAME.keys()
    assert {name for name in PLUGINS if not any(f"`--{name}`" in line for line in PAGE)} == set()
    assert all(usual(row)[0] is not Fate.MAPPED and usual(row)[2] for row in PLUGINS.values())


def given(*lines: str) -> dict[str, str]:
    """What these lines give; what is expected of it was seen of sbatch -vv 26.05."""
    text = "\n".join(("#!/bin/bash", *lines, "true", "#SBATCH --qos=late", ""))
    return {name: one.value for name, one in read_directives(text).given.items()}


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("#SBATCH --comment=a#b --qos=q", {"comment": "a"}),
        ("#SBATCH\t--job-name='a b'\t-p gpu # comment", {"job-name": "a b", "partition": "gpu"}),
        (r"#SBATCH --comment=it\ s\"q" + '"x y"', {"comment": 'it s"qx y'}),
        ("#SBATCH --comment='x\\\\y'", {"comment": "x\\y"}),
        ("#SBATCH-p x", {"partition": "x"}),
        ("#SBATCH --part=a -p=b", {"partition": "=b"}),
        ("#SBATCH --time 3 -n3", {"time": "3", "ntasks": "3"}),
        ("#SBATCH -HN2", {"hold": "", "nodes": "2"}),
        ("#SBATCH --exclusive --nice=5 -k", {"exclusive": "", "nice": "5", "no-kill": ""}),
        ("#SBATCH --container-name x --no-container-mount-home --uenv=a/b:c",
         {"container-name": "x", "no-container-mount-home": "", "uenv": "a/b:c"}),
        (" #SBATCH --qos=q", {}),
        ("##SBATCH --qos=q", {}),
        ("#sbatch --qos=q", {}),
        ("#SBATCH", {}),
        # the last occurrence of an option and of its aliases; only a few add up
        ("#SBATCH --no-requeue -N 4\n#SBATCH --requeue --nodes=1", {"requeue": "", "nodes": "1"}),
        ("#SBATCH --mail-type=END\n#SBATCH --mail-type FAIL", {"mail-type": "END,FAIL"}),
        ("#SBATCH --mail-type=END,NONE --mail-type=FAIL", {"mail-type": "NONE,FAIL"}),
        ("#SBATCH --requeue=expedite --requeue", {"requeue": "expedite"}),
        ("#SBATCH --requeue=expedite --no-requeue", {"no-requeue": ""}),
        ("#SBATCH --gres-flags=multiple-tasks-per-sharing --gres-flags=disable-binding",
         {"gres-flags": "disable-binding,multiple-tasks-per-sharing"}),
        ("#SBATCH -x a -x b -L a -L b -C a -C b --gres=a --gres=b -d x -d y -w a -w b --export=A --export=B",
         {"exclude": "b", "licenses": "b", "constraint": "b", "gres": "b", "dependency": "y", "nodelist": "b",
          "export": "B"}),
        ("#SBATCH --ntasks-per-node=4\n#SBATCH --tasks-per-node=2", {"tasks-per-node": "2"}),
        # the first command ends the directives, and comments do not
        ("\n  # indented\n#SBATCH -p a\n\n#SBATCH -q b", {"partition": "a", "qos": "b"}),
    ],
)  # fmt: skip
def test_directive_reader_parses_sbatch_line_like_sbatch(line: str, found: dict[str, str]) -> None:
    assert given(line) == found


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("#SBATCH --qos=q foo", "no option 'foo'"),
        ("#SBATCH --exclusive user", "no option 'user'"),
        ("#SBATCHp -p y", "no option 'p'"),
        ("#SBATCH --nosuch=3", "no option --nosuch"),
        ("#SBATCH --gpus-=3", "it may be --gpus-per-node"),
        ("#SBATCH -y", "no option -y"),
        ("#SBATCH --workdir=/x", "it is --chdir now"),
        ("#SBATCH --time = 3", "none stands around ="),
        ('#SBATCH --comment="a', "is not closed"),
        ("#SBATCH -p a \\\\", "no option"),
        ("#SBATCH --hold=1", "takes no value"),
        ("#SBATCH --time", "needs a value"),
        ("#SBATCH hetjob", "heterogeneous"),
        ("#SBATCH  packjob # x", "heterogeneous"),
    ],
)
def test_directive_reader_rejects_lines_that_sbatch_rejects_with_line_number(line: str, why: str) -> None:
    with pytest.raises(CannotConvert, match=why) as caught:
        given("# a comment", "", line)
    assert caught.value.line == 4


def test_directive_reader_prefers_command_line_then_environment_then_script() -> None:
    text = "#!/bin/sh\n#SBATCH -p script -q script\n#SBATCH -A script\n"
    found = read_directives(text, ("-p", "command"), {"SBATCH_PARTITION": "env", "SBATCH_QOS": "env"})
    assert {name: (one.value, one.origin) for name, one in found.given.items()} == {
        "account": ("script", Origin.SCRIPT),
        "qos": ("env", Origin.ENVIRONMENT),
        "partition": ("command", Origin.COMMAND),
    }
    reasons = [(one.text, one.fate, one.reason) for one in found.judged]
    assert ("-p script", Fate.DROPPED, "the environment says SBATCH_PARTITION=env, which counts") in reasons
    assert ("SBATCH_PARTITION=env", Fate.DROPPED, "the command line says -p command, which counts") in reasons


@pytest.mark.parametrize(("value", "counts"), [("", True), ("yes", True), ("1", True), ("0", False), ("no", False)])
def test_directive_reader_reads_flag_from_environment_value(value: str, counts: bool) -> None:
    found = read_directives("#!/bin/sh\n", (), {"SBATCH_SPREAD_JOB": value}).given
    assert ("spread-job" in found) == counts


@pytest.mark.parametrize(
    ("line", "cut"),
    [
        ("--container-image=nvcr.io#nvidia/pytorch:24.01-py3 ", ["#nvidia/pytorch:24.01-py3"]),
        (r"--container-image=nvcr.io\#nvidia/pytorch:24.01-py3", []),
        ("--container-image='nvcr.io#nvidia/pytorch' # comment", []),
    ],
)
def test_directive_reader_reports_text_cut_off_by_hash_in_value_and_pbs_lines(line: str, cut: list[str]) -> None:
    found = read_directives(f"#!/bin/sh\n#SBATCH {line}\n")
    assert [one.text for one in found.judged] == cut
    assert all((one.line, one.fate) == (2, Fate.DROPPED) and r"write \#" in one.reason for one in found.judged)
    (pbs,) = read_directives("#!/bin/sh\n#PBS -l nodes=2\n#SBATCH -p a\n").judged
    assert (pbs.line, pbs.fate) == (2, Fate.DROPPED)
