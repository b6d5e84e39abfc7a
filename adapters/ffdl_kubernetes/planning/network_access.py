"""Choose the network level of an attempt's pods, and how they reach the stores of the job. Pure.

The controller is in the learner's pod, and so in its network: at a level without egress it reaches no store. If a claim
has the job's files, other pods load and store them. Otherwise the level is one at which stores are reached.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ffdl_batch.domain.backend_facts import BackendFacts
from ffdl_batch.domain.findings import Finding
from ffdl_batch.domain.launch.launch_file import Network
from ffdl_batch.domain.launch.network_level import NetworkLevel
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.runtimes.data import Data
from ffdl_batch.runtimes.launch_request import LaunchRequest
from ffdl_batch.runtimes.learner_start import RequestRefused, choose_network, refusal
from ffdl_kubernetes.objects.network_policy import Place, is_address, places_of
from ffdl_kubernetes.settings import KubernetesSettings

ISOLATING = frozenset({NetworkLevel.NONE, NetworkLevel.JOB, NetworkLevel.EGRESS})
"""What NetworkPolicies make, where the cluster's network enforces them."""


def provable_levels(levels: frozenset[NetworkLevel], settings: KubernetesSettings) -> Mapping[NetworkLevel, str]:
    """Return, by level, its mechanism, which is reported with the level."""
    if not levels & ISOLATING:
        return {NetworkLevel.HOST: "none; no canary proved that NetworkPolicies are enforced"}
    by = "as the site says" if settings.network_policies == "enforced" else "proved by a canary"
    return {level: "none" if level is NetworkLevel.HOST else f"NetworkPolicy, {by}" for level in levels}


def lacking_levels(facts: BackendFacts) -> Mapping[NetworkLevel, Finding]:
    """Return why levels are not offered. A job that names such a level is refused before it starts."""
    cure, why = "use network: auto or host, or talk to the site", "; ".join(facts.warnings)
    return {
        level: refusal("batch.network", f"network level {level} cannot be proved: {why}", cure, "S107")
        for level in ISOLATING - facts.network_levels
        if why
    }


_CLOSED = (NetworkLevel.NONE, NetworkLevel.JOB)
_CURE = "name a claim in [backend.kubernetes]"


@dataclass(frozen=True, slots=True)
class Access:
    """`cut_off`: the pods reach no store, and the job has some. `stores` are those that a policy lets them reach."""

    network: Network
    cut_off: bool = False
    stores: tuple[Place, ...] = ()
    warnings: tuple[str, ...] = ()


def choose_access(request: LaunchRequest, settings: KubernetesSettings, data: Data) -> Access:
    """Raises RequestRefused."""
    network = _choose(request, settings)
    level, places = NetworkLevel(network.level), places_of((*data.fetches, *data.uploads))
    if not places or level is NetworkLevel.HOST:
        return Access(network)
    if request.only_stages:  # nothing of a user's runs there
        return Access(network, stores=places)
    if level is NetworkLevel.EGRESS:
        return _outward(network, places, settings)
    if settings.claim:
        return Access(network, cut_off=True)
    if request.spec.batch.network is not NetworkLevel.AUTO:
        message = f"at network level {level} pods reach no data store, and without a claim nothing else brings data"
        cure = f"{_CURE}, or write network: egress, or leave network out"
        raise RequestRefused([refusal("batch.network", message, cure)])
    return _loosened(request, settings, places, level)


def _choose(request: LaunchRequest, settings: KubernetesSettings) -> Network:
    facts = request.facts
    provable = provable_levels(facts.network_levels, settings)
    return choose_network(request.spec, provable, request.minimum_network, lacking_levels(facts))


def _loosened(
    request: LaunchRequest, settings: KubernetesSettings, places: tuple[Place, ...], tightest: NetworkLevel
) -> Access:
    """Return the tightest level at which the pods reach their stores."""
    spec = request.spec
    known = len(_known(places, settings)) == len(places) and NetworkLevel.EGRESS in request.facts.network_levels
    level = NetworkLevel.EGRESS if known else NetworkLevel.HOST
    try:
        network = _choose(replace(request, spec=replace(spec, batch=replace(spec.batch, network=level))), settings)
    except RequestRefused as refused:
        message = f"without a claim each pod asks the data stores itself, and {refused.findings[0].message}"
        raise RequestRefused([refusal("batch.network", message, _CURE)]) from None
    why = f"batch.network: {level}, not {tightest}: without a claim each pod asks the data stores itself; {_CURE}"
    stores = places if known else ()
    return Access(replace(network, requested=NetworkLevel.AUTO.value), stores=stores, warnings=(why,))


def _outward(network: Network, places: tuple[Place, ...], settings: KubernetesSettings) -> Access:
    """Beside what the manifest names; never more than is known."""
    known = _known(places, settings)
    names = sorted({one.host or "a store" for one in places if one not in known})
    cure = "write its addresses into batch.egress, or store_networks into [backend.kubernetes]"
    warnings = [f"batch.egress: policies know addresses alone, and {name} is known by name; {cure}" for name in names]
    return Access(network, stores=known, warnings=tuple(warnings))


def _known(places: tuple[Place, ...], settings: KubernetesSettings) -> tuple[Place, ...]:
    return tuple(one for one in places if settings.store_networks or is_address(one.host))
