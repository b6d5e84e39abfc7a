"""Excludes unreliable nodes from jobs, if the site has configured that. Only jobs of ffdl_batch; no node is drained.

The exclusion is decided when an attempt is deployed and holds for that attempt. It is not stored, so it never has to be
undone.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace

from ffdl_batch.domain.incidents.incident import Origin
from ffdl_batch.domain.incidents.node_score import LOOK_BACK_S, NodeScore, left_out, score_nodes, unreliable_nodes
from ffdl_batch.domain.job.spec import JobSpec
from ffdl_batch.domain.number_text import counted
from ffdl_batch.domain.scheduler_errors import InvalidRequest
from ffdl_batch.ports.capabilities import AvoidsNodes
from ffdl_batch.ports.clock import Clock
from ffdl_batch.services.backends.adapters import Adapters
from ffdl_batch.store import Store

FRESH_S = 60.0
"""How long scores are cached, because they are computed from the incidents of months."""
KEPT_OFF = "kept off "
"""How the warning of a job begins."""


class NodeExclusion:
    """Scores nodes for one daemon. Safe in every thread."""

    def __init__(self, store: Store, adapters: Adapters, clock: Clock) -> None:
        self._store, self._adapters, self._clock = store, adapters, clock
        self._rules = adapters.settings.nodes
        self._lock = threading.Lock()
        self._known: tuple[float, list[NodeScore]] | None = None

    def scores(self) -> list[NodeScore]:
        """Return the scores of all nodes that ever failed a job, with the time until which they are excluded."""
        now = self._store.now()
        noticed = self._store.incidents_noticed(now - LOOK_BACK_S, origin=Origin.NODE)
        scores = score_nodes((one.incident for one in noticed), now)
        bad = {one.node: one.last + self._rules.hours * 3600.0 for one in self._bad(scores, now)}
        return [replace(one, excluded_until=bad.get(one.node)) for one in scores]

    def for_job(self, backend: str, spec: JobSpec) -> list[NodeScore]:
        """Return the nodes that a job must exclude now; none if the job has a node list."""
        if not self._rules.exclude_unreliable or spec.batch.nodelist:
            return []
        try:
            adapter = self._adapters.get(backend)
        except InvalidRequest:
            return []
        if not isinstance(adapter, AvoidsNodes):
            return []
        found = self._fresh()
        if not found:
            return []
        names = adapter.nodes_of(self._adapters.facts(backend), spec.batch.partition)
        return left_out(found, names, self._rules)

    def _fresh(self) -> list[NodeScore]:
        with self._lock:
            now = self._clock.monotonic()
            if self._known is None or now - self._known[0] > FRESH_S:
                self._known = (now, [one for one in self.scores() if one.excluded_until is not None])
            return self._known[1]

    def _bad(self, scores: list[NodeScore], now: float) -> list[NodeScore]:
        return unreliable_nodes(scores, self._rules, now)


def without(spec: JobSpec, nodes: Sequence[NodeScore]) -> JobSpec:
    """Return the spec of a job that excludes `nodes` as well."""
    if not nodes:
        return spec
    named = [part for part in spec.batch.exclude.split(",") if part]
    fresh = [one.node for one in nodes if one.node not in named]
    return replace(spec, batch=replace(spec.batch, exclude=",".join([*named, *fresh])))


def exclusion_warnings(nodes: Sequence[NodeScore]) -> tuple[str, ...]:
    """Return the warnings for the owner of a job that excludes `nodes`."""
    return tuple(
        f"{KEPT_OFF}{one.node}, which failed {counted(one.jobs, 'job')} lately (score {one.score:.1f})" for one in nodes
    )
