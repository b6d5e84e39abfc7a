"""The site's metrics in Prometheus' text format: what tenants use, their quotas, and the requests to the hub."""

from __future__ import annotations

from collections import Counter

from ffdl_batch.domain.metrics.prometheus_text import Family, render
from ffdl_batch.site.hub.store import HubStore

_METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))


class SiteMetrics:
    """Makes the text. `count_request` belongs to the event loop; `text` is safe in every thread."""

    def __init__(self, store: HubStore) -> None:
        self._store = store
        self._requests: Counter[tuple[str, int]] = Counter()

    def count_request(self, method: str, status: int) -> None:
        """Count an answered request."""
        self._requests[method if method in _METHODS else "other", status] += 1

    def text(self) -> str:
        """Return the text. Raises StoreError."""
        used = Family("ffdl_tenant_used", "gauge", "Resources in use by live jobs; for GPU-hours, those of the period.")
        limits = Family("ffdl_tenant_quota", "gauge", "A quota; member is empty for the tenant, * for each member.")
        stopped = Family("ffdl_site_stopped", "gauge", "1 for each emergency stop in effect.")
        requests = Family("ffdl_hub_requests_total", "counter", "Requests that the hub has answered.")
        uses = self._store.admission.uses()
        for tenant in self._store.tenants.read():
            use = uses.get(tenant.name)
            for resource in sorted({"jobs", "gpus", *(quota.resource for quota in tenant.quotas)}):
                if use is not None and resource not in use.unknown:
                    used.put(use.whole[resource], tenant=tenant.name, resource=resource)
            for quota in tenant.quotas:
                limits.put(quota.amount, tenant=tenant.name, resource=quota.resource, member=quota.member)
        for lever in self._store.tenants.levers():
            stopped.put(1, kind=lever.kind.value, subject=lever.subject)
        for (method, status), count in sorted(self._requests.items()):
            requests.put(count, method=method, status=str(status))
        return render((used, limits, stopped, requests))
