"""The report of faults for people: as a document, and as rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ffdl_batch.cli.render.document import Bars, Document, Section, Series, Table
from ffdl_batch.cli.render.document_text import number_column, table_of, text_column
from ffdl_batch.cli.render.formatting import format_time
from ffdl_batch.domain.incidents.report import FaultsReport, Ranked
from ffdl_batch.domain.incidents.view import IncidentRow
from ffdl_batch.domain.quantity import format_time_limit
from ffdl_batch.domain.terminal_text import printable

CSV_COLUMNS = (
    "at", "noticed_at", "kind", "origin", "title", "job", "attempt", "episode", "name", "user", "nodes", "learner",
    "code", "lost_gpu_hours", "message", "evidence",
)  # fmt: skip
"""Stable: new ones come at the end, none changes its meaning."""
MOST_SHOWN = 200
MOST_EXPLAINED = 25


def faults_document(report: FaultsReport, new: Sequence[IncidentRow]) -> Document:
    """The report; `new` are the incidents that it tells in full."""
    whose = "your own jobs only" if report.own_only else "jobs of all users"
    about = (f"From {format_time(report.since)} to {format_time(report.until)}, by local time; {whose}.",)
    sections = (
        Section("Summary", tuple(_summary(report, new))),
        Section("New", (), (_incidents(new),)),
        Section("What helps", (), (_cures(new),)),
        Section("Evidence", (), tuple(_evidence(new))),
        Section("When", (), (_trend(report),), (_trend_chart(report),) if report.happened or report.before else ()),
        Section("Whose", (), (_ranked("", "FROM", report.origins),)),
        Section("Causes", (), (_ranked("", "KIND", report.causes),), _chart("Incidents by cause", report.causes)),
        Section("Nodes", (), (_ranked("", "NODE", report.nodes),), _chart("Faults of nodes", report.nodes)),
        Section("Users", (), (_ranked("", "USER", report.users),)),
    )
    return Document("Faults", about, sections)


def _summary(report: FaultsReport, new: Sequence[IncidentRow]) -> Iterator[str]:
    count, more = len(new), report.left_out
    yield f"{_number(count, 'incident')} new" + (f", and {more} more that are not listed" if more else "") + "."
    length = format_time_limit(int(report.until - report.since))
    change = report.happened - report.before
    yield (
        f"{_number(report.incidents, 'incident')} of {_number(report.jobs, 'job')} in this period of {length}; "
        f"{report.happened} happened in it, {report.before} in the one before ({change:+d})."
    )
    yield f"Lost since the last checkpoints: {report.lost_gpu_hours:.2f} GPU-hours."


def _number(count: int, word: str) -> str:
    return f"{count} {word}{'' if count == 1 else 's'}" if count else f"no {word}s"


def _incidents(rows: Sequence[IncidentRow]) -> Table:
    columns = (
        text_column("WHEN"), text_column("KIND"), text_column("JOB"), text_column("USER"), text_column("NODES"),
        number_column("LOST GPU-H", 2), text_column("WHAT"),
    )  # fmt: skip
    shown = [
        (format_time(row.at), row.kind, _attempt(row), row.user, _nodes(row), row.lost_gpu_hours, row.message)
        for row in rows[-MOST_SHOWN:]
    ]
    left = len(rows) - len(shown)
    note = f"{left} older ones are left out; --format csv or json has them all." if left else ""
    return table_of("", columns, shown, note)


def _attempt(row: IncidentRow) -> str:
    return f"{row.job} ({row.attempt})" if row.attempt > 1 else row.job


def _nodes(row: IncidentRow) -> str:
    more = len(row.nodes) - 3
    return " ".join(row.nodes[:3]) + (f" +{more}" if more > 0 else "")


def _cures(rows: Iterable[IncidentRow]) -> Table:
    found = {row.kind: (row.kind, row.title, row.cure) for row in rows}
    columns = (text_column("KIND"), text_column("WHAT IT IS"), text_column("WHAT TO DO"))
    return table_of("", columns, [found[kind] for kind in sorted(found)])


def _evidence(rows: Sequence[IncidentRow]) -> Iterator[Table]:
    columns = (text_column("SOURCE"), text_column("WHEN"), text_column("LINE"))
    for row in rows[-MOST_EXPLAINED:]:
        lines = [(said.source, format_time(said.at) if said.at is not None else "", said.text) for said in row.evidence]
        yield table_of(f"{_attempt(row)}: {row.kind}", columns, lines)


def _ranked(title: str, what: str, found: Iterable[Ranked]) -> Table:
    ranked = tuple(found)
    titled = any(one.title and one.title != one.name for one in ranked)
    columns = [text_column(what), number_column("INCIDENTS"), number_column("BEFORE"), number_column("LOST GPU-H", 2)]
    rows: list[tuple[str | float, ...]] = [
        (one.name or "-", float(one.incidents), float(one.before), one.lost_gpu_hours) for one in ranked
    ]
    if titled:
        columns.append(text_column("WHAT IT IS"))
        rows = [(*row, one.title) for row, one in zip(rows, ranked, strict=True)]
    return table_of(title, columns, rows)


def _chart(title: str, found: Sequence[Ranked]) -> tuple[Bars, ...]:
    now = Series("this period", tuple(float(one.incidents) for one in found))
    before = Series("the one before", tuple(float(one.before) for one in found))
    return (Bars(title, tuple(one.name for one in found), (now, before)),) if found else ()


def _trend(report: FaultsReport) -> Table:
    """By when they happened, without the parts in which nothing did."""
    columns = (text_column("FROM"), number_column("INCIDENTS"), number_column("BEFORE"))
    told = [one for one in report.bins if one.incidents or one.before]
    note = "Before: in the period before, at the same distance from its beginning."
    return table_of("", columns, [(format_time(one.at), one.incidents, one.before) for one in told], note)


def _trend_chart(report: FaultsReport) -> Bars:
    labels = tuple(format_time(one.at) for one in report.bins)
    now = Series("this period", tuple(float(one.incidents) for one in report.bins))
    before = Series("the one before", tuple(float(one.before) for one in report.bins))
    return Bars("Incidents from then on", labels, (now, before))


def csv_rows(rows: Iterable[IncidentRow]) -> Iterator[tuple[object, ...]]:
    """In the order of CSV_COLUMNS; times are seconds since the epoch, evidence is one line each."""
    for row in rows:
        said = "\n".join(printable(f"{one.source}: {one.text}") for one in row.evidence)
        yield (
            f"{row.at:.3f}", f"{row.noticed_at:.3f}", row.kind, row.origin, row.title, row.job, row.attempt,
            row.episode, row.name, row.user, " ".join(row.nodes), row.learner or "", row.code,
            f"{row.lost_gpu_hours:.6f}", printable(row.message), said,
        )  # fmt: skip
