"""--export, word by word as sbatch reads it."""

from __future__ import annotations

import pytest

from ffdl_batch.client.submissions.exported_variables import ExportError, select_variables, split_list

SHELL = {"HOME": "/h", "EDITOR": "vi", "SLURM_JOB_ID": "7", "SBATCH_QOS": "q", "BASH_FUNC_x%%": "() { :; }",
         "APPTAINER_CACHEDIR": "/c", "SINGULARITY_BIND": "/b", "SHELLOPTS": "braceexpand"}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("NONE", {}),
        ("nil", {}),
        ("ALL", {"EDITOR": "vi"}),
        ("all,A=1", {"EDITOR": "vi", "A": "1"}),
        ("EDITOR,ARG1=test", {"EDITOR": "vi", "ARG1": "test"}),
        ("ALL,EDITOR=/bin/emacs", {"EDITOR": "/bin/emacs"}),
        ("ALL,HOME", {"EDITOR": "vi", "HOME": "/h"}),
        ("EDITOR=x,ALL", {"EDITOR": "vi"}),
        ("A=b=c", {"A": "b=c"}),
        ("A=", {"A": ""}),
        ("'A=1,2',B=3", {"A": "1,2", "B": "3"}),
        ("A='1,2'", {"A": "'1,2'"}),
        ('"A=$(id) x"', {"A": "$(id) x"}),
        ("SLURM_JOB_ID,SLURM_X=1,A=1", {"A": "1"}),
        (",A=1,,", {"A": "1"}),
    ],
)
def test_select_variables_follows_sbatch_export_rules(text: str, expected: dict[str, str]) -> None:
    assert select_variables(text, SHELL).values == expected


def test_select_variables_reports_unset_names() -> None:
    chosen = select_variables("NOPE,EDITOR", SHELL)
    assert (chosen.values, chosen.unset) == ({"EDITOR": "vi"}, ("NOPE",))


@pytest.mark.parametrize(
    "text", ["A='x", 'A="x,B=1', "1A=2", "a-b", "A=1,NONE", "=x", "APPTAINER_BIND=/x", "SINGULARITY_BIND", "UID=0"]
)
def test_select_variables_rejects_invalid_text(text: str) -> None:
    with pytest.raises(ExportError):
        select_variables(text, SHELL)


def test_export_split_keeps_quotes_inside_other_quotes() -> None:
    assert split_list("\"a'b'\",c") == ["a'b'", "c"]
