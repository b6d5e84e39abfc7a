"""``ffdl simulate``: compare policies that divide the GPUs of a pool, for measured, recorded or synthetic jobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ffdl_batch.cli.options.output import check_picture, check_written, json_option, open_output, writing
from ffdl_batch.cli.render.formatting import print_json, read_span
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.number_text import counted
from ffdl_batch.elastic.csv_tables import DamagedTable
from ffdl_batch.elastic.policies import MOST_POOL_GPUS, Policy, scheduler_of
from ffdl_batch.exit_handling import Stop
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.option_types import Number, WholeNumber

if TYPE_CHECKING:
    from ffdl_batch.cli.render.document import Document
    from ffdl_batch.cli.render.simulation import Simulated
    from ffdl_batch.elastic.schedulers import Pool
    from ffdl_batch.elastic.simulator import Arrival, Model, Setting, Truth
    from ffdl_batch.elastic.synthetic import Scaling

MIXED = "mixed"
SCALINGS = ("compute-bound", "balanced", "communication-bound", MIXED)
PATTERNS = ("high", "low", "bursty")
LAST_S = 366 * 86_400.0
"""Maximum simulated time after the last submission, because jobs that fail too often never end."""
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_WRITTEN = click.Path(path_type=str)


@dataclass(frozen=True, slots=True)
class _Source:
    """Where the jobs come from."""

    arrivals: Path | None
    synthetic: str | None
    hours: float
    scaling: str
    throughput: Path | None
    convergence: Path | None
    smallest_batch: bool


@dataclass(frozen=True, slots=True)
class _Written:
    """Where the results are written."""

    timeline: str | None
    png: str | None
    html: str | None
    as_json: bool


@dataclass(frozen=True, slots=True)
class _Jobs:
    """The jobs, their models and their true step times."""

    arrivals: Sequence[Arrival]
    models: dict[str, Model]
    truth: Truth
    left_out: int = 0
    """Number of lines of the table that have no GPUs or no duration."""


@click.command(epilog="Example: ffdl simulate --synthetic bursty --gpus 16 --policy fifo --policy completion")
@click.option(
    "--arrivals",
    type=_FILE,
    help="CSV file of jobs (job,submitted_s,model,gpus,batch), or a trace of Philly, Helios or `ffdl report usage`.",
)
@click.option(
    "--synthetic",
    type=click.Choice(PATTERNS),
    help="Generate jobs with this arrival pattern instead of reading --arrivals.",
)
@click.option("--hours", type=Number(0.1, 168), default=8.0, show_default=True,
              help="Hours during which synthetic jobs arrive.")  # fmt: skip
@click.option("--scaling", type=click.Choice(SCALINGS), default=MIXED, show_default=True,
              help="Bottleneck of jobs without measured step times.")  # fmt: skip
@click.option("--throughput", type=_FILE, help="CSV file of measured step times.")
@click.option("--convergence", type=_FILE, help="CSV file of the steps that each model needs with each batch.")
@click.option("--gpus", type=WholeNumber(1, MOST_POOL_GPUS), default=64, show_default=True,
              help="GPUs of the pool.")  # fmt: skip
@click.option("--gpus-per-node", type=WholeNumber(1, 64), default=4, show_default=True, help="GPUs per node.")
@click.option("--max-gpus", type=WholeNumber(1, 1024), default=64, show_default=True,
              help="Maximum number of GPUs of one job, except with fifo.")  # fmt: skip
@click.option("--interval", type=Number(1, 86_400), default=60.0, show_default=True,
              help="Seconds between decisions.")  # fmt: skip
@click.option("--restart-cost", type=Number(0, 86_400), default=30.0, show_default=True,
              help="Seconds without progress after each change, including the first start.")  # fmt: skip
@click.option("--noise", type=Number(0, 0.9), default=0.1, show_default=True,
              help="Maximum relative error of a measured speed.")  # fmt: skip
@click.option("--failures", type=Number(0, 1), default=0.0, show_default=True,
              help="Failures per GPU-hour. A failed job continues from its last checkpoint.")  # fmt: skip
@click.option("--checkpoint-interval", type=Number(1, 86_400), default=600.0, show_default=True,
              help="Seconds between checkpoints.")  # fmt: skip
@click.option("--window", metavar="SPAN", callback=read_span,
              help="End the simulation this long after the first submission, for example 8h.")  # fmt: skip
@click.option("--seed", type=WholeNumber(0, 2**31), default=0, show_default=True,
              help="Seed for measurement errors, failures and synthetic jobs.")  # fmt: skip
@click.option("--policy", "policies", type=click.Choice([one.value for one in Policy]), multiple=True,
              help="Policy to simulate; repeatable.  [default: all]")  # fmt: skip
@click.option("--smallest-batch", is_flag=True, help="Replace each submitted batch with the smallest one of its model.")
@click.option("--timeline", type=_WRITTEN, callback=check_written,
              help="Write each change of the first --policy (default: completion) as CSV with the columns "
              "time_s,job,gpus,batch.")  # fmt: skip
@click.option("--png", type=_WRITTEN, callback=check_picture,
              help="Draw timelines and completion times to this PNG file; needs ffdl-batch[plots].")  # fmt: skip
@click.option("--html", type=_WRITTEN, callback=check_written,
              help="Write tables and charts as one HTML page; needs ffdl-batch[plots].")  # fmt: skip
@json_option()
def simulate(  # noqa: PLR0913  (one parameter per option)
    *,
    arrivals: Path | None,
    synthetic: str | None,
    hours: float,
    scaling: str,
    throughput: Path | None,
    convergence: Path | None,
    gpus: int,
    gpus_per_node: int,
    max_gpus: int,
    interval: float,
    restart_cost: float,
    noise: float,
    failures: float,
    checkpoint_interval: float,
    window: float | None,
    seed: int,
    policies: Sequence[str],
    smallest_batch: bool,
    timeline: str | None,
    png: str | None,
    html: str | None,
    as_json: bool,
) -> int:
    """Simulate elastic jobs on a pool of GPUs, and compare policies that divide the GPUs.

    The command needs ffdl-batch[elastic], but no daemon and no cluster.

    If --throughput and --convergence are given, they define the models of the jobs in --arrivals. Otherwise, the models
    are those of --scaling. Jobs of a trace keep their recorded duration on their recorded GPUs, and scale like the
    model that --scaling selects.
    """
    source = _Source(arrivals, synthetic, hours, scaling, throughput, convergence, smallest_batch)
    _check_source(source)
    written = _Written(timeline, png, html, as_json)
    _check_written(written)
    _require_libraries(png, html)
    from ffdl_batch.elastic.schedulers import Pool
    from ffdl_batch.elastic.simulator import Setting

    setting = Setting(gpus, interval, restart_cost, noise, failures, checkpoint_interval, seed=seed)
    pool = Pool(gpus, gpus_per_node, restart_cost, min(max_gpus, gpus))
    jobs = _read(source, pool, seed)
    setting = replace(setting, until_s=_end_s([one.submitted_s for one in jobs.arrivals], interval, window))
    runs = _simulate([Policy(one) for one in policies] or list(Policy), jobs, pool, setting)
    about = f"{counted(len(jobs.arrivals), 'job')} on {counted(gpus, 'GPU')}, {gpus_per_node} per node"
    timed = next(one for one in runs if one.policy == (policies or [Policy.COMPLETION])[0])
    _write(written, runs, timed, jobs, f"{about}; a decision every {interval:g} s.")
    return ExitCode.OK


def _check_source(source: _Source) -> None:
    """Raise UsageError if the options do not select one source of jobs."""
    if (source.arrivals is None) == (source.synthetic is None):
        raise click.UsageError("give either --arrivals FILE or --synthetic PATTERN")
    if (source.throughput is None) != (source.convergence is None):
        raise click.UsageError("--throughput and --convergence describe the same models; give both or neither")
    if source.throughput is not None and source.synthetic is not None:
        raise click.UsageError("--throughput and --convergence cannot be combined with --synthetic; leave them out")


def _check_written(written: _Written) -> None:
    """Raise UsageError if several options write to standard output."""
    if (written.timeline, written.html).count("-") + written.as_json > 1:
        raise click.UsageError(
            "only one of --json, --timeline and --html can write to standard output; name files for the others"
        )


def _write(written: _Written, runs: Sequence[Simulated], timed: Simulated, jobs: _Jobs, about: str) -> None:
    """Write the results. `timed` is the run whose timeline is written."""
    from ffdl_batch.cli.render.document_html import write_document
    from ffdl_batch.cli.render.simulation import plain_run, simulation_document, write_timeline

    order = [one.job for one in sorted(jobs.arrivals, key=lambda one: one.submitted_s)]
    left_out = (
        [f"Left out: {counted(jobs.left_out, 'line')} without GPUs or without a duration."] if jobs.left_out else []
    )
    if written.timeline is not None:
        with open_output(written.timeline) as file:
            write_timeline(file, timed.run)
    document = simulation_document([about, *left_out], runs)
    _draw(runs, order, document, written.png, written.html)
    if written.as_json:
        print_json({"simulation": [plain_run(one) for one in runs]})
    elif "-" not in (written.timeline, written.html):
        with open_output("-") as file:
            write_document(document, "text", file)


def _end_s(submitted_s: Sequence[float], interval_s: float, window_s: float | None) -> float:
    """Return when the simulation ends. Raises UsageError if it would end before the first decision."""
    from ffdl_batch.elastic.simulator import first_decision_s

    if window_s is None:
        return max(submitted_s) + LAST_S
    first_s = min(submitted_s)
    if window_s <= (wait_s := first_decision_s(first_s, interval_s) - first_s):
        cause = f"the first decision is {wait_s:g} s after the first submission"
        raise click.UsageError(f"--window: {cause}; give a longer time")
    return first_s + window_s


def _require_libraries(png: str | None, html: str | None) -> None:
    """Raise UsageError before the simulation if a library is missing."""
    if png or html:
        from ffdl_batch.cli.render.simulation import empty_figure

        empty_figure(panels=1)
    try:
        import numpy  # noqa: F401
        import scipy  # noqa: F401
    except ImportError:
        raise click.UsageError("simulate needs numpy and scipy; install ffdl-batch[elastic]") from None


def _read(source: _Source, pool: Pool, seed: int) -> _Jobs:
    """Read or generate the jobs. Raises Stop if a table cannot be used."""
    try:
        jobs = _load(source, pool, seed)
    except DamagedTable as error:
        raise Stop(ExitCode.FAILED, str(error)) from None
    except OSError as error:
        raise Stop(ExitCode.NO_INPUT, f"{error.filename} cannot be read: {error.strerror}") from error
    if not source.smallest_batch:
        return jobs
    arrivals = [replace(one, batch=min(jobs.models[one.model].iterations)) for one in jobs.arrivals]
    return replace(jobs, arrivals=arrivals)


def _load(source: _Source, pool: Pool, seed: int) -> _Jobs:
    from ffdl_batch.elastic.measured import read_models, read_times
    from ffdl_batch.elastic.synthetic import (
        Pattern,
        Scaling,
        SyntheticTimes,
        Workload,
        synthetic_arrivals,
        synthetic_models,
    )
    from ffdl_batch.elastic.traces import is_trace, read_arrivals, read_trace

    scaling: Scaling | None = None if source.scaling == MIXED else Scaling(source.scaling)
    times, models = SyntheticTimes(pool.gpus, pool.node_gpus), synthetic_models()
    if source.synthetic is not None:
        workload = Workload(Pattern(source.synthetic), scaling, pool.gpus, source.hours, seed)
        return _Jobs(synthetic_arrivals(workload, times), models, times)
    assert source.arrivals is not None
    if is_trace(source.arrivals):
        trace = read_trace(source.arrivals, times, pool.gpus, scaling, seed)
        return _Jobs(trace.arrivals, models, times, trace.left_out)
    if source.throughput is None or source.convergence is None:
        return _Jobs(read_arrivals(source.arrivals, models, pool.gpus), models, times)
    measured = read_times(source.throughput, pool.node_gpus)
    models = read_models(source.convergence, measured)
    return _Jobs(read_arrivals(source.arrivals, models, pool.gpus, source.convergence), models, measured)


def _simulate(policies: Sequence[Policy], jobs: _Jobs, pool: Pool, setting: Setting) -> list[Simulated]:
    from ffdl_batch.cli.render.simulation import Simulated
    from ffdl_batch.elastic.outcomes import completion_times, equal_sharing, outcome_of
    from ffdl_batch.elastic.simulator import simulate as run_pool

    equal_s = equal_sharing(jobs.arrivals, jobs.models, jobs.truth, setting)
    runs = []
    for policy in dict.fromkeys(policies):
        scheduler = scheduler_of(policy, jobs.models, pool, setting.interval_s)
        run = run_pool(jobs.arrivals, jobs.models, jobs.truth, scheduler, setting)
        outcome = outcome_of(run, jobs.arrivals, equal_s, setting)
        runs.append(Simulated(policy.value, run, outcome, completion_times(run, jobs.arrivals)))
    return runs


def _draw(
    runs: Sequence[Simulated], order: Sequence[str], document: Document, png: str | None, html: str | None
) -> None:
    from ffdl_batch.cli.render.document_html import html_page
    from ffdl_batch.cli.render.simulation import draw_runs, svg_of

    if png is None and html is None:
        return
    figure = draw_runs(runs, order)
    if png is not None:
        with writing(png) as path:
            figure.savefig(path, dpi=110, format="png")
    if html is not None:
        with open_output(html) as file:
            file.write(html_page(document, svg_of(figure)))
