"""``ffdl drill``: play an interruption before a real one comes."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ffdl_batch.cli.commands.drill.report import EVENTS
from ffdl_batch.cli.commands.drill.trial_job import trial_run, trial_submission
from ffdl_batch.cli.connection import open_client
from ffdl_batch.cli.exit_handling import Detached, complain
from ffdl_batch.cli.options.job_options import JOB_OPTIONS
from ffdl_batch.cli.options.submission import Manner, SbatchLike, collect_options, shared_options
from ffdl_batch.cli.render.formatting import print_json, read_span

if TYPE_CHECKING:
    from ffdl_batch.cli.commands.drill.report import DrillReport
    from ffdl_batch.cli.commands.drill.run import Course

AFTER_S = 10.0
MANIFESTS = ("manifest.yml", "manifest.yaml")
_OF_A_TRIAL = frozenset(
    {"export", "strict", "allow_files", "allow_references", *(option.parameter for option in JOB_OPTIONS)}
)
_BEGINNING_OF_AN_ID = re.compile(r"training-[0-9a-z]{3,8}", re.ASCII)
_ELEMENT = re.compile(r"array-[0-9a-z]{9}_[0-9]{1,7}", re.ASCII)


class _TwoKinds(SbatchLike):
    """Help with the drill's own options first: the job's are many, and for trial runs only."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Two lists."""
        options = [each for each in self.get_params(ctx) if isinstance(each, click.Option)]
        for title, of_a_trial in (("Options", False), ("Options of the job, for a trial run (MANIFEST) only", True)):
            records = [each.get_help_record(ctx) for each in options if (each.name in _OF_A_TRIAL) is of_a_trial]
            with formatter.section(title):
                formatter.write_dl([record for record in records if record is not None])


@click.command(cls=_TwoKinds, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("event", type=click.Choice(EVENTS))
@click.option("--after", metavar="SPAN", callback=read_span, help="Let the training run so long before; trial: 10s.")
@click.option(
    "--timeout",
    metavar="SPAN",
    callback=read_span,
    help="Give up when the attempt has not ended so long after PROCESSING began (10m, 2h); exit code 124.",
)
@click.option(
    "--queue-timeout",
    metavar="SPAN",
    callback=read_span,
    help="Give up waiting for PROCESSING after so long, before the event or after it; exit code 124.",
)
@click.option("--no-resume", is_flag=True, help="Leave the job HALTED after a halt.")
@shared_options(metavar="ID | MANIFEST [MODEL]")
def drill(*, event: str, files: Sequence[str], no_resume: bool, **given: Any) -> int:
    """Play an interruption, and report what the training makes of it: whether it saved a checkpoint, how long that
    took, what lead before a time limit that needs, and when the next attempt ran.

    \b
    halt       ffdl halt itself; the job is resumed afterwards
    timeout    the warning before the time limit
    preempt    the TERM of a preemption; about 20 s are left
    node-fail  KILL to all of it; what was saved before is all there is

    With a MANIFEST, a trial run of it (named drill-NAME) is submitted, interrupted and at last cancelled, also by
    Ctrl-C and TERM; no job of yours is touched. Of an array or a sweep, the trial run is the first element alone.
    MODEL is the directory `model` beside the manifest unless given.

    With the ID of a job, that job is really interrupted: the attempt ends, what was computed since its last checkpoint
    is lost, and it goes on with the next attempt, which waits in the queue like any other. That uses up no budget of
    batch.retry but gpu_hours, and it goes on although no checkpoint was confirmed. A training that fails when it is
    asked has failed, though: ffdl resume goes on then.

    Exit code 0: a checkpoint was confirmed (node-fail: there is a saved one, and the next attempt started); 1: not;
    124: not known, the time was over.
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
        raise click.UsageError(f"{names}: options of the job are for trial runs; {job_id} runs as it was submitted")
    after_s = given["after"] if given["after"] is not None else AFTER_S if trial else 0.0
    timeout_s = given["timeout"]
    if timeout_s is not None and timeout_s < after_s:
        raise click.UsageError(
            f"--timeout {timeout_s:g}s counts from PROCESSING on, and would be over before the event is played "
            f"(--after {after_s:g}s)"
        )
    plan = Drill(event, after_s, timeout_s, given["queue_timeout"], resumes=not no_resume, trial=trial)
    tell = (lambda _: None) if manner.quiet else complain
    with open_client(quiet=manner.quiet) as client:
        if trial:
            with trial_run(client, trial_submission(files, wanted), files, manner) as trial_id:
                report = Course(client, trial_id, plan, tell).run()
        else:
            report = _run(Course(client, client.get(job_id).id, plan, tell))
    if manner.as_json:
        print_json({"drill": report})
    else:
        print_report(report)
    return int(report.exit_code)


def _run(course: Course) -> DrillReport:
    """The drill of a job, which stays when nobody waits for it any longer."""
    try:
        return course.run()
    except KeyboardInterrupt:
        raise Detached(f"detached; {course.describe_rest()}") from None


def _job_id(event: str, files: Sequence[str]) -> str:
    """The id or its beginning, where the one argument is that; "" where it names a manifest."""
    from ffdl_batch.domain.job.array import is_array_id
    from ffdl_batch.domain.job.job import is_job_id

    if not files:
        raise click.UsageError(f"a manifest, or a job's id, is needed: ffdl drill {event} MANIFEST [MODEL]")
    if is_array_id(files[0]):
        raise click.UsageError(f"{files[0]} is an array: name one of its jobs: ffdl drill {event} {files[0]}_INDEX")
    is_id = is_job_id(files[0]) or _ELEMENT.fullmatch(files[0])
    found = files[0] if is_id or (_BEGINNING_OF_AN_ID.fullmatch(files[0]) and not Path(files[0]).exists()) else ""
    if found and len(files) > 1:
        raise click.UsageError(f"one job at a time: ffdl drill {event} ID")
    if len(files) > 2:
        raise click.UsageError(f"one manifest and one model at most: ffdl drill {event} MANIFEST [MODEL]")
    if not found:
        _refuse_directory(event, files)
    return found


def _refuse_directory(event: str, files: Sequence[str]) -> None:
    """Raises UsageError for a directory, with the manifest that is in it."""
    directory = Path(files[0])
    if not directory.is_dir():
        return
    manifest = next((directory / name for name in MANIFESTS if (directory / name).is_file()), None)
    if manifest is None:
        raise click.UsageError(f"{directory} is a directory without a {MANIFESTS[0]}: name the manifest")
    again = shlex.join(["ffdl", "drill", event, str(manifest), *files[1:]])
    raise click.UsageError(f"{directory} is a directory, and a manifest is needed: {again}")
