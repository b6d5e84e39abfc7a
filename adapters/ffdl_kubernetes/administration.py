"""Serve administrators: check a cluster for what would make jobs fail (``ffdl-admin doctor``), and make tenants.

The checks create nothing in the cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from ffdl_batch.domain.data.mounts import Mounting
from ffdl_batch.domain.examination import Item, Verdict
from ffdl_batch.domain.scheduler_errors import InvalidRequest, SchedulerUnreachable
from ffdl_batch.domain.tenant import Tenant, TenantStep
from ffdl_kubernetes.api_discovery import groups, may
from ffdl_kubernetes.api_errors import explain
from ffdl_kubernetes.client import ClusterClient, Refused
from ffdl_kubernetes.objects.names import placed
from ffdl_kubernetes.observing.kueue import GROUP, describe_gang_start
from ffdl_kubernetes.observing.network_canary import Canary, Proof
from ffdl_kubernetes.settings import KubernetesSettings
from ffdl_kubernetes.tenancy import provisioning
from ffdl_kubernetes.tenancy.tenant_objects import ACCOUNT, NODES, PERMISSIONS, ROLE, Permissions

_NODES = "nodes of the cluster"
_POLICIES = "network policies"


def examine(
    client: ClusterClient, settings: KubernetesSettings, proof: Callable[[], Proof | None], nodes: str
) -> Iterator[Item]:
    """See :class:`ffdl_batch.ports.capabilities.Examines`. `proof` is what the last canary said (None = none did)."""
    if nodes:
        raise InvalidRequest("nodes of a cluster are not examined one by one; leave --nodes out")
    try:
        version, served = client.version(), groups(client)
    except (SchedulerUnreachable, Refused) as error:
        yield Item("API server", Verdict.WRONG, str(error))
        return
    yield Item("API server", Verdict.OK, f"{client.config.cluster.server}, {version}")
    yield _permissions(client, settings)
    yield _debugging(client)
    yield _nodes(client, settings)
    yield _policies(settings, proof)
    if settings.queue and GROUP not in served:
        yield Item("gangs", Verdict.WRONG, f"queue is {settings.queue!r}, and the cluster has no Kueue: leave it out")
    else:
        verdict = Verdict.OK if settings.queue else Verdict.NOTE
        yield Item("gangs", verdict, describe_gang_start(served, settings.queue))


def _permissions(client: ClusterClient, settings: KubernetesSettings) -> Item:
    about = f"permissions in {client.namespace}"
    try:
        lacking = _lacking(client, PERMISSIONS, settings)
    except (SchedulerUnreachable, Refused) as error:
        return Item(about, Verdict.NOTE, f"the API server does not say them: {error}")
    if not lacking:
        missing = _refused_trial(client)
        return Item(about, Verdict.WRONG if missing else Verdict.OK, missing or "all that a daemon needs")
    cure = f"ffdl-admin tenant permissions {client.namespace} --user NAME prints the role to be given"
    return Item(about, Verdict.WRONG, f"not allowed: {'; '.join(lacking)}; {cure}")


def _refused_trial(client: ClusterClient) -> str:
    """Return why the namespace refuses a small object; "" if it accepts it. The server checks permissions also in a
    namespace that does not exist."""
    small = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "ffdl-batch-doctor"}, "data": {}}
    try:
        client.create(placed(small, client.namespace), dry_run=True)
    except Refused as refused:
        return str(explain(refused, "a ConfigMap"))
    except SchedulerUnreachable as error:
        return str(error)
    return ""


def _debugging(client: ClusterClient) -> Item:
    """Check whether commands can be started in learners. A daemon, `top` and `stack` work without."""
    about = f"pods/exec in {client.namespace}"
    try:
        lacking = _lacking_debug(client)
    except (SchedulerUnreachable, Refused) as error:
        return Item(about, Verdict.NOTE, f"the API server does not say whether it is allowed: {error}")
    if not lacking:
        return Item(about, Verdict.OK, "allowed: ffdl exec and ffdl shell reach learners")
    cure = f"ffdl-admin tenant create {client.namespace} --debugging --update gives it"
    why = f"not allowed ({', '.join(lacking)}): ffdl exec and ffdl shell are refused, ffdl top and stack are slower"
    return Item(about, Verdict.NOTE, f"{why}; {cure}")


def _lacking_debug(client: ClusterClient) -> list[str]:
    return [verb for verb in ("get", "create") if not may(client, verb, "", "pods/exec")]


def _nodes(client: ClusterClient, settings: KubernetesSettings) -> Item:
    """Check whether the daemon may list nodes; jobs run without it."""
    try:
        lacking = _lacking(client, NODES, settings, everywhere=True)
        more = " --debugging" if lacking and not _lacking_debug(client) else ""  # which the command would take away
    except (SchedulerUnreachable, Refused) as error:
        return Item(_NODES, Verdict.NOTE, f"the API server does not say whether they are seen: {error}")
    if not lacking:
        return Item(_NODES, Verdict.OK, "seen: ffdl why shows which of them could ever hold a job")
    cure = f"ffdl-admin tenant create {client.namespace} --nodes{more} --update gives it"
    why = f"not allowed ({'; '.join(lacking)}): ffdl why does not show which nodes could hold a job"
    return Item(_NODES, Verdict.NOTE, f"{why}; {cure}")


def _lacking(
    client: ClusterClient, needed: Permissions, settings: KubernetesSettings, *, everywhere: bool = False
) -> list[str]:
    """Return the permissions of `needed` that are missing, with what they are for. Raises SchedulerUnreachable,
    Refused."""
    found = []
    for group, resources, verbs in needed:
        if group == GROUP and not settings.queue:
            continue
        for resource in resources:
            denied = [verb for verb in verbs if not may(client, verb, group, resource, everywhere=everywhere)]
            if denied:
                found.append(f"{', '.join(denied)} {resource}{f'.{group}' if group else ''}")
    return found


def _policies(settings: KubernetesSettings, proof: Callable[[], Proof | None]) -> Item:
    if settings.network_policies == "enforced":
        return Item(_POLICIES, Verdict.NOTE, "the configuration says that they are enforced; no canary proves it")
    found = proof()
    if found is None:
        return Item(
            _POLICIES,
            Verdict.NOTE,
            "no canary has come back yet; a daemon sends one when it first asks the cluster, as for the first job",
        )
    return Item(_POLICIES, Verdict.OK if found.enforced else Verdict.WRONG, found.text)


class Administration:
    """:class:`ffdl_batch.ports.capabilities.KeepsTenants` and :class:`ffdl_batch.ports.capabilities.Examines`."""

    def __init__(self, settings: KubernetesSettings, client: ClusterClient, canary: Canary) -> None:
        """Nothing is touched yet."""
        self._settings, self._client, self._canary = settings, client, canary

    def examine(self, nodes: str, _mounting: Mounting = Mounting.AUTO) -> Sequence[Item]:
        """See the port. Pods mount no stores."""
        return list(examine(self._client, self._settings, self._canary.kept, nodes))

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

    def daemon_token(self, lifetime_s: int) -> tuple[str, float]:
        """See the port."""
        account = f"api/v1/namespaces/{self._client.namespace}/serviceaccounts/{ROLE}/token"
        wanted = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": lifetime_s},
        }
        try:
            found = self._client.raw("POST", account, wanted)["status"]
            return str(found["token"]), datetime.fromisoformat(found["expirationTimestamp"]).timestamp()
        except Refused as refused:
            raise explain(refused, f"a token of {self._client.namespace}/{ROLE}") from refused
        except (KeyError, TypeError, ValueError) as error:
            raise SchedulerUnreachable(f"the API server's answer has no token: {error!r}") from error
        finally:
            self._client.close()
