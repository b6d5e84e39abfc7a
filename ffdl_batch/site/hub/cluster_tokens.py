"""Requests tokens of a Kubernetes cluster for the daemons of tenants without accounts.

Each token is for the service account of one namespace, and valid for an hour. The hub may request these tokens and
nothing else in the namespace: see ``--hub-user`` of ``ffdl-admin tenant create``.
"""

from __future__ import annotations

import os
import threading
from typing import Any

from ffdl_batch.config import ConfigError, load_settings
from ffdl_batch.domain.scheduler_errors import InvalidRequest, NotPermitted, SchedulerUnreachable
from ffdl_batch.plugins import AdapterContext, create_adapter
from ffdl_batch.ports.capabilities import KeepsTenants
from ffdl_batch.site.hub.callers import refuse
from ffdl_batch.site.hub.daemons import unavailable
from ffdl_batch.site.hub.settings import HubSettings

LIFETIME_S = 3600
BACKEND = "kubernetes"


class ClusterTokens:
    """Tokens for the daemons of tenants. Safe in every thread."""

    def __init__(self, settings: HubSettings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._made: dict[int, KeepsTenants] = {}

    def issue(self, uid: int) -> dict[str, Any]:
        """Return a new token for the daemon with this uid, and when it expires. Raises Refused."""
        if uid not in self._settings.tenants.values():
            raise refuse(403, f"user {uid} is not the daemon of a tenant")
        try:
            with self._lock:  # its client is for one thread at a time
                token, expires_at = self._cluster_of(uid).daemon_token(LIFETIME_S)
        except (SchedulerUnreachable, NotPermitted, InvalidRequest, ConfigError) as error:
            raise unavailable(f"the hub gets no token from the cluster: {error}") from error
        return {"token": token, "expires_at": expires_at}

    def _cluster_of(self, uid: int) -> KeepsTenants:
        """Return the backend of a tenant's daemon, with the hub's own credentials."""
        if uid not in self._made:
            environ = {**os.environ, "HOME": "/nonexistent"}  # the site's configuration alone counts
            given = load_settings(environ=environ).backend_settings(BACKEND)
            table = {**given, "kubeconfig": self._settings.kubeconfig}
            context = AdapterContext("/nonexistent", self._settings.account_of(uid), uid)
            found = create_adapter(BACKEND, table, context)
            assert isinstance(found, KeepsTenants)
            self._made[uid] = found
        return self._made[uid]
