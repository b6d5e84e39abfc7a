"""The learners of a job as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ffdl_batch.cli.render.formatting import print_table

if TYPE_CHECKING:
    from ffdl_batch.domain.job.views import JobView, LearnerView

_COLUMNS = ("LEARNER", "ROLE", "NAME", "NODE", "STATE", "AGAIN")


def print_learners(job: JobView) -> None:
    """One line per learner, where there are several and it is known what they do. Columns in which nobody has anything
    are left out."""
    if len(job.learner_list) < 2:
        return
    click.echo("Learners:")
    rows = [_row(one) for one in job.learner_list]
    kept = [place for place in range(len(_COLUMNS)) if any(row[place] for row in rows)]
    print_table([_COLUMNS[place] for place in kept], [[row[place] or "N/A" for place in kept] for row in rows])


def _row(one: LearnerView) -> list[str]:
    role = f"{one.role} {one.index}" if one.role else ""
    again = str(one.restarts) if one.restarts else ""
    return [str(one.number), role, one.name, one.node, _state(one), again]


def _state(one: LearnerView) -> str:
    """``ended with exit code 7``; with the reason for which the platform ended it, where it did."""
    from ffdl_batch.domain.launch.learner_text import say_end

    if one.exit_code is None and one.exit_signal is None:
        return one.state
    ended = say_end(one.exit_code, one.exit_signal)
    why = ", ".join(word for word in (one.ended_by, one.state if one.state != "ended" else "") if word)
    return f"{ended} ({why})" if why else ended
