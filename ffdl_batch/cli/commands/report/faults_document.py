"""The report of faults for people: as a document, and as rows."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from ffdl_batch.cli.exit_handling import Stop
from ffdl_batch.cli.render.document import Bars, Document, Section, Series, Table, number_column, table_of, text_column
from ffdl_batch.cli.render.formatting import format_time
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.incidents.incident import IncidentRow
from ffdl_batch.domain.incidents.report import FaultsReport, Ranked
from ffdl_batch.domain.quantity import format_time_limit
from ffdl_batch.domain.terminal_text import printable

FORMAT = 1
LAG_S = 300.0
"""An incident may become visible so long after the time that its row has: its transaction takes a while."""
LOCK_S = 120.0
_TICK_S = 0.1


@dataclass(frozen=True, slots=True)
class Told:
    """Everything was told that was noticed up to `noticed_at`, but for what became visible later; and the keys of those
    of the last LAG_S before it. None of both, and nothing was told yet."""

    noticed_at: float
    keys: frozenset[str] = frozenset()
    ahead: Mapping[str, Told] = field(default_factory=dict)
    """What was told to those who took a mail that others did not, by their addresses."""

    @property
    def rows_after(self) -> float:
        """What may be new was noticed after this."""
        return self.noticed_at - LAG_S

    @property
    def is_empty(self) -> bool:
        """Whether nothing was told to all."""
        return self.noticed_at <= 0


def new_rows(report: FaultsReport, reported: Told | None) -> tuple[IncidentRow, ...]:
    """The incidents that nobody was told of."""
    if reported is None:
        return report.rows
    return tuple(row for row in report.rows if row.noticed_at > reported.rows_after and row.key not in reported.keys)


def reported_by(report: FaultsReport, reported: Told | None) -> Told:
    """What was told, once this report is delivered; never less than before."""
    until = min(report.until, report.as_of)
    if reported is not None and reported.noticed_at > until:
        return replace(reported, ahead={})
    recent = {row.key for row in report.rows if row.noticed_at > until - LAG_S}
    kept = reported.keys if reported is not None and reported.noticed_at > until - LAG_S else frozenset()
    return Told(until, frozenset(recent | kept))


def reported_in_part(report: FaultsReport, reported: Told | None, taken: Collection[str]) -> Told:
    """What was told where only those of `taken` took the mail: to all as much as before, and to these all of it."""
    before = reported or Told(0.0)
    return replace(
        before, ahead={**before.ahead, **{one: reported_by(report, reported_to(reported, one)) for one in taken}}
    )


def reported_to(reported: Told | None, who: str) -> Told | None:
    """What was told to this one."""
    return reported.ahead.get(who, reported) if reported is not None else None


@contextmanager
def locked(path: str) -> Iterator[None]:
    """One report at a time for a state file; a lock beside it that stays there. Raises Stop."""
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


def read_reported(path: str) -> Told | None:
    """None where the file is not there yet. Raises Stop for one that is damaged: what was told is not guessed."""
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
            str(who): Told(float(one["noticed_at"]), frozenset(one["keys"]))
            for who, one in body.get("ahead", {}).items()
        }
        return Told(float(body["noticed_at"]), frozenset(keys), ahead)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _unusable(path, "it is damaged") from error


def _unusable(path: str, why: str) -> Stop:
    cure = "remove it, and the next report tells all of its period"
    return Stop(ExitCode.BAD_MANIFEST, f"the state file {path} cannot be used: {why}; {cure}")


def write_reported(path: str, reported: Told) -> None:
    """Beside, then in its place. Raises Stop."""
    beside = f"{path}.{os.getpid()}.part"
    ahead = {who: {"noticed_at": one.noticed_at, "keys": sorted(one.keys)} for who, one in reported.ahead.items()}
    body = {"format": FORMAT, "noticed_at": reported.noticed_at, "keys": sorted(reported.keys)}
    body |= {"ahead": ahead} if ahead else {}
    try:
        with open(beside, "w", encoding="utf-8") as file:  # noqa: PTH123
            json.dump(body, file)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        Path(beside).replace(path)
    except OSError as error:
        Path(beside).unlink(missing_ok=True)
        told_twice = "what this report told will be told again"
        raise Stop(ExitCode.TRY_AGAIN, f"{path} cannot be written: {error.strerror}; {told_twice}") from error


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
