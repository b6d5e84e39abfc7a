"""Reports this user's incidents to the site's hub, for site-wide reports.

The hub stores until when it has them, so nothing is stored here. The newest ones are sent again for a while, because a
transaction may commit later than a newer one; the hub ignores what it has.
"""

from __future__ import annotations

from ffdl_batch.domain.incidents.node_score import LOOK_BACK_S
from ffdl_batch.services.hub import Hub
from ffdl_batch.services.job_storage import JobStorage
from ffdl_batch.services.reports.incident_report import incident_rows

_OVERLAP_S = 60.0


class IncidentReports:
    """Sends incidents to the hub. One per daemon, for one thread."""

    def __init__(self, storage: JobStorage, hub: Hub) -> None:
        self._storage, self._hub = storage, hub
        self._newest: float | None = None
        """When the newest incident that the hub has was noticed; None until the hub was asked."""
        self._sent: set[str] = set()
        """Keys of the incidents that were noticed at most _OVERLAP_S before it."""

    def send(self) -> None:
        """Send the incidents that the hub does not have. Raises HubUnavailable, HubRefused, StoreError."""
        store = self._storage.store
        if self._newest is None:
            self._newest = max(self._hub.newest_incident(), store.now() - LOOK_BACK_S)
        noticed = store.incidents_noticed(self._newest - _OVERLAP_S, uid=self._storage.uid)
        rows = incident_rows(store, noticed)
        if not (new := [row for row in rows if row.key not in self._sent]):
            return
        self._hub.send_incidents(new)
        self._newest = max(row.noticed_at for row in rows)
        self._sent = {row.key for row in rows if row.noticed_at > self._newest - _OVERLAP_S}
