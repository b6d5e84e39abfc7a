"""``ffdl drill``: interrupt a training on purpose, to test its checkpoints before a real interruption."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ffdl_batch.cli.connection import open_client
from ffdl_batch.cli.options.job_options import JOB_OPTIONS
from ffdl_batch.cli.options.submission import Manner, SbatchLike, collect_options, shared_options
from ffdl_batch.cli.render.formatting import print_json, read_span
from ffdl_batch.cli.trial_runs import model_beside, trial_runs, trial_submission
from ffdl_batch.domain.outcome.continuation import DrillEvent
from ffdl_batch.exit_handling import Detached, complain

if TYPE_CHECKING:
    from ffdl_batch.cli.commands.drill.report import DrillReport
    from ffdl_batch.cli.commands.drill.run import Course

AFTER_S = 10.0
PREFIX = "drill-"
MANIFESTS = ("manifest.yml", "manifest.yaml")
_OF_A_TRIAL = frozenset(
    {"export", "strict", "allow_files", "allow_references", *(option.parameter for option in JOB_OPTIONS)}
)
_BEGINNING_OF_AN_ID = re.compile(r"training-[0-9a-z]{3,8}", re.ASCII)
_ELEMENT = re.compile(r"array-[0-9a-z]{9}_[0-9]{1,7}", re.ASCII)


class _TwoKinds(SbatchLike):
    """A command whose help lists the options of the job, which are for trial runs only, after its own."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write two lists of options."""
        options = [each for each in self.get_params(ctx) if isinstance(each, click.Option)]
        for title, of_a_trial in (("Options", False), ("Options of the job, for a trial run (MANIFEST) only", True)):
            records = [each.get_help_record(ctx) for each in options if (each.name in _OF_A_TRIAL) is of_a_trial]
            with formatter.section(title):
                formatter.write_dl([record for record in records if record is not None])


@click.command(cls=_TwoKinds)
@click.argument("event", type=click.Choice([event.value for event in DrillEvent]))
@click.option(
    "--after", metavar="SPAN", callback=read_span, help="Time to train before the event.  [default for trial runs: 10s]"
)
@click.option(
    "--timeout",
    metavar="SPAN",
    callback=read_span,
    help="Maximum time from PROCESSING to the end of the attempt (10m, 2h); then exit code 124.",
)
@click.option(
    "--queue-timeout",
    metavar="SPAN",
    callback=read_span,
    help="Maximum time to wait for PROCESSING, before or after the event; then exit code 124.",
)
@click.option("--no-resume", is_flag=True, help="Leave the job HALTED after a halt.")
@shared_options(metavar="ID | MANIFEST [MODEL]")
def drill(*, event: str, files: Sequence[str], no_resume: bool, **given: Any) -> int:
    """Interrupt a training, and report the result: whether it saved a checkpoint, how long that took, the lead before a
    time limit that it needs, and when the next attempt started.

    \b
    halt       the request of `ffdl halt`; the job is resumed afterwards
    timeout    the warning before the time limit
    preempt    TERM, as at a preemption; about 20 s remain
    node-fail  KILL to all processes; only earlier checkpoints remain

    With a MANIFEST, a trial run (named drill-NAME) is submitted, interrupted and finally cancelled, also after Ctrl-C
    and TERM. Your other jobs are not affected. Of an array or a sweep, only the first element runs. The default MODEL
    is the directory `model` beside the manifest.

    With the ID of a job, that job is interrupted: its attempt ends, the work since its last checkpoint is lost, and the
    next attempt waits in the queue. The job continues even without a confirmed checkpoint, and no retry budget is used
    except gpu_hours. If the training fails at the checkpoint request, the job is FAILED; continue it with ffdl resume.

    Exit code 0: a checkpoint was confirmed (node-fail: a checkpoint exists, and the next attempt started); 1: not;
    124: unknown, because a time was exceeded.
    """
    from ffdl_batch.cli.commands.drill.report import print_report
    from ffdl_batch.cli.commands.drill.run import Course, Drill

    manner = Manner(as_json=given["as_json"], quiet=given["quiet"], verbose=given["verbose"])
    wanted = collect_options(given, os.environ, manner)
    job_id = _job_id(event, files)
    trial = not job_id
    of_a_trial = {**wanted.options, "allow-file": given["allow_files"], "allow-references": given["allow_references"]}
    if not trial and (named := [name for name in sorted(of_a_trial) if name in wanted.options or of_a_trial[name]]):
        names = ", ".join(f"--{name}" for name in named)
        raise click.UsageError(
            f"{names}: options of the job are for trial runs; {job_id} runs with the options of its submission"
        )
    after_s = given["after"] if given["after"] is not None else AFTER_S if trial else 0.0
    timeout_s = given["timeout"]
    if timeout_s is not None and timeout_s < after_s:
        raise click.UsageError(
            f"--timeout {timeout_s:g}s counts from PROCESSING, so it would be exceeded before the event (--after "
            f"{after_s:g}s)"
        )
    plan = Drill(event, after_s, timeout_s, given["queue_timeout"], resumes=not no_resume, trial=trial)
    note = (lambda _: None) if manner.quiet else complain
    with open_client(quiet=manner.quiet) as client:
        if trial:
            submission, _ = trial_submission(files[0], wanted, PREFIX)
            submission = replace(submission, archive=client.upload(_model(event, files), manner.print_verbose))
            with trial_runs(client, manner) as runs:
                report = Course(client, runs.start(submission), plan, note).run()
        else:
            report = _run(Course(client, client.get(job_id).id, plan, note))
    if manner.as_json:
        print_json({"drill": report})
    else:
        print_report(report)
    return int(report.exit_code)


