"""What the adapter offers to administrators, by ports of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ffdl_batch.domain.data.mounts import Mounting
from ffdl_batch.ports.diagnostics import Item
from ffdl_batch.ports.tenancy import Tenant, TenantStep
from ffdl_kubernetes.client import ClusterClient
from ffdl_kubernetes.doctor import cluster_checks
from ffdl_kubernetes.doctor.network_canary import Canary
from ffdl_kubernetes.settings import KubernetesSettings
from ffdl_kubernetes.tenancy import provisioning
from ffdl_kubernetes.tenancy.tenant_objects import ACCOUNT


class Administration:
    """:class:`ffdl_batch.ports.tenancy.KeepsTenants` and :class:`ffdl_batch.ports.diagnostics.Examines`."""

    def __init__(self, settings: KubernetesSettings, client: ClusterClient, canary: Canary) -> None:
        """Nothing is touched yet."""
        self._settings, self._client, self._canary = settings, client, canary

    def examine(self, nodes: str, _mounting: Mounting = Mounting.AUTO) -> Sequence[Item]:
        """See the port. Pods mount no stores."""
        return list(cluster_checks.examine(self._client, self._settings, self._canary.kept, nodes))

    def tenant_objects(self, tenant: Tenant) -> Sequence[Mapping[str, Any]]:
        """See the port."""
        return provisioning.objects_of(tenant, self._settings)

    def permissions(self, tenant: Tenant) -> Sequence[Mapping[str, Any]]:
        """See the port."""
        return provisioning.permissions_of(tenant)

    def create_tenant(self, tenant: Tenant, *, adopt: bool, update: bool, remove: bool) -> Sequence[TenantStep]:
        """See the port."""
        return provisioning.create_tenant(
            tenant, self._settings, provisioning.Manner(adopt=adopt, update=update, remove=remove)
        )

    def advise(self, tenant: Tenant) -> Mapping[str, str]:
        """See the port."""
        return {"namespace": tenant.namespace, "service_account": ACCOUNT}
