"""Calls for reports."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar
from urllib.parse import urlencode

from ffdl_batch.client.api_calls.requests import read_answer, read_line
from ffdl_batch.client.connection.http_client import Request, Wire
from ffdl_batch.client.errors import DaemonUnreachable
from ffdl_batch.domain.incidents.node_score import NodesReport
from ffdl_batch.domain.incidents.report import FaultsReport
from ffdl_batch.domain.metrics.usage_report import Agreement, JobUse, SiteUsage, UsageReport

LONG_S = 600.0
"""A report reads all jobs of its period, and samples beside them."""
_V = TypeVar("_V")


class Reports:
    """The calls for reports, as :attr:`ffdl_batch.Client.reports` has them. Periods are from `since` to before `until`,
    in seconds since the epoch; `all_users` is for administrators."""

    def __init__(self, wire: Callable[[], Wire]) -> None:
        self._open = wire

    def usage(self, since: float, until: float, *, all_users: bool = False) -> UsageReport:
        """Return the usage of jobs."""
        return self._ask(UsageReport, "usage", "/api/v1/reports/usage", _query(since, until, all_users))

    def site_usage(self, since: float, until: float) -> SiteUsage:
        """Return what all users held according to the scheduler's accounting. For a client of the hub."""
        return self._ask(SiteUsage, "usage", "/api/v1/reports/usage", _query(since, until, all_users=False))

    def agreement(self, since: float, until: float, *, tolerance_s: float = 30.0, all_users: bool = False) -> Agreement:
        """Return a comparison of usage with the schedulers' accounting. Raises RequestRefused if that does not
        answer."""
        asked = _query(since, until, all_users) | {"tolerance_s": f"{tolerance_s:.6f}"}
        return self._ask(Agreement, "agreement", "/api/v1/reports/usage/agreement", asked)

    def job_uses(self, since: float, until: float, *, all_users: bool = False) -> Iterator[JobUse]:
        """Yield the usage of each job, by time of submission. Raises DaemonUnreachable if the answer is incomplete."""
        path = f"/api/v1/reports/usage/jobs?{urlencode(_query(since, until, all_users))}"
        wire, count = self._open(), 0
        try:
            for line in wire.stream(Request("GET", path, timeout_s=LONG_S)):
                plain = read_line(line)
                if "end" in plain:
                    if plain["end"] == count:
                        return
                    break
                count += 1
                yield read_answer(JobUse, plain.get("use"))
            raise DaemonUnreachable("the report broke off", "try again")
        except ConnectionError as error:
            raise DaemonUnreachable(f"the report broke off: {error}", "try again") from error
        finally:
            wire.close()

    def faults(
        self, since: float, until: float | None = None, *, rows_after: float | None = None, all_users: bool = False
    ) -> FaultsReport:
        """Return what failed after `since`, by default until now, with details of the incidents noticed after
        `rows_after`."""
        asked = {"since": f"{since:.6f}"} | ({"all_users": "true"} if all_users else {})
        asked |= {"until": f"{until:.6f}"} if until is not None else {}
        asked |= {"rows_after": f"{rows_after:.6f}"} if rows_after is not None else {}
        return self._ask(FaultsReport, "faults", "/api/v1/reports/faults", asked)

    def nodes(self) -> NodesReport:
        """Return the nodes that failed jobs (of all users, for an administrator), and which nodes are excluded."""
        return self._ask(NodesReport, "nodes", "/api/v1/reports/nodes", {})

    def _ask(self, kind: type[_V], key: str, path: str, asked: dict[str, str]) -> _V:
        wire = self._open()
        try:
            reply = wire.ask(Request("GET", f"{path}?{urlencode(asked)}", timeout_s=LONG_S))
        finally:
            wire.close()
        return read_answer(kind, reply.get(key))


def _query(since: float, until: float, all_users: bool) -> dict[str, str]:
    asked = {"since": f"{since:.6f}", "until": f"{until:.6f}"}
    return asked | {"all_users": "true"} if all_users else asked
