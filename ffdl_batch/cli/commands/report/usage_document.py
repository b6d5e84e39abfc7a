"""The usage report as a document, with published figures for comparison, and the period that it covers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import datetime

import click

from ffdl_batch.cli.render.document import (
    Bars,
    Cell,
    Document,
    Section,
    Series,
    Table,
    number_column,
    table_of,
    text_column,
)
from ffdl_batch.domain.metrics.usage_report import (
    PUBLISHED_DAYS,
    PUBLISHED_JOBS,
    Distribution,
    Efficiency,
    Group,
    Share,
    SiteUsage,
    UsageReport,
    Waste,
    percent,
)
from ffdl_batch.domain.number_text import counted
from ffdl_batch.domain.terminal_text import quoted
from ffdl_batch.host.fast_dataclass import dataclass

_MONTH = re.compile(r"(\d{4})-(\d{1,2})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Period:
    """The period of a report, in seconds since the epoch, without `until` itself."""

    since: float
    until: float
    name: str
    """The text of the period in the title."""


def read_period(month: str | None, since: float | None, until: float | None, now: float) -> Period:
    """Return the period of the options; without any, the current month. Raises UsageError."""
    if month is not None and (since is not None or until is not None):
        raise click.UsageError("--month cannot be combined with --since or --until")
    if since is None and until is None:
        return read_month(month or f"{datetime.fromtimestamp(now):%Y-%m}")
    if since is None:
        raise click.UsageError("--until needs --since, the start of the period")
    end = now if until is None else until
    if end <= since:
        raise click.UsageError("the period is empty: --until must be after --since")
    return Period(since, end, f"{local(since)} to {local(end)}")


def read_month(text: str) -> Period:
    """Return the period of a month such as ``2026-11``, in local time with summer time. Raises UsageError."""
    match = _MONTH.fullmatch(text.strip())
    year, number = (int(match[1]), int(match[2])) if match is not None else (0, 0)
    if not (1970 <= year <= 9998 and 1 <= number <= 12):
        raise click.UsageError(f"{quoted(text)} is not a month; use for example 2026-11")
    after = datetime(year + number // 12, number % 12 + 1, 1)
    begin = datetime(year, number, 1)
    return Period(begin.timestamp(), after.timestamp(), f"{year}-{number:02}")


def local(at: float) -> str:
    """Return a moment in local time, with its UTC offset (ISO 8601)."""
    return datetime.fromtimestamp(at).astimezone().isoformat(timespec="seconds")


GROUPS = ("tenant", "user", "framework")
_TITLES = {"tenant": "TENANT", "user": "USER", "framework": "FRAMEWORK"}
_MOST_BARS = 15
_PUBLISHED = "FfDL"
_MANY, _ABOUT = "3 or more", "For 3 or more, the paper has about 25 %."
_IDLE = "idle according to samples, whatever the cause"
_UNITS = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"))


def usage_document(report: UsageReport, period: Period, by: Sequence[str]) -> Document:
    """Return the report with the groups `by`."""
    return Document(
        f"Usage {period.name}",
        _about(report),
        (
            Section("Hours", _hours(report), tuple(_group(report, name) for name in by), _bars(report, by)),
            _shares_section(report),
            Section(
                "Times",
                ("Attempts whose queueing, download or processing ended in the period. Quantiles are exact.",)
                if any(one.count for one in report.times)
                else (),
                (_quantiles(report.times), *(_histogram(one) for one in report.times if one.count)),
                tuple(_histogram_bars(one) for one in report.times if one.count),
            ),
            Section("Efficiency", _efficiency(report.efficiency)),
            _waste_section(report),
        ),
    )


def site_document(report: SiteUsage, period: Period) -> Document:
    """Return the report about all users."""
    columns = (number_column("JOBS"), number_column("GPU-HOURS", 1), number_column("%", 1),
               number_column("CPU-HOURS", 1))  # fmt: skip
    tables = []
    for kind, groups in (("tenant", report.tenants), ("user", report.users)):
        share = [percent(one.gpu_hours, report.gpu_hours) if report.gpu_hours else None for one in groups]
        rows = [
            (one.name, one.jobs, one.gpu_hours, part, one.cpu_hours) for one, part in zip(groups, share, strict=True)
        ]
        note = "'-': usage that belongs to no tenant." if kind == "tenant" else ""
        tables.append(table_of(f"By {kind}", (text_column(kind.upper()), *columns), rows, note))
    return Document(
        f"Usage of the site {period.name}",
        (
            f"From {local(report.since)} to {local(report.until)}, local time. All users, from Slurm's accounting.",
            f"{counted(report.jobs, 'job')} held {report.gpu_hours:.1f} GPU-hours, {report.cpu_hours:.1f} CPU-hours. "
            f"According to incidents that daemons reported in this period, {report.lost_gpu_hours:.1f} GPU-hours of "
            "work were lost.",
        ),
        (Section("Hours", (), tuple(tables)),),
    )


def _about(report: UsageReport) -> tuple[str, ...]:
    end = min(report.until, report.now)
    whose = "all users" if report.all_users else "one user"
    cut = f", counted up to {local(report.now)}, when this was made" if report.now < report.until else ""
    return (
        f"From {local(report.since)} to {local(report.until)}, local time{cut}. Jobs of {whose}.",
        f"{counted(report.jobs, 'job')} in {_days(end - report.since)}: {report.submitted} submitted in the period, "
        f"{report.never_ran} never ran, {report.running} running now; {counted(report.attempts, 'attempt')} ran.",
        f"Published figures are those of FfDL, of {PUBLISHED_JOBS} jobs in {PUBLISHED_DAYS} days (NIPS 2017 workshop).",
    )


def _days(seconds: float) -> str:
    return f"{max(0.0, seconds) / 86400:.1f} days"


def _hours(report: UsageReport) -> tuple[str, ...]:
    sentence = f"{report.gpu_hours:.1f} GPU-hours and {report.cpu_hours:.1f} CPU-hours were held"
    if report.has_costs:
        return (f"{sentence}; they cost {money(report.cost, report.currency)}.",)
    return (f"{sentence}. The cost is not known, because no rates are configured.",)


def money(amount: float, currency: str) -> str:
    """Return an amount with its currency."""
    return f"{amount:.2f} {currency}".rstrip()


def groups_of(report: UsageReport, by: str) -> tuple[Group, ...]:
    """Return the sums by tenant, user or framework."""
    return {"tenant": report.tenants, "user": report.users, "framework": report.frameworks}[by]


def _group(report: UsageReport, by: str) -> Table:
    columns = [text_column(_TITLES[by]), number_column("JOBS"), number_column("GPU-HOURS", 1),
               number_column("%", 1), number_column("CPU-HOURS", 1), number_column("LOST GPU-HOURS", 1)]  # fmt: skip
    rows: list[list[Cell]] = []
    for one in groups_of(report, by):
        share = percent(one.gpu_hours, report.gpu_hours) if report.gpu_hours else None
        rows.append([one.name, one.jobs, one.gpu_hours, share, one.cpu_hours, one.lost_gpu_hours])
    if report.has_costs:
        columns.append(number_column(f"COST {report.currency}".rstrip(), 2))
        for row, one in zip(rows, groups_of(report, by), strict=True):
            row.append(one.cost)
    note = "A tenant is the account that a job is charged to; - means none." if by == "tenant" else ""
    return table_of(f"By {by}", columns, rows, note)


def _bars(report: UsageReport, by: Sequence[str]) -> tuple[Bars, ...]:
    unit, hours = ("GPU-hours", [g for g in by if report.gpu_hours]) if report.gpu_hours else ("CPU-hours", list(by))
    found = []
    for name in hours:
        largest = groups_of(report, name)[:_MOST_BARS]
        values = tuple(one.gpu_hours if report.gpu_hours else one.cpu_hours for one in largest)
        found.append(Bars(f"By {name}", tuple(one.name for one in largest), (Series("ours", values),), unit))
    return tuple(found)


def _shares_section(report: UsageReport) -> Section:
    kinds = (
        ("Jobs by framework", "FRAMEWORK", "JOBS", report.by_framework),
        ("GPUs per learner", "GPUS", "LEARNERS", report.gpus_per_learner),
        ("Learners per job", "LEARNERS", "JOBS", report.learners_per_job),
    )
    if not report.jobs:
        return Section("Jobs")
    return Section(
        "Jobs",
        (),
        tuple(_share_table(title, kind, what, shares) for title, kind, what, shares in kinds),
        tuple(_share_bars(title, shares) for title, _, _, shares in kinds),
    )


def _share_table(title: str, kind: str, what: str, shares: Sequence[Share]) -> Table:
    columns = (text_column(kind), number_column(what), number_column("%", 1), number_column(f"{_PUBLISHED} %", 1))
    rows = [(one.kind, one.count, one.percent, one.published) for one in shares]
    note = _ABOUT if any(one.kind == _MANY and one.published is not None for one in shares) else ""
    return table_of(title, columns, rows, note)


def _share_bars(title: str, shares: Sequence[Share]) -> Bars:
    ours = Series("ours", tuple(one.percent for one in shares))
    published = Series(_PUBLISHED, tuple(one.published for one in shares))
    return Bars(title, tuple(one.kind for one in shares), (ours, published), "%")


def _quantiles(times: Sequence[Distribution]) -> Table:
    columns = [text_column("TIME"), number_column("COUNT"), *(text_column(title) for title in
               ("MEAN", "MEDIAN", "90 %", "95 %", "99 %", "LONGEST")), text_column("WITHIN"),
               text_column(_PUBLISHED)]  # fmt: skip
    rows: list[list[Cell]] = []
    for one in times:
        if not one.count:
            continue
        within = None if one.within is None or one.published_s is None else (
            f"{one.within:.1f} % up to {span(one.published_s)}")  # fmt: skip
        quantiles = [span(value) for value in one.quantiles_s]
        row: list[Cell] = [
            one.kind,
            one.count,
            span(one.mean_s),
            *quantiles,
            span(one.longest_s),
            within,
            one.published or None,
        ]
        rows.append(row)
    return table_of("", columns, rows)


def span(seconds: float) -> str:
    """Return a time with three digits and a unit: 12.3 s, 4.5 min, 2 h."""
    for size, unit in _UNITS:
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.2g} s"


def _bins(one: Distribution) -> tuple[str, ...]:
    return (*(f"up to {span(bound)}" for bound in one.bounds_s), f"over {span(one.bounds_s[-1])}")


def _histogram(one: Distribution) -> Table:
    columns = (text_column("TIME"), number_column("COUNT"), number_column("%", 1), number_column("UP TO THIS %", 1))
    rows: list[tuple[Cell, ...]] = []
    so_far = 0
    for name, count in zip(_bins(one), one.counts, strict=True):
        so_far += count
        if count:
            rows.append((name, count, percent(count, one.count), percent(so_far, one.count)))
    return table_of(one.kind.capitalize(), columns, rows)


def _histogram_bars(one: Distribution) -> Bars:
    shown = tuple(percent(count, one.count) for count in one.counts)
    return Bars(f"{one.kind.capitalize()} times", _bins(one), (Series("ours", shown),), "%")


def _efficiency(seen: Efficiency) -> tuple[str, ...]:
    if not seen.gpu_hours:
        return ()
    if seen.utilisation is None or seen.covered is None:
        found = ["There are no samples of GPUs, so their utilisation is not known."]
    else:
        found = [
            f"GPU utilisation was {100 * seen.utilisation:.1f} %, weighted by GPU time. There are samples for "
            f"{100 * seen.covered:.1f} % of it ({seen.sampled_gpu_hours:.1f} of {seen.gpu_hours:.1f} GPU-hours).",
            f"GPUs were idle (utilisation below 5 %) for {seen.idle_gpu_hours:.1f} of the sampled GPU-hours.",
        ]
    if seen.unread:
        found.append(
            f"The samples of {counted(seen.unread, 'attempt')} were not read: reading took too long, or failed."
        )
    return tuple(found)


def _waste_section(report: UsageReport) -> Section:
    if not report.gpu_hours:
        return Section("Waste")
    lost = sum(one.gpu_hours for one in report.lost)
    seen = report.efficiency
    idle = [(_IDLE, None, seen.idle_gpu_hours, percent(seen.idle_gpu_hours, report.gpu_hours))]
    return Section(
        "Waste",
        (f"{lost:.1f} GPU-hours of work were lost: the work of failed attempts after their last checkpoints.",),
        (
            _waste_table("Lost, by cause", report.lost, report.gpu_hours),
            _waste_table("Held without use", report.held, report.gpu_hours, idle if seen.sampled_gpu_hours else ()),
        ),
        (
            Bars(
                "Lost, by cause",
                tuple(one.cause for one in report.lost[:_MOST_BARS]),
                (Series("ours", tuple(one.gpu_hours for one in report.lost[:_MOST_BARS])),),
                "GPU-hours",
            ),
        ),
    )


def _waste_table(title: str, waste: Sequence[Waste], whole: float, more: Iterable[Sequence[Cell]] = ()) -> Table:
    columns = (text_column("CAUSE"), number_column("RUNS"), number_column("GPU-HOURS", 1), number_column("%", 1))
    rows = [(one.cause, one.attempts, one.gpu_hours, percent(one.gpu_hours, whole)) for one in waste]
    return table_of(title, columns, [*rows, *more])
