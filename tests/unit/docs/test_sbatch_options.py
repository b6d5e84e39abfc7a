"""The tables of docs/reference/sbatch-options.md are those of the code; ``--update-golden`` writes them."""

from __future__ import annotations

from collections.abc import Iterable

from ffdl_batch.cli.options.job_options import JOB_OPTIONS
from ffdl_batch.domain.conversion import Fate
from ffdl_batch.domain.sbatch.option_table import TABLE, OptionRow
from ffdl_slurm.convert.directives import usual
from tests.unit.docs.shown import ROOT

PAGE = ROOT / "docs" / "reference" / "sbatch-options.md"


def job_options() -> Iterable[str]:
    for option in JOB_OPTIONS:
        letter = f"`-{option.letter}`, " if option.letter else ""
        value = f"`{option.metavar}`" if option.metavar else ""
        yield f"| {letter}`--{option.name}` | {value} | {option.help} |"


def sbatch_option(row: OptionRow) -> str:
    option = f"`--{row.name}`" + (f", `-{row.letter}`" if row.letter else "")
    variables = ", ".join(f"`{variable}`" for variable in row.variables)
    fate, _, reason = usual(row)
    key = f"`{row.key}`" if row.key else ""
    taken = "in the manifest" if row.is_passed and not row.help else row.refusal or "yes"
    converted = f"{fate}: {reason}" if fate is Fate.APPROXIMATED else fate
    return f"| {option} | {variables} | {key} | {taken} | {converted} |"


def with_table(page: str, header: str, rows: Iterable[str]) -> str:
    """The page with `rows` in place of those of the table."""
    before, rule, after = page.partition(header + "\n")
    assert rule, header
    lines = after.split("\n")
    end = next(at for at, line in enumerate(lines) if not line.startswith("|"))
    return "\n".join([before + header, lines[0], *rows, *lines[end:]])


def test_page_of_sbatch_options_matches_option_table(update_golden: bool) -> None:
    page = PAGE.read_text(encoding="utf-8")
    made = with_table(page, "| option | value | meaning |", job_options())
    header = "| option | variable | key | `ffdl-submit` | `ffdl convert` |"
    made = with_table(made, header, map(sbatch_option, sorted(TABLE, key=lambda row: row.name)))
    if update_golden:
        PAGE.write_text(made, encoding="utf-8")
        return
    assert page == made


def test_every_sbatch_option_is_set_by_manifest_or_refused_with_reason() -> None:
    """No option is silently ignored."""
    of_command = {"export", "help", "parsable", "quiet", "test-only", "verbose", "version", "wait", "wrap"}
    named = ("gres", "gpus", "cpus-per-task", "mem", "job-name")
    for row in TABLE:
        assert bool(row.help) + bool(row.refusal) + (row.name in of_command) == 1, row
        assert bool(row.field or row.name in named) == bool(row.help and not row.is_passed), row
        assert not (row.is_passed and (row.refused or row.differs)), row
