"""The report of faults as a document and as rows, and the state file with the incidents that were reported."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field, replace
from pathlib import Path

from ffdl_batch.cli.options.output import replacing
from ffdl_batch.cli.render.document import Bars, Document, Section, Series, Table, number_column, table_of, text_column
from ffdl_batch.cli.render.formatting import format_time
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.incidents.incident import IncidentRow
from ffdl_batch.domain.incidents.report import FaultsReport, Ranked
from ffdl_batch.domain.number_text import counted
from ffdl_batch.domain.quantity import format_time_limit
from ffdl_batch.domain.terminal_text import printable
from ffdl_batch.exit_handling import Stop
from ffdl_batch.host.fast_dataclass import dataclass

FORMAT = 1
LAG_S = 300.0
"""Maximum time from the time in an incident's row until its transaction makes it visible."""
LOCK_S = 120.0
_TICK_S = 0.1


@dataclass(frozen=True, slots=True)
class Reported:
    """The incidents that were reported."""

    noticed_at: float
    """All incidents noticed up to this time were reported, except those that became visible later; 0 for none."""
    keys: frozenset[str] = frozenset()
    """The keys of the incidents of the last LAG_S before `noticed_at`."""
    ahead: Mapping[str, Reported] = field(default_factory=dict)
    """The state of recipients whose mail was accepted when others' was not, by address."""

    @property
    def rows_after(self) -> float:
        """The time after which new incidents may have been noticed."""
        return self.noticed_at - LAG_S

    @property
    def is_empty(self) -> bool:
        """Whether nothing was reported to all recipients."""
        return self.noticed_at <= 0


def new_rows(report: FaultsReport, reported: Reported | None) -> tuple[IncidentRow, ...]:
    """Return the incidents that were not reported."""
    if reported is None:
        return report.rows
    return tuple(row for row in report.rows if row.noticed_at > reported.rows_after and row.key not in reported.keys)


def reported_by(report: FaultsReport, reported: Reported | None) -> Reported:
    """Return the state after the delivery of this report. It never has less than before."""
    until = min(report.until, report.as_of)
    if reported is not None and reported.noticed_at > until:
        return replace(reported, ahead={})
    recent = {row.key for row in report.rows if row.noticed_at > until - LAG_S}
    kept = reported.keys if reported is not None and reported.noticed_at > until - LAG_S else frozenset()
    return Reported(until, frozenset(recent | kept))


def reported_in_part(report: FaultsReport, reported: Reported | None, taken: Collection[str]) -> Reported:
    """Return the state after a delivery only to `taken`: unchanged for all others."""
    before = reported or Reported(0.0)
    return replace(
        before, ahead={**before.ahead, **{one: reported_by(report, reported_to(reported, one)) for one in taken}}
    )


def reported_to(reported: Reported | None, who: str) -> Reported | None:
    """Return what was reported to a recipient."""
    return reported.ahead.get(who, reported) if reported is not None else None


@contextmanager
def locked(path: str) -> Iterator[None]:
    """Hold the lock of a state file, so that one report at a time uses it. The lock file is kept. Raises Stop."""
    try:
        lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise Stop(ExitCode.BAD_MANIFEST, f"{path}.lock cannot be opened: {error.strerror}") from error
    try:
        end = time.monotonic() + LOCK_S
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > end:
                    raise Stop(ExitCode.TRY_AGAIN, f"another report holds {path}.lock; try again") from None
                time.sleep(_TICK_S)
        yield
    finally:
        os.close(lock)


