"""Renders templates, and answers errors of the daemon as pages."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from ffdl_batch import __version__
from ffdl_batch.cli.render.formatting import format_elapsed, format_number, format_time
from ffdl_batch.cli.render.job_list import began_at, elapsed_s, place_or_reason
from ffdl_batch.cli.render.job_tables import describe_checkpoint, describe_learner, why_attempt_ended
from ffdl_batch.client import AsyncClient, RequestRefused, UnknownJob
from ffdl_batch.client.stores.job_files import OwnPlace
from ffdl_batch.client.watching import Watching
from ffdl_batch.domain.job_state import JobState
from ffdl_batch.domain.number_text import size_text
from ffdl_batch.domain.pending.evidence import alternative_text
from ffdl_batch.domain.pending.reason_text import span_text
from ffdl_batch.domain.quantity import format_memory
from ffdl_batch.domain.terminal_text import printable

STATES = tuple(state.value for state in JobState)
STOPPABLE = frozenset(state.value for state in JobState if not state.is_terminal)
CONTINUABLE = frozenset({"HALTED", "FAILED"})


class Site:
    """What all pages share."""

    def __init__(self, client: AsyncClient, title: str, place: Callable[[], OwnPlace]) -> None:
        """`place` returns the place from which the output of jobs is read."""
        self.client, self.title, self.place = client, title, place
        self.watching = Watching(client)
        self._templates = _environment()

    def render(self, request: Request, name: str, values: Mapping[str, Any], status: int = 200) -> Response:
        """Return the page of a template."""
        template = self._templates.get_template(name)
        text = template.render(site=self.title, path=request.url.path, query=request.url.query, **values)
        return HTMLResponse(text, status)

    def render_error(self, request: Request, error: Exception) -> Response:
        """Return the page for a request that the daemon did not carry out, or for a wrong configuration."""
        status = 404 if isinstance(error, UnknownJob) else 409 if isinstance(error, RequestRefused) else 503
        return self.render(request, "error.html", {"message": str(error)}, status)


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("ffdl_batch.web"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_visible,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        time=format_time, number=format_number, memory=format_memory, size=size_text, span=span_text
    )
    environment.globals.update(
        sooner=lambda one: alternative_text(one, time.time()),
        version=__version__,
        states=STATES,
        stoppable=STOPPABLE,
        continuable=CONTINUABLE,
        now=time.time,
        began_at=began_at,
        elapsed=lambda job: format_elapsed(elapsed_s(job)),
        place=place_or_reason,
        describe_checkpoint=describe_checkpoint,
        describe_learner=describe_learner,
        why_ended=why_attempt_ended,
    )
    return environment


def _visible(value: object) -> object:
    """Return a text with its invisible characters as escapes."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value
