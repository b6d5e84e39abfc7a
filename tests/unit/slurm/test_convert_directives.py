"""#SBATCH lines as sbatch 26.05 reads them; what is expected here was seen of the real program (sbatch -vv)."""

from __future__ import annotations

import pytest

from ffdl_batch.ports.conversion import CannotConvert, Fate, Origin
from ffdl_slurm.convert.directives import read_directives


def given(*lines: str) -> dict[str, str]:
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
        ("#SBATCH --exclusive user", None),
        (
            "#SBATCH --container-name x --no-container-mount-home --uenv=a/b:c",
            {"container-name": "x", "no-container-mount-home": "", "uenv": "a/b:c"},
        ),
        (" #SBATCH --qos=q", {}),
        ("##SBATCH --qos=q", {}),
        ("#sbatch --qos=q", {}),
        ("#SBATCH", {}),
    ],
)
def test_directive_reader_parses_sbatch_line_like_sbatch(line: str, found: dict[str, str] | None) -> None:
    if found is None:
        with pytest.raises(CannotConvert, match="no option 'user'"):
            given(line)
    else:
        assert given(line) == found


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("#SBATCH --qos=q foo", "no option 'foo'"),
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


def test_directive_reader_stops_at_first_command_not_at_comments() -> None:
    assert given("", "  # indented", "#SBATCH -p a", "", "#SBATCH -q b") == {"partition": "a", "qos": "b"}


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


def test_directive_reader_uses_last_occurrence_of_option_and_its_aliases() -> None:
    assert given("#SBATCH --no-requeue -N 4", "#SBATCH --requeue --nodes=1") == {"requeue": "", "nodes": "1"}
    assert given("#SBATCH --ntasks-per-node=4", "#SBATCH --tasks-per-node=2") == {"tasks-per-node": "2"}


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
def test_directive_reader_reports_text_cut_off_by_hash_in_value(line: str, cut: list[str]) -> None:
    found = read_directives(f"#!/bin/sh\n#SBATCH {line}\n")
    assert [one.text for one in found.judged] == cut
    assert all((one.line, one.fate) == (2, Fate.DROPPED) and r"write \#" in one.reason for one in found.judged)


def test_directive_reader_reports_pbs_lines_as_dropped() -> None:
    found = read_directives("#!/bin/sh\n#PBS -l nodes=2\n#SBATCH -p a\n")
    assert [(one.line, one.fate) for one in found.judged] == [(2, Fate.DROPPED)]
