"""Asks the site's policies about the logs of learners that failed: which of them speaks first.

A site's expressions are searched for by the process that searches logs (``regex_process.py``): one that takes too long
costs its word, and a line in the daemon's log.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from ffdl_batch.domain.incidents.classification import LearnerEnd, PolicyHit
from ffdl_batch.domain.incidents.fault_policy import FaultPolicy
from ffdl_batch.domain.incidents.incident import LINE_CHARS, Evidence
from ffdl_batch.domain.job.job import Job
from ffdl_batch.domain.job.log_text import Grep
from ffdl_batch.services.logs.line_search import matching
from ffdl_batch.services.refusals import Refused

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Ruling:
    """What a policy says about a job's next attempts: none (`stops`), or none on these `nodes`. `match` is its
    expression, which a line of the log matched."""

    policy: str
    match: str
    stops: bool = False
    nodes: tuple[str, ...] = ()
    notify: tuple[str, ...] = ()


class Policies:
    """The site's, of one watcher's judge."""

    def __init__(self, policies: Sequence[FaultPolicy]) -> None:
        self._policies = policies
        self._rulings: dict[str, Ruling] = {}

    def find(self, job: Job, ends: Sequence[LearnerEnd]) -> PolicyHit | None:
        """What it makes of this end, None where it leaves that to others."""
        self._rulings.pop(job.id, None)
        found = find_policy(self._policies, ends)
        if found is None:
            return None
        policy, hit = found
        nodes = hit.nodes if policy.exclude_node else ()
        self._rulings[job.id] = Ruling(policy.name, policy.match, policy.stop_retrying, nodes, policy.notify)
        return hit if policy.kind else None

    def ruling(self, job: Job) -> Ruling | None:
        """What was found last about the job, once."""
        return self._rulings.pop(job.id, None)


def find_policy(policies: Sequence[FaultPolicy], ends: Sequence[LearnerEnd]) -> tuple[FaultPolicy, PolicyHit] | None:
    """The first policy, in the site's order, that a line of the logs matches: of the learner that failed first, its
    last such line."""
    logs = [end for end in ends if end.log]
    for policy in policies if logs else ():
        found = _first_match(policy, logs)
        if found is not None:
            end, place = found
            line = end.log[place]
            said = Evidence(f"learner-{end.learner}", line.text[:LINE_CHARS], line.at)
            nodes = (end.node,) if end.node else ()
            return policy, PolicyHit(policy.name, policy.kind, said, end.learner, nodes)
    return None


def _first_match(policy: FaultPolicy, ends: Sequence[LearnerEnd]) -> tuple[LearnerEnd, int] | None:
    """The first learner with a line that it matches, and the last such line. One process searches all logs: an
    expression that takes too long is asked once an end, not once a learner."""
    try:
        with matching(Grep(policy.match)) as match:
            for end in ends:
                places = match("\n".join(line.text.replace("\n", " ") for line in end.log))
                if places:
                    return end, places[-1]
    except Refused as refused:
        log.error("the fault policy %s says nothing: %s", policy.name, refused)
    return None
