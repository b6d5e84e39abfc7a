"""The report of faults in each form, compared as a whole. ``--update-golden`` rewrites them."""

from __future__ import annotations

import io
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ffdl_batch.cli.commands.report.faults_document import CSV_COLUMNS, csv_rows, faults_document
from ffdl_batch.cli.render.document import write_csv
from ffdl_batch.cli.render.document_html import write_document
from ffdl_batch.domain.incidents.incident import EvidenceRow, IncidentRow
from ffdl_batch.domain.incidents.kinds import kind_of
from ffdl_batch.domain.incidents.report import Scope, make_report

HERE = Path(__file__).parent / "reports"
UNTIL = 1_700_000_000.0
HOUR = 3600.0


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Times are printed by local time."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


def incident(number: int, hours_ago: float, kind: str, **more: object) -> IncidentRow:
    at, meaning = UNTIL - hours_ago * HOUR, kind_of(kind)
    values: dict[str, object] = {"message": meaning.title, "user": "ada", "name": "digits", "code": "C201", **more}
    where = (f"training-00000000{number}", 1, "end-0", kind, meaning.origin.value, meaning.title, meaning.cure)
    return IncidentRow(*where, at, at + 2, **values)  # type: ignore[arg-type]


ROWS = (
    incident(1, 30, "user.exit"),
    incident(2, 29, "node.gpu", nodes=("n7",), code="S110", lost_gpu_hours=2.0),
    incident(3, 20, "scheduler.preempted", nodes=("n1", "n2", "n3", "n4"), user="bob", code="S111", lost_gpu_hours=0.5),
    incident(
        4, 5, "node.gpu", nodes=("n7",), lost_gpu_hours=12.25, message="n7 0000:3b:00: NVRM: Xid 79",
        evidence=(
            EvidenceRow("health n7", "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus", UNTIL - 5 * HOUR),
            EvidenceRow("controller", "learner 1 ended with exit code 1"),
        ),
    ),
    incident(
        5, 1, "user.traceback", nodes=("n1",), learner=2,
        message="learner 2: ValueError: <script>alert('x')</script> | \x1b[31m",
        evidence=(EvidenceRow("learner-2", "=cmd|' /C calc'!A0 <img src=x onerror=alert(1)>", UNTIL - HOUR),),
    ),
)  # fmt: skip
"""Two of the period before, three of this one."""


@pytest.mark.parametrize("form", ["text", "markdown", "html", "csv"])
def test_faults_report_matches_golden_file_in_each_format(form: str, update_golden: bool) -> None:
    report = make_report(ROWS, Scope(UNTIL - 24 * HOUR, UNTIL, UNTIL, UNTIL - 24 * HOUR))
    out = io.StringIO()
    if form == "csv":
        write_csv(out, CSV_COLUMNS, csv_rows(report.rows))
    else:
        write_document(faults_document(report, report.rows), form, out)
    path = HERE / f"faults.{form}"
    if update_golden:
        path.parent.mkdir(exist_ok=True)
        path.write_text(out.getvalue(), newline="")
    with path.open(newline="") as file:
        assert out.getvalue() == file.read()
