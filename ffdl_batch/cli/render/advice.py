"""Print advice on the resources of a manifest."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import click

from ffdl_batch.cli.render.formatting import format_number, print_line, print_table
from ffdl_batch.domain.metrics.advice import Advice, Choice
from ffdl_batch.domain.metrics.usage_report import HOUR_S
from ffdl_batch.domain.number_text import counted
from ffdl_batch.domain.pending.reason_text import span_text
from ffdl_batch.domain.quantity import format_size, format_time_limit
from ffdl_batch.domain.terminal_text import printable

_Column = tuple[str, Callable[[Choice], str]]


def print_advice(found: Advice) -> None:
    """Print the jobs, the choices, and the advice on memory and checkpoints."""
    jobs = f"{counted(len(found.jobs), 'job')}: {' '.join(found.jobs)}" if found.jobs else "no job"
    print_line("Advice for", f"{found.name} ({found.framework} on {found.backend})")
    print_line("Based on", jobs)
    if found.choices:
        columns = _columns(found)
        print_table([name for name, _ in columns], [[text(one) for _, text in columns] for one in found.choices])
    memory = found.memory
    if memory is not None:
        peak = f"; highest: {format_size(memory.peak_bytes)}" if memory.peak_bytes is not None else ""
        print_line("Memory", f"{format_size(memory.advised_bytes)} for each learner",
                   f"{counted(memory.attempts, 'attempt')} measured{peak}")  # fmt: skip
    saving = found.checkpoint
    if saving is not None:
        print_line(
            "Checkpoint every",
            span_text(saving.interval_s),
            f"a checkpoint takes {span_text(saving.checkpoint_s)} (measured {counted(saving.checkpoints, 'time')}); "
            f"{counted(saving.preemptions, 'preemption')} in {saving.ran_s / HOUR_S:.1f} hours",
        )
    for note in found.notes:
        click.echo(f"Note: {printable(note, one_line=True)}")


def _columns(found: Advice) -> Sequence[_Column]:
    """Return the columns that have values."""
    columns: list[_Column] = [("", lambda one: "*" if one.recommended else "")]
    if any(one.form.gpus for one in found.choices):
        columns.append(("GPUS", lambda one: format_number(one.form.learners * one.form.gpus)))
    columns.append(("LEARNERS", lambda one: str(one.form.learners)))
    if any(one.form.batch is not None for one in found.choices):
        columns.append(("BATCH", lambda one: "-" if one.form.batch is None else str(one.form.batch)))
    if any(one.samples_per_s is not None for one in found.choices):
        columns.append(("SAMPLES/S", _speed))
    columns.append(("TIME", lambda one: "-" if one.time_s is None else span_text(one.time_s)))
    if any(one.form.gpus for one in found.choices):
        columns.append(("GPU-HOURS", lambda one: _hours(one.gpu_hours)))
    else:
        columns.append(("CPU-HOURS", lambda one: _hours(one.cpu_hours)))
    if found.has_costs:
        name = f"COST {found.currency}".strip()
        columns.append((name, lambda one: "-" if one.cost is None else f"{one.cost:.2f}"))
    columns.append(("TIME LIMIT", lambda one: "-" if one.time_limit_s is None else format_time_limit(one.time_limit_s)))
    columns.append(("", lambda one: "extrapolated" if one.extrapolates else ""))
    return columns


def _speed(one: Choice) -> str:
    if one.samples_per_s is None:
        return "-"
    return f"{one.samples_per_s:.3g} ± {one.relative_std or 0.0:.0%}"


def _hours(hours: float | None) -> str:
    return "-" if hours is None else f"{hours:.3g}"
