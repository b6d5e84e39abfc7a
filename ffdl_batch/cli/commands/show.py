"""``ffdl show`` and ``ffdl events``: everything about jobs, and their state changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from ffdl_batch.cli.arrays import is_array, print_array
from ffdl_batch.cli.connection import open_client
from ffdl_batch.cli.newest_job import newest_job
from ffdl_batch.cli.options.output import json_option
from ffdl_batch.cli.render.formatting import format_number, format_time, paint_state, print_json, print_line
from ffdl_batch.cli.render.job_messages import SEEN, print_database_outage, print_outages
from ffdl_batch.cli.render.job_tables import print_attempts, print_learners
from ffdl_batch.domain.job_state import Cause, JobState
from ffdl_batch.domain.number_text import counted
from ffdl_batch.domain.terminal_text import printable
from ffdl_batch.exit_handling import complain, detachable
from ffdl_batch.option_types import WholeNumber
from ffdl_batch.output import echo_styled

if TYPE_CHECKING:
    from ffdl_batch.domain.daemon_health import BackendHealth
    from ffdl_batch.domain.job.views import ArrayView, JobView


_RAN = frozenset({JobState.PROCESSING, JobState.STORING, JobState.COMPLETED})
_EVIDENCE = 6
"""Maximum lines of evidence for each incident except the last one, which is shown with all lines."""
_SHOWN_SOURCES = ("name", "framework.name", "framework.version", "learners", "cpus", "gpus", "gpu_type", "memory")


@click.command()
@click.argument("job_ids", nargs=-1, metavar="[ID...]")
@json_option("Print JSON, one line per job.")
def show(job_ids: Sequence[str], as_json: bool) -> int:
    """Show everything about jobs: state, times, resources and where each value comes from, results, incidents.

    Without an ID, show the newest job, or its array. An ID may also be the scheduler's.
    """
    from ffdl_batch.client import UnknownJob

    code = 0
    outages: dict[str, BackendHealth] = {}
    living: set[str] = set()
    with open_client() as client:
        for number, job_id in enumerate(job_ids or [newest_job(client)]):
            try:
                if is_array(job_id):
                    _show_array(client.arrays.get(job_id), first=not number, as_json=as_json)
                    continue
                job = client.get(job_id)
            except UnknownJob as error:
                complain(str(error))
                code = error.problem.exit_code
                continue
            outages |= {one.name: one for one in client.outages}
            living |= {job.backend} if job.ended_at is None else set()
            if as_json:
                print_json({"job": job, "outages": client.outages, "database_outage": client.database_outage})
                continue
            if number:
                click.echo()
            print_job(job)
        database_outage = client.database_outage
    print_outages(outages.values(), SEEN, living)
    print_database_outage(database_outage)
    return code


def _show_array(array: ArrayView, *, first: bool, as_json: bool) -> None:
    if as_json:
        print_json({"array": array})
        return
    if not first:
        click.echo()
    print_array(array)


def print_job(job: JobView) -> None:
    """Print the job in labelled lines, without empty values."""
    print_line("ID", job.id)
    print_line("Name", job.name, _source(job, "name"))
    if job.array:
        values = " ".join(f"{name}={value}" for name, value in job.array_values.items())
        print_line("Array", f"{job.array}_{job.array_index}", values)
    print_line("User", job.user)
    print_line("State", job.state, state=job.state)
    print_line("Requested", job.requested_action if job.requested_action != "none" else "")
    _print_fault(job)
    label = "Disruption" if job.state == JobState.PROCESSING else "Waiting because"
    print_line(label, job.pending_reason if job.ended_at is None else "")
    if job.moving_at is not None:
        print_line("Moving", job.moving, f"at {format_time(job.moving_at)}")
    if job.uncertain_since is not None:
        print_line("Uncertain since", f"{format_time(job.uncertain_since)} (the scheduler's answer was lost; looking)")
    _print_request(job)
    _print_place(job)
    _print_times(job)
    print_learners(job)
    print_attempts(job)
    _print_incidents(job)
    for warning in job.warnings:
        print_line("Warning", warning)
    _print_sources(job)
    if job.log_tail:
        click.echo("Last lines of the log:")
        for text in job.log_tail:
            click.echo(f"  {text}")


def _print_fault(job: JobView) -> None:
    if job.error_code not in ("", "000"):
        print_line("Error code", job.error_code)
    print_line("Message", job.message)
    if job.settled_at is not None:
        where = job.stored_in or job.results
        print_line("Settled", f"at {format_time(job.settled_at)}: all is stored{f' in {where}' if where else ''}")
    print_line("What to do", job.cure)
    if job.exit_code is not None:
        print_line("Exit code", str(job.exit_code))
    if job.exit_signal is not None:
        print_line("Ended by signal", f"{job.exit_signal}{_signal_name(job.exit_signal)}")


def _print_incidents(job: JobView) -> None:
    """Print each incident with its evidence."""
    if job.incidents:
        click.echo("Incidents:")
    for one in job.incidents:
        lost = f", {one.lost_gpu_hours:.2f} GPU-hours lost" if one.lost_gpu_hours >= 0.005 else ""
        nodes = f" on {' '.join(one.nodes)}" if one.nodes else ""
        where = f"attempt {one.attempt}{nodes}{lost}"
        click.echo(f"  {format_time(one.at)}  {one.kind}: {printable(one.message, one_line=True)} ({where})")
        evidence = [line for line in one.evidence if line.text != one.message]
        shown = evidence if one is job.incidents[-1] else evidence[:_EVIDENCE]
        for line in shown:
            click.echo(f"    {line.source}: {printable(line.text, one_line=True)}")
        if left := len(evidence) - len(shown):
            click.echo(f"    and {counted(left, 'line')} more: ffdl show --json {job.id}")


def _print_request(job: JobView) -> None:
    from ffdl_batch.domain.quantity import format_memory

    print_line("Framework", job.framework, _source(job, "framework.name"))
    print_line("Version", job.framework_version, _source(job, "framework.version"))
    print_line("Learners", str(job.learners), _source(job, "learners"))
    print_line("CPUs", format_number(job.cpus), _source(job, "cpus"))
    gpus = format_number(job.gpus) + (f" of type {job.gpu_type}" if job.gpu_type else "")
    print_line("GPUs", gpus, _source(job, "gpus"))
    print_line("Memory", format_memory(job.memory_bytes), _source(job, "memory"))
    print_line("Network requested", job.network_requested, _source(job, "batch.network"))
    made_by = "" if job.network_by == "none" else job.network_by.removeprefix("none; ")
    network = f"{job.network} ({made_by})" if made_by else job.network
    print_line("Network achieved" if job.network_by or _has_run(job) else "Network planned", network)
    print_line("Altered", "; ".join(f"{key} is {value}" for key, value in sorted(job.overrides.items())))


def _has_run(job: JobView) -> bool:
    """Return whether the current attempt started its learners. Before that, its network isolation is only planned."""
    return not _RAN.isdisjoint({job.state, *job.timestamps}) or job.exit_code is not None


def _print_place(job: JobView) -> None:
    print_line("Backend", job.backend)
    print_line("Scheduler's id", job.native_id)
    number = _attempt_of_times(job)
    print_line("Attempt", str(job.attempt) + (f"; attempt {number} is next" if 1 < number != job.attempt else ""))
    print_line("Nodes", job.nodes)
    print_line("GPU devices", " ".join(job.gpu_devices))
    print_line("Results", job.results or job.results_note, _attempt_of(job, job.results))
    print_line(_store_label(job), job.stored_in, job.stored_at)
    print_line("Logs", job.logs, _attempt_of(job, job.logs))
    print_line("Job directory", job.job_dir)


def _store_label(job: JobView) -> str:
    """Return the label of the store. It says "Stored in" only if it is known that everything is stored."""
    from ffdl_batch.domain.outcome.error_codes import NOT_STORED

    if job.ended_at is None or any(attempt.upload_pending for attempt in job.attempts):
        return "To be stored in"
    is_stored = _has_run(job) and job.state != JobState.CANCELLED and job.error_code not in NOT_STORED
    return "Stored in" if is_stored or job.settled_at is not None else "Store"


def _attempt_of(job: JobView, path: str) -> str:
    """Return the attempt whose directory this is; "" for the newest."""
    earlier = (attempt for attempt in job.attempts if path and path in (attempt.results, attempt.logs))
    return next((f"attempt {attempt.number}" for attempt in earlier if attempt.number != job.attempt), "")


def _print_times(job: JobView) -> None:
    print_line("Submitted", format_time(job.submitted_at))
    if (number := _attempt_of_times(job)) > 1 and job.timestamps:
        click.echo(f"Times of attempt {number}:")
    for state, at in sorted(job.timestamps.items(), key=lambda item: item[1]):
        print_line(f"  {state}", format_time(at))
    if job.ended_at is not None:
        print_line("Ended", format_time(job.ended_at))
    if job.expected_end is not None:
        print_line("Expected end", format_time(job.expected_end) + _beside_limit(job.expected_end, job.limit_at))


def _beside_limit(expected_end: float, limit_at: float | None) -> str:
    from ffdl_batch.domain.pending.reason_text import span_text

    if limit_at is None:
        return ""
    early_s = limit_at - expected_end
    return f", {span_text(abs(early_s))} {'before' if early_s >= 0 else 'after'} its time limit"


def _attempt_of_times(job: JobView) -> int:
    """Return the attempt that the times belong to. An attempt that is not submitted yet has no number."""
    return job.attempt + 1 if job.state == JobState.PENDING else job.attempt


def _print_sources(job: JobView) -> None:
    shown = (*_SHOWN_SOURCES, "batch.network")
    others = {path: where for path, where in job.sources.items() if path not in shown and "[" not in path}
    if others:
        click.echo("Other values come from:")
        for path, source in sorted(others.items()):
            click.echo(f"  {path}: {source}")


def _source(job: JobView, path: str) -> str:
    return job.sources.get(path, "")


def _signal_name(number: int) -> str:
    import signal

    try:
        return f" ({signal.Signals(number).name})"
    except ValueError:
        return ""


@click.command()
@click.argument("job_id", metavar="ID")
@click.option("-f", "--follow", is_flag=True, help="Follow until the job ends.")
@click.option("--after", type=WholeNumber(0), default=0, help="Show only events after this number.", metavar="N")
@json_option("Print JSON, one line per event.")
def events(*, job_id: str, follow: bool, after: int, as_json: bool) -> None:
    """List the state changes of a job: time, state, attempt, cause if the job went back to a state, and message."""
    with open_client() as client, detachable([job_id], f"ffdl events -f {job_id}"):
        for event in client.events(job_id, follow=follow, after=after):
            if as_json:
                print_json({"event": event})
                continue
            code = f"{event.error_code} " if event.error_code not in ("", "000") else ""
            needs_no_cause = event.cause == Cause.PROGRESS or event.message.startswith(event.cause)
            cause = "" if needs_no_cause else f"{event.cause}: "
            text = printable((cause + code + event.message).removesuffix(": "), one_line=True)
            state = paint_state(event.state, f"{event.state:<11}")
            echo_styled(f"{format_time(event.at)}  {state}  {event.attempt}  {text}".rstrip())
