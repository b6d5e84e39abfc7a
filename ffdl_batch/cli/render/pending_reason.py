"""Why a job waits, and what awaits a submission, as text."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from ffdl_batch.cli.render.formatting import print_line
from ffdl_batch.domain.pending.evidence import alternative_text, evidence_of, moment_text

if TYPE_CHECKING:
    from ffdl_batch.domain.pending.explanation import Alternative, Foretold, Outlook, WhyView


def print_why(view: WhyView) -> None:
    """The sentence, what to do, and all that it rests on; what is not known is left out."""
    print_line("ID", view.job_id, view.name)
    print_line("State", view.state, state=view.state)
    print_line("Why" if view.waits else "Now", view.sentence)
    print_line("Old news", view.stale if view.stale not in view.sentence else "")
    for action in view.actions:
        print_line("What to do", action)
    known = view.explanation
    if known is not None and known.expected_start is not None:
        print_line("May start", moment_text(known.expected_start, time.time()), "the scheduler's plan")
    elif view.trial is not None and view.trial.counted and view.trial.at is not None:
        by = "if no other job takes the room"
        print_line("May start", moment_text(view.trial.at, time.time()), by)
    _print_lines("Because", _evidence(view))
    _print_alternatives(view.alternatives, view.trial)


def print_outlook(outlook: Outlook, mark: str = "# ") -> None:
    """The same of what is not submitted yet; behind a plan as comments, which its reader passes over."""
    lines = [*_evidence(outlook)]
    lines += [f"not asked: {outlook.stale}"] if outlook.stale else []
    for line in lines or [f"the backend {outlook.backend} says nothing of what waits there"]:
        click.echo(f"{mark}{line}")
    for one in outlook.alternatives:
        click.echo(f"{mark}sooner: {alternative_text(one, time.time())}")


def _evidence(view: WhyView | Outlook) -> Sequence[str]:
    """Told anew by this machine's clock: the daemon's may be in another time zone."""
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
        click.echo("Nothing that was tried would start sooner.")