def _run(course: Course) -> DrillReport:
    """Run the drill of a job. Ctrl-C leaves the job as it is."""
    try:
        return course.run()
    except KeyboardInterrupt:
        raise Detached(f"detached; {course.describe_rest()}") from None


def _job_id(event: str, files: Sequence[str]) -> str:
    """Return the id of a job, or the beginning of one, if it is the only argument; "" for a manifest."""
    from ffdl_batch.domain.job.array import is_array_id
    from ffdl_batch.domain.job.job import is_job_id

    if not files:
        raise click.UsageError(f"a manifest or the id of a job is needed: ffdl drill {event} MANIFEST [MODEL]")
    if is_array_id(files[0]):
        raise click.UsageError(f"{files[0]} is an array; name one of its jobs: ffdl drill {event} {files[0]}_INDEX")
    is_id = is_job_id(files[0]) or _ELEMENT.fullmatch(files[0])
    found = files[0] if is_id or (_BEGINNING_OF_AN_ID.fullmatch(files[0]) and not Path(files[0]).exists()) else ""
    if found and len(files) > 1:
        raise click.UsageError(f"one job at a time: ffdl drill {event} ID")
    if len(files) > 2:
        raise click.UsageError(f"only one manifest and one model are allowed: ffdl drill {event} MANIFEST [MODEL]")
    if not found:
        _refuse_directory(event, files)
    return found


def _model(event: str, files: Sequence[str]) -> Path:
    return Path(files[1]) if len(files) > 1 else model_beside(files[0], f"ffdl drill {event} {files[0]} MODEL")


def _refuse_directory(event: str, files: Sequence[str]) -> None:
    """Raise UsageError for a directory, with the manifest in it."""
    directory = Path(files[0])
    if not directory.is_dir():
        return
    manifest = next((directory / name for name in MANIFESTS if (directory / name).is_file()), None)
    if manifest is None:
        raise click.UsageError(f"{directory} is a directory without a {MANIFESTS[0]}; name the manifest")
    again = shlex.join(["ffdl", "drill", event, str(manifest), *files[1:]])
    raise click.UsageError(f"{directory} is a directory; name the manifest: {again}")
