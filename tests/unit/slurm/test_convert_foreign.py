"""Variables of the submitting shell, which no learner has."""

from __future__ import annotations

import pytest

from ffdl_batch.ports.conversion import Fate, Source
from ffdl_slurm.convert.converter import create


def told(*lines: str) -> dict[int, str]:
    """By line, the variables that are said to be nobody's."""
    found = create().convert(Source("\n".join(("#!/bin/bash", *lines, "")), "job.sh")).judged
    said = {one.line: one.reason for one in found if "not set by the script" in one.reason}
    assert all(one.fate is Fate.APPROXIMATED for one in found if one.line in said)
    return {
        line: reason.rpartition("; ")[2].partition(" is ")[0].partition(" are ")[0] for line, reason in said.items()
    }


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("python x --key $WANDB_API_KEY", "WANDB_API_KEY"),
        ('python x "${HF_TOKEN}" $HF_TOKEN $WORK/data', "HF_TOKEN and WORK"),
        (': "${DATA:?name the data}"', "DATA"),
        ("python x ${NAME%.py} | tee log", "NAME"),
        ('srun bash -c "python x $SEED \\$LOCAL" | cat', "SEED"),
        ("cat <<EOF > conf.yaml\nkey: $KEY\nEOF\npython x conf.yaml", "KEY"),
        ("cat <<EOF\nnote: $NOTE\nEOF\npython x $OTHER", "OTHER"),
        ("bash <<EOF\npython $SEED\nEOF", "SEED"),
    ],
)
def test_convert_reports_variables_expected_from_submitting_shell(line: str, names: str) -> None:
    assert list(told(line).values()) == [names]


@pytest.mark.parametrize(
    "line",
    [
        "python x $SLURM_JOB_ID $HOME $RANDOM $DATA_DIR $MASTER_PORT",
        "A=1; python x $A ${B:-2} ${C+x}",
        "for i in 1 2; do python $i; done",
        "while IFS=, read -r a b; do python $a $b; done < list",
        "f() { local p q=1; python $p $q; }",
        "x=$(awk '{print $FIRST}' f) && python $x",
        'x="$(awk \'{print $FIRST}\' f)"; python "$x"',
        "srun bash -c 'python $INNER' | cat",
        "python x  # of $OLD",
        "names=(a b); python ${names[0]} | cat",
        "mapfile -t hosts < f; python $hosts",
        "#SBATCH --export=ALL,GIVEN\npython x $GIVEN",
    ],
)
def test_convert_reports_no_variable_that_script_or_platform_sets(line: str) -> None:
    assert told(line) == {}


def test_convert_reports_missing_variable_once_at_first_use() -> None:
    assert told("A=$WORK/a", "B=$WORK/b", "python x $A $B") == {2: "WORK"}