def read_reported(path: str) -> Reported | None:
    """Read a state file; None if it does not exist. Raises Stop if it is damaged."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise _unusable(path, str(error)) from error
    try:
        body = json.loads(text)
        if body["format"] != FORMAT:
            raise _unusable(path, f"its format is {body['format']!r}, of another release")
        keys = body["keys"]
        if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
            raise TypeError
        ahead = {
            str(who): Reported(float(one["noticed_at"]), frozenset(one["keys"]))
            for who, one in body.get("ahead", {}).items()
        }
        return Reported(float(body["noticed_at"]), frozenset(keys), ahead)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _unusable(path, "it is damaged") from error


def _unusable(path: str, why: str) -> Stop:
    cure = "remove it; the next report then has all incidents of its period"
    return Stop(ExitCode.BAD_MANIFEST, f"the state file {path} cannot be used: {why}; {cure}")


def write_reported(path: str, reported: Reported) -> None:
    """Write the state file as a whole. Raises Stop."""
    ahead = {who: {"noticed_at": one.noticed_at, "keys": sorted(one.keys)} for who, one in reported.ahead.items()}
    body = {"format": FORMAT, "noticed_at": reported.noticed_at, "keys": sorted(reported.keys)}
    body |= {"ahead": ahead} if ahead else {}
    try:
        with replacing(path) as name:
            Path(name).write_text(json.dumps(body) + "\n", encoding="utf-8")
    except OSError as error:
        again = "the next report will have the same incidents"
        raise Stop(ExitCode.TRY_AGAIN, f"{path} cannot be written: {error.strerror}; {again}") from error


CSV_COLUMNS = (
    "at", "noticed_at", "kind", "origin", "title", "job", "attempt", "episode", "name", "user", "nodes", "learner",
    "code", "lost_gpu_hours", "message", "evidence",
)  # fmt: skip
"""Stable: new columns are added at the end, and no column changes its meaning."""
MOST_SHOWN = 200
MOST_EXPLAINED = 25


def faults_document(report: FaultsReport, new: Sequence[IncidentRow]) -> Document:
    """Return the report. `new` are the incidents with all details."""
    whose = "your own jobs only" if report.own_only else "jobs of all users"
    about = (f"From {format_time(report.since)} to {format_time(report.until)}, by local time; {whose}.",)
    sections = (
        Section("Summary", tuple(_summary(report, new))),
        Section("New", (), (_incidents(new),)),
        Section("What to do", (), (_cures(new),)),
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
    yield _number(count, "new incident") + (f", and {more} more that are not listed" if more else "") + "."
    length = format_time_limit(int(report.until - report.since))
    change = report.happened - report.before
    yield (
        f"{_number(report.incidents, 'incident')} of {_number(report.jobs, 'job')} in this period of {length}; "
        f"{report.happened} happened in it, {report.before} in the one before ({change:+d})."
    )
    yield f"Lost since the last checkpoints: {report.lost_gpu_hours:.2f} GPU-hours."


def _number(count: int, word: str) -> str:
    return counted(count, word) if count else f"no {word}s"


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
        lines = [(one.source, format_time(one.at) if one.at is not None else "", one.text) for one in row.evidence]
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
    """Return the numbers of incidents by time, without empty intervals."""
    columns = (text_column("FROM"), number_column("INCIDENTS"), number_column("BEFORE"))
    shown = [one for one in report.bins if one.incidents or one.before]
    note = "Before: in the period before, at the same distance from its beginning."
    return table_of("", columns, [(format_time(one.at), one.incidents, one.before) for one in shown], note)


def _trend_chart(report: FaultsReport) -> Bars:
    labels = tuple(format_time(one.at) for one in report.bins)
    now = Series("this period", tuple(float(one.incidents) for one in report.bins))
    before = Series("the one before", tuple(float(one.before) for one in report.bins))
    return Bars("Incidents over time", labels, (now, before))


def csv_rows(rows: Iterable[IncidentRow]) -> Iterator[tuple[object, ...]]:
    """Yield rows with CSV_COLUMNS. Times are seconds since the epoch. Evidence has a line for each."""
    for row in rows:
        evidence = "\n".join(printable(f"{one.source}: {one.text}") for one in row.evidence)
        yield (
            f"{row.at:.3f}", f"{row.noticed_at:.3f}", row.kind, row.origin, row.title, row.job, row.attempt,
            row.episode, row.name, row.user, " ".join(row.nodes), row.learner or "", row.code,
            f"{row.lost_gpu_hours:.6f}", printable(row.message), evidence,
        )  # fmt: skip
