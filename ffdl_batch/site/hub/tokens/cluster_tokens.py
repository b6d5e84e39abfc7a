"""Requests tokens of a Kubernetes cluster for the daemons of tenants without accounts.

Each token is for the service account of one namespace, and valid for an hour. The hub may request these tokens and
nothing else in the namespace: see ``--hub-user`` of ``ffdl-admin tenant create``.
"""

from __future__ import annotations

import asyncio
import os
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ffdl_batch.config import ConfigError, load_settings
from ffdl_batch.domain.scheduler_errors import InvalidRequest, NotPermitted, SchedulerUnreachable
from ffdl_batch.domain.tenant import BACKEND
from ffdl_batch.plugins import AdapterContext, create_adapter
from ffdl_batch.ports.capabilities import KeepsTenants
from ffdl_batch.site.hub.callers import refuse
from ffdl_batch.site.hub.daemons import unavailable
from ffdl_batch.site.hub.settings import HubSettings
from ffdl_batch.site.hub.tokens.token_index import account_name

LIFETIME_S = 3600
LEAST_S = 1800.0
"""A token that is valid for so long is given again."""
REQUEST_S = 10
"""How long one request to the cluster may take."""
THREADS = 2


class ClusterTokens:
    """Tokens for the daemons of tenants. Use it in one event loop. A cluster that does not answer occupies only threads
    of its own."""

    def __init__(self, settings: HubSettings) -> None:
        self._settings = settings
        self._threads = ThreadPoolExecutor(THREADS, "cluster")
        self._asking: dict[int, asyncio.Future[tuple[str, float]]] = {}
        self._tokens: dict[int, tuple[str, float]] = {}

    async def issue(self, uid: int) -> dict[str, Any]:
        """Return a token for the daemon with this uid, and when it expires. Raises Refused."""
        if uid not in self._settings.tenants.values():
            raise refuse(403, f"uid {uid} is not in [spawner] tenants")
        known = self._tokens.get(uid)
        if known is None or known[1] < time.time() + LEAST_S:
            if uid not in self._asking:
                asked = asyncio.get_running_loop().run_in_executor(self._threads, self._request, uid)
                self._asking[uid] = asked
                asked.add_done_callback(lambda _: self._asking.pop(uid, None))
            try:
                known = self._tokens[uid] = await asyncio.shield(self._asking[uid])
            except (SchedulerUnreachable, NotPermitted, InvalidRequest, ConfigError) as error:
                raise unavailable(f"the hub cannot get a token from the cluster: {error}") from error
        return {"token": known[0], "expires_at": known[1]}

    def _request(self, uid: int) -> tuple[str, float]:
        """Request a token with the hub's own credentials."""
        if account_name(uid):
            raise InvalidRequest(f"uid {uid} of a tenant already belongs to account {account_name(uid)!r}")
        environ = {**os.environ, "HOME": "/nonexistent"}  # the site's configuration alone counts
        given = load_settings(environ=environ).backend_settings(BACKEND)
        table = {**given, "kubeconfig": self._settings.kubeconfig, "request_timeout_s": REQUEST_S}
        cluster = create_adapter(BACKEND, table, AdapterContext("/nonexistent", self._settings.account_of(uid), uid))
        assert isinstance(cluster, KeepsTenants)
        return cluster.daemon_token(LIFETIME_S)
