"""Every option and variable of sbatch is taken or refused by name."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from ffdl_batch.cli.commands.submit import submit
from ffdl_batch.cli.main import ALIASES, VERBS, ffdl
from ffdl_batch.cli.options.job_options import (
    IGNORED,
    JOB_OPTIONS,
    SBATCH_CLUSTERS,
    TAKEN,
    read_environment,
)
from ffdl_batch.cli.options.submission import Manner, collect_options, explain_refusal
from ffdl_batch.config.fingerprint import named_slurm
from ffdl_batch.domain.sbatch.option_table import TABLE
from ffdl_batch.manifest.options import apply_options
from tests.proof.convert.cases import variables
from tests.proof.convert.running import LETTERS, option_names

DECLARED = {name for parameter in submit.params for name in parameter.opts if isinstance(parameter, click.Option)}
LETTER_OF = {name: letter for letter, name in LETTERS.items()}
OPTIONS = {name: LETTER_OF.get(name, "") for name in option_names()}
"""sbatch's options and their letters, as sbatch 26.05 printed them."""
COMMAND_OPTIONS = {"export", "help", "parsable", "quiet", "test-only", "verbose", "version", "wait", "wrap"}
BY_NAME = frozenset(option.name for option in JOB_OPTIONS)
REFUSED = {row.name: row.refusal for row in TABLE if row.refusal and row.name not in BY_NAME}
TAKEN_OPTIONS = set(OPTIONS) & {*BY_NAME, *COMMAND_OPTIONS}


def test_submit_takes_or_refuses_every_sbatch_option_and_no_other() -> None:
    assert TAKEN_OPTIONS | set(REFUSED) == set(OPTIONS)
    assert not TAKEN_OPTIONS & set(REFUSED)


def test_submit_declares_every_taken_option_with_letter_of_sbatch() -> None:
    taken = TAKEN_OPTIONS - {"help"}
    assert {f"--{name}" for name in taken} - DECLARED == set()
    assert {f"-{OPTIONS[name]}" for name in taken if OPTIONS[name]} - DECLARED == set()


@pytest.mark.parametrize("name", sorted(set(REFUSED) & set(OPTIONS)))
def test_submit_explains_refused_option_in_every_spelling(name: str) -> None:
    runner = CliRunner()
    spellings = [[f"--{name}"], [f"--{name}=x"], [f"--{name}", "x"]]
    if letter := OPTIONS[name]:
        spellings += [[f"-{letter}"], [f"-{letter}x"], ["-H" + letter]]
    for spelling in spellings:
        result = runner.invoke(submit, [*spelling, "m.yml", "model"])
        assert result.exit_code == 2
        assert f"--{name}" in result.output
        assert " ".join(REFUSED[name].split()[:6]) in " ".join(result.output.split())


def test_manifest_overlay_accepts_every_job_option() -> None:
    from ffdl_batch.manifest.document.tree import Mapping, Mark, Origin
    from ffdl_batch.manifest.finding_log import FindingLog

    values = {"cpus": "1", "cpus-per-task": "1", "learners": "1", "gpus": "1", "mem": "1G", "gres": "gpu:1"}
    for name in BY_NAME:
        log = FindingLog("m.yml")
        apply_options(Mapping({}, Origin(Mark(1, 1))), {name: values.get(name, "1")}, {}, log)
        assert log.findings == (), name


@pytest.mark.parametrize(
    ("text", "line"),
    [
        *(
            (kept, kept)
            for kept in ("warning: --gpus: cut", "note: --gpus: x", "m.yml:1:2: warning: gpus: x", "m.yml:4:9: note: x")
        ),
        ("SBATCH_X is ignored: no warning", "warning: SBATCH_X is ignored: no warning"),
    ],
)
def test_warn_adds_warning_prefix_only_once(text: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    Manner().warn(text)
    assert capsys.readouterr().err == f"ffdl: {line}\n"


@pytest.mark.parametrize(
    ("option", "said"),
    [("--partitoin=gpu", "--partition"), ("--hold=1", "--hold")],
)
def test_submit_explains_misspelt_option_and_value_of_flag(option: str, said: str) -> None:
    result = CliRunner().invoke(submit, [option, "m.yml", "model"])
    assert (result.exit_code, said in result.output) == (2, True)
    assert explain_refusal("--partitoin") is None


def test_submit_knows_every_sbatch_variable() -> None:
    of_command = {"SBATCH_DEBUG", "SBATCH_EXPORT", "SBATCH_WAIT"}
    of_shell = {"SLURM_CLUSTERS", "SLURM_CONF", "SLURM_EXIT_ERROR", "SLURM_UMASK", "SBATCH_RUNTIME"}
    assert {*TAKEN, *IGNORED, *of_command, SBATCH_CLUSTERS, *named_slurm({})} == {*variables(), *of_shell}
    assert not set(TAKEN) & set(IGNORED)
    assert set(TAKEN.values()) <= set(BY_NAME)


def test_read_environment_maps_variables_to_options_and_warnings() -> None:
    taken = {"SBATCH_PARTITION": "gpu", "SBATCH_TIMELIMIT": "10", "FFDL_TIME": "2h", "FFDL_NETWORK": "job"}
    taken["SBATCH_EXCLUSIVE"] = "user"
    flags = {"SBATCH_REQUEUE": "", "SBATCH_NO_REQUEUE": "0", "SBATCH_QOS": "", "SBATCH_HINT": "x"}
    found = read_environment({**taken, **flags, "SBATCH_NETWORK": "sn_all", "FFDL_SOCKET": "/x"})
    expected = {"partition": "gpu", "time": "2h", "network": "job", "requeue": "", "exclusive": "user"}
    assert found.options == expected
    assert read_environment({"SBATCH_REQUEUE": "expedite"}).options == {"requeue": "expedite"}
    assert [warning.split(" ")[0] for warning in found.warnings] == ["SBATCH_HINT", "SBATCH_NETWORK"]


def test_read_environment_rejects_cluster_of_sbatch_alone() -> None:
    with pytest.raises(
        click.UsageError, match="SBATCH_CLUSTERS=b: jobs go to the cluster that SLURM_CONF and SLURM_CLUSTERS"
    ):
        read_environment({"SBATCH_CLUSTERS": "b"})
    assert read_environment({"SBATCH_CLUSTERS": "b", "SLURM_CLUSTERS": "a"}).warnings == ()


def test_ffdl_has_command_with_help_for_every_verb() -> None:
    context = click.Context(ffdl)
    for verb in VERBS:
        command = ffdl.get_command(context, verb)
        assert command is not None
        assert command.help


REFERENCE = Path(__file__).parents[3] / "docs" / "reference"
PAGES = "".join((REFERENCE / name).read_text(encoding="utf-8") for name in ("cli.md", "sbatch-options.md"))


def test_cli_reference_describes_every_verb_and_submit_option() -> None:
    options = {name for p in submit.params if isinstance(p, click.Option) for name in p.opts} - {"--dryrun"}
    assert {name for name in {*VERBS, *ALIASES, *options} if f"`{name}`" not in PAGES} == set()


def test_submit_joins_values_of_repeated_mail_type() -> None:
    with submit.make_context("ffdl-submit", ["--mail-type=END", "--mail-type", "FAIL", "m.yml", "model"]) as context:
        wanted = collect_options(context.params, {}, Manner())
    assert wanted.options == {"mail-type": "END,FAIL"}
