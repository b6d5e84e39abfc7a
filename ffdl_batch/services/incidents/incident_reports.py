"""Reports this user's incidents to the site's hub, for site-wide reports.

The hub stores how far it has received them, so the daemon stores nothing. The newest ones are sent again for a
while, because a transaction may commit later than a newer one; the hub ignores duplicates. Operators have no right to
what learners print, so nothing that could quote it is sent.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from ffdl_batch.domain.incidents.incident import MOST_IN_REQUEST, IncidentRow, Origin
from ffdl_batch.domain.incidents.node_score import LOOK_BACK_S
from ffdl_batch.services.hub import Hub, HubRefused
from ffdl_batch.services.job_storage import JobStorage
from ffdl_batch.services.reports.incident_report import incident_rows

log = logging.getLogger(__name__)

_OVERLAP_S = 60.0
_OF_USERS = (Origin.USER.value, Origin.DATA.value)
_OF_SITE = ("scheduler", "health")
"""Sources of evidence that are no output of users."""


class IncidentReports:
    """Sends incidents to the hub. One per daemon, for one thread."""

    def __init__(self, storage: JobStorage, hub: Hub) -> None:
        self._storage, self._hub = storage, hub
        self._newest: float | None = None
        """When the newest incident that the hub has was noticed; None until the hub was asked."""
        self._sent: set[str] = set()
        """Keys of the incidents that were noticed at most _OVERLAP_S before it."""

    def send(self) -> None:
        """Send the incidents that the hub does not have. Those that it refuses are left out. Raises HubUnavailable,
        HubRefused, StoreError."""
        store = self._storage.store
        if self._newest is None:
            now = store.now()
            self._newest = min(now, max(self._hub.newest_incident(), now - LOOK_BACK_S))
        noticed = store.incidents_noticed(self._newest - _OVERLAP_S, uid=self._storage.uid)
        rows = incident_rows(store, noticed)
        new = [_for_operators(row) for row in rows if row.key not in self._sent]
        for start in range(0, len(new), MOST_IN_REQUEST):
            try:
                self._hub.send_incidents(new[start : start + MOST_IN_REQUEST])
            except HubRefused as error:
                log.warning("the hub refuses incidents, which site-wide reports do not have: %s", error)
        if rows:
            self._newest = max(row.noticed_at for row in rows)
            self._sent = {row.key for row in rows if row.noticed_at > self._newest - _OVERLAP_S}


def _for_operators(row: IncidentRow) -> IncidentRow:
    """Return the incident without what may quote the output of learners."""
    evidence = tuple(one for one in row.evidence if one.source in _OF_SITE)
    return replace(row, evidence=evidence, message="" if row.origin in _OF_USERS else row.message)
