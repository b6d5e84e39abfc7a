"""docs/faults.md has the table of kinds as the code has it, and the exit codes that the command ends with."""

from __future__ import annotations

import re

from ffdl_batch.cli.commands.report.faults import OURS, USERS_ONLY
from ffdl_batch.cli.commands.report.faults_document import CSV_COLUMNS
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.incidents.kinds import KINDS
from tests.unit.docs.shown import ROOT

PAGE = (ROOT / "docs" / "faults.md").read_text(encoding="utf-8")


def test_faults_page_lists_every_incident_kind() -> None:
    rows = [line for line in PAGE.splitlines() if re.match(r"\| `[a-z]+\.[a-z_]+` \|", line)]
    assert rows == [f"| `{kind.name}` | {kind.title} | {kind.weight:g} | {kind.cure} |" for kind in KINDS.values()]


def test_faults_page_lists_exit_statuses_of_report_command() -> None:
    section = PAGE.split("| exit code | meaning |\n|---|---|\n")[1].split("\n\n")[0]
    told = {int(code) for line in section.splitlines() for code in re.findall(r"\d+", line.split("|")[1])}
    refusals = {ExitCode.UNAVAILABLE, ExitCode.NOT_ALLOWED, ExitCode.BAD_MANIFEST}
    assert told == {ExitCode.OK, USERS_ONLY, OURS, ExitCode.TRY_AGAIN, *refusals}


def test_faults_csv_has_no_duplicate_columns() -> None:
    assert len(set(CSV_COLUMNS)) == len(CSV_COLUMNS)
