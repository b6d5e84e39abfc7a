"""``ffdl drill``: play an interruption before a real one comes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ffdl_batch.cli.connection import open_client
from ffdl_batch.cli.drill_report import EVENTS, NODE_FAIL, DrillReport
from ffdl_batch.cli.outcome import Stop, complain, detachable
from ffdl_batch.cli.present import format_time, print_json, print_line, read_span
from ffdl_batch.cli.request import Manner, SbatchLike, build_submissions, collect_options, shared_options
from ffdl_batch.domain.exit_codes import ExitCode

if TYPE_CHECKING:
    from ffdl_batch.client import Client
    from ffdl_batch.client.submission import Wanted
    from ffdl_batch.domain.views import Submission

PREFIX = "drill-"
AFTER_S = 10.0


@click.command(cls=SbatchLike, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("event", type=click.Choice(EVENTS))
@shared_options(metavar="ID | MANIFEST [MODEL]")
@click.option("--after", metavar="SPAN", callback=read_span, help="Let the training run so long before; trial: 10s.")
@click.option("--timeout", metavar="SPAN", callback=read_span, help="Give up after so long (10m, 2h); exit code 124.")
@click.option("--no-resume", is_flag=True, help="Leave a job HALTED after a halt.")
def drill(*, event: str, files: Sequence[str], no_resume: bool, **given: Any) -> int:
    """Play a halt, the warning of a time limit, a preemption or the failure of a node, and report the checkpoint.

    On a running job ID the event is as good as real: the attempt ends, and the job goes on with the next one. With a
    MANIFEST, a trial run is submitted (named drill-..., with ffdl-submit's options), and cancelled afterwards. MODEL is
    the directory `model` beside the manifest unless given. Exit code 0: a checkpoint was confirmed (node-fail: there is
    a saved checkpoint and the next attempt started); 1: not.
    """
    from ffdl_batch.cli.drill_course import Course, Drill

    manner = Manner(as_json=given["as_json"], quiet=given["quiet"], verbose=given["verbose"])
    wanted = collect_options(given, os.environ, manner)
    job_id = _job_id(files)
    trial = not job_id
    after_s = given["after"] if given["after"] is not None else AFTER_S if trial else 0.0
    plan = Drill(event, after_s, given["timeout"], resumes=not no_resume, trial=trial)
    tell = (lambda _: None) if manner.quiet else complain
    with open_client(quiet=manner.quiet) as client:
        if trial:
            with trial_run(client, _submission(files, wanted), files, manner) as trial_id:
                report = Course(client, trial_id, plan, tell).run()
        else:
            with detachable([job_id], f"ffdl events -f {job_id}"):
                report = Course(client, job_id, plan, tell).run()
    if manner.as_json:
        print_json({"drill": report})
    else:
        print_report(report)
    return int(ExitCode.OK if report.passed else ExitCode.FAILED)


def _job_id(files: Sequence[str]) -> str:
    """The id, where the one argument is one; "" where it names a manifest."""
    from ffdl_batch.domain.job import parse_job_id

    if not files:
        raise click.UsageError("a job's id, or a manifest, is needed: ffdl drill EVENT ID | MANIFEST [MODEL]")
    try:
        found = parse_job_id(files[0])
    except ValueError:
        if len(files) > 2:
            raise click.UsageError("one manifest and one model at most: ffdl drill EVENT MANIFEST [MODEL]") from None
        return ""
    if len(files) > 1:
        raise click.UsageError("one job at a time: ffdl drill EVENT ID")
    return found


def _submission(files: Sequence[str], wanted: Wanted) -> Submission:
    """The trial run: the same manifest under another name."""
    from dataclasses import replace

    (submission,) = build_submissions(files[:1], "", wanted)
    name = wanted.options.get("job-name") or _name_of(submission)
    options = {**submission.options, "job-name": f"{PREFIX}{name}"}
    return replace(submission, options=options)


def _name_of(submission: Submission) -> str:
    """The manifest's name. What is wrong with it is the daemon's to say.

    Raises :class:`Stop` where all jobs share one checkpoint directory: a trial run would write into it.
    """
    from ffdl_batch.manifest import ManifestSource, parse_manifest

    source = ManifestSource(submission.manifest, submission.manifest_name, submission.base_dir)
    spec = parse_manifest(source, options=submission.options).spec
    if spec is not None and spec.batch.checkpoint.shared:
        raise Stop(
            ExitCode.BAD_MANIFEST,
            f"{submission.manifest_name}: batch.checkpoint.shared: the trial run would write into the checkpoints of "
            "your other jobs (leave it out for the trial, or drill a job that runs: ffdl drill EVENT ID)",
        )
    return spec.name if spec is not None else "run"


@contextmanager
def trial_run(client: Client, submission: Submission, files: Sequence[str], manner: Manner) -> Iterator[str]:
    """Submit the trial run, give its id, and cancel it on every way out."""
    from dataclasses import replace

    from ffdl_batch.client import ClientError, RequestRefused
    from ffdl_batch.client.api import is_ended

    digest = client.upload(_model(files), manner.tell)
    (result,) = client.send([replace(submission, archive=digest)])
    for warning in result.warnings:
        manner.warn(warning)
    if result.problem:
        raise RequestRefused(result.problem)
    if not manner.quiet:
        complain(f"trial run {result.id} is submitted")
    try:
        yield result.id
    finally:
        try:
            ended = is_ended(client.cancel(result.id))
            if not (ended or manner.quiet):
                complain(f"trial run {result.id} is being cancelled")
        except ClientError as error:  # what the drill found out, or why it failed, must not be lost over this
            complain(f"trial run {result.id} could not be cancelled: {error}; again: ffdl cancel {result.id}")


def _model(files: Sequence[str]) -> Path:
    if len(files) > 1:
        return Path(files[1])
    beside = (Path.cwd() if files[0] == "-" else Path(files[0]).parent) / "model"
    if not beside.is_dir():
        raise click.UsageError(f"there is no {beside}: name the model: ffdl drill EVENT {files[0]} MODEL")
    return beside


def print_report(report: DrillReport) -> None:
    """The report in labelled lines; the last one is the result."""
    print_line("Drill", f"{report.event} on attempt {report.attempt} of {report.job_id}")
    print_line("Ended because", report.message)
    if (report.event, report.interruption) == ("timeout", "preemption"):
        print_line("", "(a warning long before the time limit is taken for one of a preemption)")
    print_line("Checkpoint", _checkpoint(report))
    if report.saved_at is not None and report.saved_age_s is not None:
        age = f", {report.saved_age_s:.1f} s before the event" if report.event == NODE_FAIL else ""
        print_line("Newest file", f"{format_time(report.saved_at)}{age}")
    if report.event != NODE_FAIL:
        print_line("Lead", _lead(report))
    print_line("Next attempt", _next(report))
    print_line("Result", _result(report))


def _checkpoint(report: DrillReport) -> str:
    if report.event == NODE_FAIL:
        return "saved earlier" if report.saved_at is not None else "none was saved"
    if not report.asked:
        return "the learners were not asked for one"
    took = "" if report.took_s is None else f" after {report.took_s:.1f} s"
    if report.confirmed:
        return f"asked for, confirmed{took}"
    if report.answered:
        return f"asked for; the learners ended by themselves{took}, but left no new checkpoint"
    return "asked for; the learners did not react and were ended"


def _lead(report: DrillReport) -> str:
    has = "is not known here" if not report.lead_known else "is none, nobody warns" if report.lead_s is None else ""
    has = has or f"is {report.lead_s} s"
    if report.lead_needed_s is None:
        return f"nothing was measured; this attempt's {has}"
    needed = f"{report.lead_needed_s} s needed; this attempt's {has}"
    if report.lead_s is None:
        return needed
    if report.lead_s >= report.lead_needed_s:
        return f"{needed}, which is enough"
    return f"{needed}, which is too short: write batch.checkpoint.lead_s: {report.lead_needed_s}"


def _next(report: DrillReport) -> str:
    if report.next_attempt is not None and report.next_started_after_s is not None:
        since = "the resume" if report.event == "halt" else "the attempt's end"
        return f"{report.next_attempt}, PROCESSING {report.next_started_after_s:.1f} s after {since}"
    if report.state == "HALTED":
        return f"none; ffdl resume {report.job_id} goes on"
    return f"none; the job is {report.state}"


def _result(report: DrillReport) -> str:
    if report.event != NODE_FAIL:
        return "a checkpoint was confirmed" if report.passed else "no checkpoint was confirmed"
    if report.passed:
        return "there is a checkpoint to go on from, and the next attempt started"
    return "no saved checkpoint is known" if report.saved_at is None else "the next attempt did not start"
