"""What ``ffdl report usage --check`` says."""

from __future__ import annotations

from typing import IO

from ffdl_batch.cli.commands.report.period import Period
from ffdl_batch.cli.commands.report.usage_document import span
from ffdl_batch.cli.render.document import Cell, Document, Section
from ffdl_batch.cli.render.document_text import number_column, table_of, text_column, write_csv
from ffdl_batch.domain.metrics.usage_report import Agreement, AgreementRow
from ffdl_batch.domain.number_text import counted

CSV_COLUMNS = (
    "job", "native_ids", "runs", "ours_s", "theirs_s", "ours_gpu_s", "theirs_gpu_s", "known", "differs", "why",
)  # fmt: skip


def agreement_document(found: Agreement, period: Period, tolerance_s: float) -> Document:
    """Sums, and the jobs that differ."""
    columns = (text_column("JOB"), text_column("SCHEDULER'S"), number_column("RUNS"), number_column("OURS s"),
               number_column("THEIRS s"), number_column("OURS GPU-s"), number_column("THEIRS GPU-s"),
               number_column("DIFFERENCE"), text_column(""))  # fmt: skip
    return Document(
        f"Agreement with the accounting, {period.name}",
        _sentences(found, tolerance_s),
        (Section("Jobs that differ", (), (table_of("", columns, [_row(row) for row in found.rows]),)),),
    )


def _sentences(found: Agreement, tolerance_s: float) -> tuple[str, ...]:
    said = []
    if found.without:
        said.append(f"No accounts are kept by {', '.join(found.without)}: jobs there are compared with nothing.")
    if not found.backends:
        return (*said, "There is nothing to compare with.")
    said.append(
        f"{counted(found.compared, 'job')} compared with the accounting of {', '.join(found.backends)}: "
        f"{found.differing} differ by more than {span(tolerance_s)} a run, {found.unknown} are unknown to it. "
        "Whole jobs are compared, not their parts in the period."
    )
    hours = f"GPU-hours: {found.ours_gpu_hours:.3f} ours, {found.theirs_gpu_hours:.3f} theirs"
    part = "" if found.gpus_counted == found.compared else f", of the {found.gpus_counted} whose GPUs it counts"
    said.append(f"{hours}{part}.")
    if found.running:
        said.append(f"{counted(found.running, 'job')} left out: they have not ended.")
    shown = found.differing + found.unknown
    if shown > len(found.rows):
        said.append(f"The {len(found.rows)} largest of {shown} differences are shown.")
    return tuple(said)


def _row(row: AgreementRow) -> tuple[Cell, ...]:
    theirs = row.theirs_s if row.known else None
    difference = None
    if row.known:
        has_gpus = row.theirs_gpu_s is not None and (row.theirs_gpu_s or row.ours_gpu_s)
        difference = row.ours_gpu_s - (row.theirs_gpu_s or 0.0) if has_gpus else row.ours_s - row.theirs_s
    word = "" if row.known else f"unknown: {row.why}" if row.why else "unknown there"
    ids = ",".join(row.native_ids)
    return (row.job, ids, row.runs, row.ours_s, theirs, row.ours_gpu_s, row.theirs_gpu_s, difference, word)


def write_agreement_csv(file: IO[str], found: Agreement) -> None:
    """The same jobs as rows."""
    rows = (
        (row.job, " ".join(row.native_ids), row.runs, f"{row.ours_s:.3f}", f"{row.theirs_s:.3f}",
         f"{row.ours_gpu_s:.3f}", None if row.theirs_gpu_s is None else f"{row.theirs_gpu_s:.3f}",
         str(row.known).lower(), str(row.differs).lower(), row.why)
        for row in found.rows
    )  # fmt: skip
    write_csv(file, CSV_COLUMNS, rows)
