"""``ffdl show``: everything about one job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from ffdl_batch.cli.outcome import complain
from ffdl_batch.cli.present import format_number, format_time, paint_state, print_json, printable

if TYPE_CHECKING:
    from ffdl_batch.domain.views import JobView

_LABEL = 20
_SHOWN_SOURCES = ("name", "framework.name", "framework.version", "learners", "cpus", "gpus", "gpu_type", "memory")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("job_ids", nargs=-1, required=True, metavar="ID...")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one line per job.")
def show(job_ids: Sequence[str], as_json: bool) -> int:
    """Everything about a job: state and times, resources and where each value came from, results, faults."""
    from ffdl_batch.client import Client, UnknownJob

    code = 0
    with Client() as client:
        for number, job_id in enumerate(job_ids):
            try:
                job = client.get(job_id)
            except UnknownJob as error:
                complain(str(error))
                code = error.problem.exit_code
                continue
            if as_json:
                print_json({"job": job})
                continue
            if number:
                click.echo()
            print_job(job)
    return code


def print_job(job: JobView) -> None:
    """The job in labelled lines; what is empty is left out."""
    _line("ID", job.id)
    _line("Name", job.name, _source(job, "name"))
    _line("User", job.user)
    _line("State", paint_state(job.state), raw=True)
    _line("Requested", job.wish if job.wish != "none" else "")
    _print_fault(job)
    _line("Waiting because", job.pending_reason if job.ended_at is None else "")
    if job.uncertain_since is not None:
        _line("Uncertain since", f"{format_time(job.uncertain_since)} (the scheduler's answer was lost; looking)")
    _print_request(job)
    _print_place(job)
    _print_times(job)
    for warning in job.warnings:
        _line("Warning", warning)
    _print_sources(job)
    if job.log_tail:
        click.echo("Last lines of the log:")
        for text in job.log_tail:
            click.echo(f"  {printable(text)}")


def _print_fault(job: JobView) -> None:
    if job.error_code not in ("", "000"):
        _line("Error code", job.error_code)
    _line("Message", job.message)
    _line("What to do", job.cure)
    if job.exit_code is not None:
        _line("Exit code", str(job.exit_code))
    if job.exit_signal is not None:
        _line("Ended by signal", f"{job.exit_signal}{_signal_name(job.exit_signal)}")


def _print_request(job: JobView) -> None:
    from ffdl_batch.domain.quantity import format_size

    _line("Framework", job.framework, _source(job, "framework.name"))
    _line("Version", job.framework_version, _source(job, "framework.version"))
    _line("Learners", str(job.learners), _source(job, "learners"))
    _line("CPUs", format_number(job.cpus), _source(job, "cpus"))
    gpus = format_number(job.gpus) + (f" of type {job.gpu_type}" if job.gpu_type else "")
    _line("GPUs", gpus, _source(job, "gpus"))
    _line("Memory", format_size(job.memory_bytes), _source(job, "memory"))
    _line("Network requested", job.network_requested, _source(job, "batch.network"))
    _line("Network achieved", job.network)


def _print_place(job: JobView) -> None:
    _line("Backend", job.backend)
    _line("Scheduler's id", job.native_id)
    _line("Attempt", str(job.attempt))
    _line("Nodes", job.nodes)
    _line("Results", job.results)
    _line("Logs", job.logs)
    _line("Job directory", job.job_dir)


def _print_times(job: JobView) -> None:
    _line("Submitted", format_time(job.submitted_at))
    for state, at in sorted(job.timestamps.items(), key=lambda item: item[1]):
        _line(f"  {state}", format_time(at))
    if job.ended_at is not None:
        _line("Ended", format_time(job.ended_at))


def _print_sources(job: JobView) -> None:
    others = {path: source for path, source in job.sources.items() if path not in (*_SHOWN_SOURCES, "batch.network")}
    if others:
        click.echo("Other values come from:")
        for path, source in sorted(others.items()):
            click.echo(f"  {printable(path)}: {printable(source)}")


def _source(job: JobView, path: str) -> str:
    return job.sources.get(path, "")


def _line(label: str, value: str, source: str = "", *, raw: bool = False) -> None:
    if value:
        shown = value if raw else printable(value)
        click.echo(f"{label + ':':<{_LABEL}} {shown}" + (f"  [{printable(source)}]" if source else ""))


def _signal_name(number: int) -> str:
    import signal

    try:
        return f" ({signal.Signals(number).name})"
    except ValueError:
        return ""
