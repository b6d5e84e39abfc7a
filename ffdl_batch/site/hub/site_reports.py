"""Reports about all users, for operators and auditors: what failed, which nodes failed jobs, and who used how much."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs

from ffdl_batch.domain.backend_facts import AccountedUse
from ffdl_batch.domain.codec import to_plain
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.job.views import Problem
from ffdl_batch.domain.metrics.usage_report import HOUR_S, NO_TENANT, Group, SiteUsage
from ffdl_batch.services.refusals import Refused, wrong_usage
from ffdl_batch.site.hub.admission import Payers
from ffdl_batch.site.hub.gpu_hours import NoAccounting
from ffdl_batch.site.hub.incident_index import empty_period
from ffdl_batch.site.hub.store import HubStore

LONGEST_DAYS = 400
"""Longest period of a report."""
_FARTHEST = 1e11


class SiteReports:
    """Makes the reports. Safe in every thread. Methods raise Refused, StoreError."""

    def __init__(self, store: HubStore) -> None:
        self._store = store

    def make(self, name: str, query: str) -> dict[str, Any]:
        """Return the report ``faults``, ``nodes`` or ``usage``. `query` is that of the route of a daemon with the same
        path."""
        asked = parse_qs(query)
        if name == "nodes":
            return {"nodes": to_plain(self._store.incidents.nodes())}
        since, until = _moment(asked, "since"), _moment(asked, "until")
        if since is None:
            raise wrong_usage("missing query parameter 'since'")
        if (time.time() if until is None else until) - since > LONGEST_DAYS * 86400:
            raise wrong_usage(f"the period is longer than {LONGEST_DAYS} days")
        try:
            if name == "faults":
                report = self._store.incidents.faults(since, until, _moment(asked, "rows_after"))
                return {"faults": to_plain(report)}
            return {"usage": to_plain(self._usage(since, time.time() if until is None else until))}
        except NoAccounting as error:
            problem = Problem("S210", f"the scheduler's accounting is not available: {error}", ExitCode.TRY_AGAIN)
            raise Refused(problem, 503) from error

    def _usage(self, since: float, until: float) -> SiteUsage:
        """Return what the accounting shows. Raises Refused for an empty period, NoAccounting, StoreError."""
        end = min(until, time.time())
        if not since < end:
            raise empty_period()
        payers, lost = Payers(self._store.tenants.read()), self._store.incidents.lost_gpu_hours(since, end)
        of_tenant, of_user = _Sums(), _Sums()
        for one in self._store.gpu_hours.used(since, end):
            tenant = payers.find(one.user, one.account)
            of_tenant.add(tenant.name if tenant is not None else NO_TENANT, one)
            of_user.add(one.user, one)
        users = of_user.groups(lost)
        return SiteUsage(
            since,
            end,
            jobs=sum(one.jobs for one in users),
            gpu_hours=math.fsum(one.gpu_hours for one in users),
            cpu_hours=math.fsum(one.cpu_hours for one in users),
            lost_gpu_hours=math.fsum(lost.values()),
            tenants=of_tenant.groups({}),
            users=users,
        )


class _Sums:
    """Sums of uses by name."""

    def __init__(self) -> None:
        self._of: dict[str, list[AccountedUse]] = {}

    def add(self, name: str, use: AccountedUse) -> None:
        """Count a use."""
        self._of.setdefault(name, []).append(use)

    def groups(self, lost: Mapping[str, float]) -> tuple[Group, ...]:
        """Return the sums, the largest use first. `lost` has lost GPU-hours by name."""
        found = [
            Group(
                name,
                sum(one.jobs for one in uses),
                math.fsum(one.gpu_s for one in uses) / HOUR_S,
                math.fsum(one.cpu_s for one in uses) / HOUR_S,
                lost.get(name, 0.0),
                0.0,
            )
            for name, uses in self._of.items()
        ]
        return tuple(sorted(found, key=lambda one: (-one.gpu_hours, -one.cpu_hours, one.name)))


def _moment(asked: Mapping[str, list[str]], name: str) -> float | None:
    """Return a time of the query, in seconds since the epoch; None if it is not given. Raises Refused."""
    if name not in asked:
        return None
    try:
        found = float(asked[name][-1])
    except ValueError:
        found = math.nan
    if not 0 <= found < _FARTHEST:
        raise wrong_usage(f"{name} must be a time in seconds since 1970")
    return found
