"""The client's calls about logs."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing

from ffdl_batch.client.api_calls.log_streams import LogQuery, iterate_texts
from ffdl_batch.client.api_calls.requests import StreamCalls, segment
from ffdl_batch.domain.job.log_text import Grep, LogText
from ffdl_batch.domain.job.views import AttemptChoice, LogLine


class LogCalls(StreamCalls):
    """About what learners print."""

    def logs(  # noqa: PLR0913 - one parameter per choice
        self,
        job_id: str,
        *,
        follow: bool = False,
        learner: int | None = None,
        since: float | None = None,
        tail: int | None = None,
        attempt: AttemptChoice = None,
        grep: Grep | None = None,
    ) -> Iterator[LogLine]:
        """The learners' lines, merged by time; with `follow` until the end. Raises UnknownJob at the first line.

        `attempt` is a number, "all" (one after the other, each line says which), or None: the newest attempt of which
        there is a log. With `follow` the attempts after it come as well. `tail` is of each learner and attempt,
        with `grep` of the lines that match.
        """
        texts = self.log_texts(
            job_id, follow=follow, learner=learner, since=since, tail=tail, attempt=attempt, grep=grep
        )
        with closing(texts):
            for text in texts:
                yield from text.lines()

    def log_texts(  # noqa: PLR0913 - one parameter per choice
        self,
        job_id: str,
        *,
        follow: bool = False,
        learner: int | None = None,
        since: float | None = None,
        tail: int | None = None,
        attempt: AttemptChoice = None,
        grep: Grep | None = None,
    ) -> Generator[LogText]:
        """As :meth:`logs`, in bulk: lines that lie side by side and have one time come as one. For large logs."""
        with closing(self._open_wire()) as wire:
            yield from iterate_texts(wire, LogQuery(segment(job_id), follow, learner, since, tail, attempt, grep))
