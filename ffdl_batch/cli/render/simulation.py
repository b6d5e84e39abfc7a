"""Print simulated runs as a table, a CSV timeline, and charts (matplotlib)."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import IO, TYPE_CHECKING

from ffdl_batch.cli.render.charts import blank_figure
from ffdl_batch.cli.render.document import (
    Cell,
    Document,
    Section,
    number_column,
    table_of,
    text_column,
    write_csv,
)
from ffdl_batch.host.fast_dataclass import dataclass

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from matplotlib.figure import Figure

    from ffdl_batch.elastic.outcomes import Outcome
    from ffdl_batch.elastic.simulator import Change, Run

TIMELINE = ("time_s", "job", "gpus", "batch")


@dataclass(frozen=True, slots=True, eq=False)
class Simulated:
    """The run of one policy."""

    policy: str
    run: Run
    outcome: Outcome
    took_s: Mapping[str, float]
    """Seconds from submission to end of each completed job."""


def simulation_document(about: Sequence[str], runs: Sequence[Simulated]) -> Document:
    """Return the figures of each policy as a document."""
    columns = (
        text_column("POLICY"),
        number_column("COMPLETED"),
        number_column("UNFINISHED"),
        *(number_column(f"{name} s") for name in ("MEAN", "MEDIAN", "P95", "MAKESPAN")),
        number_column("GPU USE %", 1),
        number_column("JAIN", 3),
        number_column("WORST", 2),
        number_column("RESTARTS"),
    )
    note = (
        "MEAN, MEDIAN and P95 are times from submission to end, for completed jobs. The slowdown of a job is this time "
        "divided by its time if all present jobs had equal shares of the GPUs. JAIN is Jain's fairness index of the "
        "slowdowns, and WORST is the largest slowdown."
    )
    table = table_of("", columns, [_row(one) for one in runs], note)
    return Document("Simulation", tuple(about), (Section("Policies", (), (table,)),))


def _row(one: Simulated) -> tuple[Cell, ...]:
    out = one.outcome
    figures = (out.mean_s, out.p50_s, out.p95_s, out.makespan_s, 100 * out.utilisation, out.jain, out.worst_slow_down)
    return (one.policy, out.completed, out.unfinished, *map(_finite, figures), out.restarts)


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


def plain_run(one: Simulated) -> dict[str, object]:
    """Return the figures and the completion time of each job as plain values for JSON."""
    figures = {name: _finite(value) for name, value in asdict(one.outcome).items()}
    return {"policy": one.policy, **figures, "completion_s": dict(one.took_s)}


def write_timeline(file: IO[str], run: Run) -> None:
    """Write each change that the policy decided, without the ends of jobs, which follow from changes and speeds."""
    decided = (change for change in _in_order(run) if change.gpus or change.time_s != run.completed_s.get(change.job))
    write_csv(file, TIMELINE, ((_seconds(one.time_s), one.job, one.gpus, one.batch) for one in decided))


def _in_order(run: Run) -> list[Change]:
    return sorted(run.changes, key=lambda change: change.time_s)


def _seconds(time_s: float) -> str:
    return f"{time_s:.3f}".rstrip("0").rstrip(".")


def empty_figure(panels: int) -> Figure:
    """Return an empty figure with this number of panels. Raises UsageError if matplotlib is not installed."""
    return blank_figure(11, 3.5 * panels, "--png and --html need matplotlib; install ffdl-batch[plots]")


def draw_runs(runs: Sequence[Simulated], order: Sequence[str]) -> Figure:
    """Draw the distribution of completion times, and the GPUs of each job over time. `order` has the names of the
    jobs."""
    figure = empty_figure(1 + len(runs))
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LogNorm

    axes = figure.subplots(1 + len(runs), 1, squeeze=False)[:, 0]
    _draw_distribution(axes[0], runs)
    changes = [change for one in runs for change in one.run.changes]
    most, end_s = max(change.gpus for change in changes), max(change.time_s for change in changes)
    colours = ScalarMappable(LogNorm(1, max(2, most)), "viridis")
    rows = {job: row for row, job in enumerate(order)}
    for panel, one in zip(axes[1:], runs, strict=True):
        _draw_timeline(panel, one, rows, colours)
        panel.set_xlim(0, end_s / 3600)
        panel.set_ylim(len(order), 0)
    ticks = [2**power for power in range(max(2, most).bit_length())]
    bar = figure.colorbar(colours, ax=list(axes[1:]), label="GPUs", aspect=60, ticks=ticks, format="%d")
    bar.minorticks_off()
    assert bar.solids is not None
    bar.solids.set_rasterized(False)  # HTML pages contain no bitmaps
    return figure


def svg_of(figure: Figure) -> str:
    """Return a figure as SVG, to embed in a page."""
    from matplotlib import rc_context

    text = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "ffdl"}):
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    svg = text.getvalue()
    return svg[svg.index("<svg") :]


def _draw_distribution(axes: Axes, runs: Sequence[Simulated]) -> None:
    axes.set_title("Completion times", fontsize=10)
    for one in runs:
        times = sorted(one.took_s.values())
        shares = [100 * (number + 1) / (len(times) + one.outcome.unfinished) for number in range(len(times))]
        axes.step(times, shares, where="post", label=one.policy, linewidth=1.3)
    axes.set_xscale("log")
    axes.set_xlabel("seconds from submission to end")
    axes.set_ylabel("% of all jobs")
    axes.grid(visible=True, alpha=0.3)
    axes.legend(fontsize=8)


def _draw_timeline(axes: Axes, one: Simulated, rows: Mapping[str, int], colours: ScalarMappable) -> None:
    import numpy as np
    from matplotlib.collections import PolyCollection

    bars, gpus = [], []
    changes = _in_order(one.run)
    running: dict[str, Change] = {}
    for change in [*changes, *(replace(changes[-1], job=job, gpus=0) for job in rows)]:
        began = running.pop(change.job, change)
        if began is not change:
            row, (left, right) = rows[change.job], (began.time_s / 3600, change.time_s / 3600)
            bars.append([(left, row), (right, row), (right, row + 0.9), (left, row + 0.9)])
            gpus.append(began.gpus)
        if change.gpus:
            running[change.job] = change
    axes.add_collection(PolyCollection(bars, facecolors=colours.to_rgba(np.array(gpus))))
    axes.set_title(f"GPUs of each job: {one.policy}", fontsize=10)
    axes.set_xlabel("hours")
    axes.set_ylabel("jobs, by submission")
