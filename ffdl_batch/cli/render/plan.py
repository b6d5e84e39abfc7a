"""Print why a job is pending, what would start sooner, and what a submission would send."""

from __future__ import annotations

import json
import re
import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ffdl_batch.cli.options.submission import Manner
from ffdl_batch.cli.render.formatting import print_json, print_line
from ffdl_batch.domain.launch.placeholders import fill
from ffdl_batch.domain.pending.evidence import alternative_text, evidence_of, moment_text
from ffdl_batch.domain.terminal_text import printable
from ffdl_batch.exit_handling import complain
from ffdl_batch.output import data_output

if TYPE_CHECKING:
    from ffdl_batch.client import Client
    from ffdl_batch.client.submissions.model_archive import Archive
    from ffdl_batch.domain.job.submission import Submission
    from ffdl_batch.domain.job.views import PlanView
    from ffdl_batch.domain.pending.explanation import Alternative, Foretold, Outlook, WhyView


def print_why(view: WhyView) -> None:
    """Print the reason, what to do, and the evidence, without unknown values."""
    print_line("ID", view.job_id, view.name)
    print_line("State", view.state, state=view.state)
    print_line("Why" if view.waits else "Now", view.sentence)
    print_line("Outdated", view.stale if view.stale not in view.sentence else "")
    for action in view.actions:
        print_line("What to do", action)
    known = view.explanation
    if known is not None and known.expected_start is not None:
        print_line("May start", moment_text(known.expected_start, time.time()), "the scheduler's plan")
    _print_lines("Because", _evidence(view))
    _print_alternatives(view.alternatives, view.trial)


def print_outlook(outlook: Outlook, mark: str = "# ") -> None:
    """Print the evidence for a submission, each line after `mark`. After a plan the lines are comments."""
    lines = [*_evidence(outlook)]
    lines += [f"not asked: {outlook.stale}"] if outlook.stale else []
    for line in lines or [f"the backend {outlook.backend} does not report what is pending there"]:
        click.echo(f"{mark}{line}")
    for one in outlook.alternatives:
        click.echo(f"{mark}sooner: {alternative_text(one, time.time())}")


def _evidence(view: WhyView | Outlook) -> Sequence[str]:
    """Return the evidence in this machine's time zone. The daemon's may be another one."""
    return evidence_of(view.explanation, view.trial, view.history, time.time()) or view.evidence


def _print_lines(title: str, lines: Sequence[str]) -> None:
    if lines:
        click.echo(f"{title}:")
    for line in lines:
        click.echo(f"  {line}")


def _print_alternatives(found: Sequence[Alternative], trial: Foretold | None) -> None:
    now = time.time()
    if found:
        _print_lines("Would start sooner", [alternative_text(one, now) for one in found])
    elif trial is not None:
        click.echo("No alternative that was tried would start sooner.")


LAUNCH = "launch.json"
_WRAPPED = "--wrap"
"""The name of a manifest that no user wrote."""
_NAME = re.compile(r"\w+")


def print_plans(  # noqa: PLR0913  (the request, and how to print its answer)
    client: Client,
    submissions: Sequence[Submission],
    model: str,
    *,
    trial: bool,
    manner: Manner,
    in_full: bool = False,
    why: bool = False,
) -> int:
    """Print a plan for each manifest. With only `trial`, print the scheduler's answer, on standard error as sbatch."""
    submissions, archive = _with_model(submissions, model, manner)
    for submission in submissions:
        view = client.plan_submission(submission, trial=trial)
        for warning in view.warnings:
            manner.warn(warning)
        if view.trial:
            complain(view.trial)
        outlook = client.outlook(submission) if why else None
        if manner.as_json:
            more: dict[str, object] = {} if outlook is None else {"outlook": outlook}
            sent = {"bytes": archive.size, "sha256": archive.digest, "left_out": archive.left_out}
            print_json({"manifest": submission.manifest_name or _WRAPPED, "plan": view, "model": sent, **more})
        elif in_full or not trial:
            print_plan(view, submission.manifest_name or _WRAPPED, archive.describe())
        if outlook is not None and not manner.as_json:
            _section("when it may start")
            print_outlook(outlook)
    return 0


def print_outlooks(client: Client, submissions: Sequence[Submission], model: str, *, manner: Manner) -> int:
    """Print when each manifest may start, without its plan."""
    for submission in _with_model(submissions, model, manner)[0]:
        outlook = client.outlook(submission)
        if manner.as_json:
            print_json({"manifest": submission.manifest_name or _WRAPPED, "outlook": outlook})
            continue
        if len(submissions) > 1:
            _section(f"when {submission.manifest_name or _WRAPPED} may start")
        print_outlook(outlook, mark="")
    return 0


def _with_model(submissions: Sequence[Submission], model: str, manner: Manner) -> tuple[Sequence[Submission], Archive]:
    """Return the submissions as they would be sent, with the digest of the model's archive, and the archive. Its file
    is closed. Warn if it is large."""
    from dataclasses import replace

    from ffdl_batch.client.submissions.model_archive import open_model

    with open_model(Path(model)) as archive:
        if warning := archive.warning(model):
            manner.warn(warning)
        return [replace(one, archive=archive.digest) for one in submissions], archive


def print_plan(view: PlanView, manifest: str, model: str) -> None:
    """Print the plan in sections, each below a title line. For a backend with an API, print its objects as YAML.
    `model` describes what is sent of the model."""
    _section(f"plan of {manifest} for backend {view.backend}")
    if view.objects:
        click.echo(f"# model: {model}")
        _print_objects(view)
        return
    click.echo(f"model: {model}")
    click.echo(f"network isolation: {view.network or 'none proved'} (asked for: {view.network_requested})")
    if view.submit_argv:
        _section("submit command")
        click.echo(shlex.join(view.submit_argv))
    if view.script:
        _section("batch script")
        click.echo(view.script, nl=not view.script.endswith("\n"))
    if view.learner_argv:
        _section("learner command (placeholders are filled on the node)")
        click.echo(shlex.join(_unescape(word) for word in view.learner_argv))
    _section("environment")
    templates = _templates(view)
    for name, value in sorted(view.environment.items()):
        shown = _unescape(value) if templates.get(name) == value else value
        click.echo(f"{name}={shlex.quote(shown)}")
    for file in view.files:
        if file.text != view.script:
            _section(f"file {file.name} (mode {file.mode:04o})")
            click.echo(file.text, nl=not file.text.endswith("\n"))


def _print_objects(view: PlanView) -> None:
    click.echo(f"# network isolation: {view.network or 'none proved'} (asked for: {view.network_requested})")
    click.echo("# The objects are sent in this order. Secret values and the model are added when they are sent.")
    for document in view.objects:
        click.echo("---")
        click.echo(document, nl=False, file=data_output())


def _unescape(text: str) -> str:
    """Replace doubled braces by single ones, and keep placeholders, whose values only the node knows."""
    return fill(text, {name: f"{{{name}}}" for name in _NAME.findall(text)})


def _templates(view: PlanView) -> Mapping[str, str]:
    """Return the variables of the launch file, which are templates. Variables from the user are literal."""
    for file in view.files:
        if file.name == LAUNCH:
            found = json.loads(file.text).get("learner", {}).get("env", {})
            return {str(name): str(text) for name, text in found.items()}
    return {}


def _section(title: str) -> None:
    click.echo(f"### {printable(title, one_line=True)}")
