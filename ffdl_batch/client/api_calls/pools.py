"""Calls for pools of elastic jobs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

from ffdl_batch.client.api_calls.requests import read_answer, segment
from ffdl_batch.client.connection.http_client import Request, Wire, json_request
from ffdl_batch.client.errors import RequestRefused
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.job.pool_views import PoolView, ReplayedDecision, SizeExplanation
from ffdl_batch.domain.job.views import Problem
from ffdl_batch.domain.terminal_text import quoted

LONG_S = 600.0
"""Timeout of a replay, which recomputes all decisions in sequence."""


class Pools:
    """The calls for pools of elastic jobs (:attr:`ffdl_batch.Client.pools`). All calls raise
    :class:`~ffdl_batch.client.ClientError`."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def status(self) -> list[PoolView]:
        """Return the configured pools with their jobs."""
        return _pools(self._wire.ask(Request("GET", "/api/v1/scaler")))

    def explain(self, job_id: str) -> SizeExplanation:
        """Return why a job has its size."""
        reply = self._wire.ask(Request("GET", f"/api/v1/jobs/{segment(job_id)}/size"))
        return read_answer(SizeExplanation, reply.get("size"))

    def pause(self, name: str) -> list[PoolView]:
        """Stop decisions about a pool. Return the pools."""
        return _pools(self._wire.ask(json_request("POST", _path(name, "pause"), {})))

    def resume(self, name: str) -> list[PoolView]:
        """Continue decisions about a pool. Return the pools."""
        return _pools(self._wire.ask(json_request("POST", _path(name, "resume"), {})))

    def replay(self, name: str | None = None) -> list[ReplayedDecision]:
        """Recompute the recorded decisions about a pool (None = all), and return them."""
        query = "" if name is None else f"?{urlencode({'pool': name})}"
        reply = self._wire.ask(Request("GET", f"/api/v1/scaler/decisions{query}", timeout_s=LONG_S))
        return [read_answer(ReplayedDecision, plain) for plain in reply.get("decisions", ())]


def _path(name: str, action: str) -> str:
    """Return the path for an action on a pool. Raises RequestRefused for a name that would change the path."""
    if not name or "/" in name or name in (".", ".."):
        cure = "to list the pools: ffdl scaler status"
        raise RequestRefused(Problem("C101", f"unknown pool {quoted(name)}", int(ExitCode.USAGE), cure))
    return f"/api/v1/scaler/{quote(name, safe='')}/{action}"


def _pools(reply: Mapping[str, Any]) -> list[PoolView]:
    return [read_answer(PoolView, plain) for plain in reply.get("pools", ())]
