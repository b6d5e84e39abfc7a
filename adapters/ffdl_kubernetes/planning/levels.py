"""Which network levels a job can have on a cluster, and who says so. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from ffdl_batch.domain.findings import Finding
from ffdl_batch.domain.launch.network_level import NetworkLevel
from ffdl_batch.ports.scheduler import BackendFacts
from ffdl_batch.runtimes.learner_start import refusal
from ffdl_kubernetes.settings import KubernetesSettings

ISOLATING = frozenset({NetworkLevel.NONE, NetworkLevel.JOB, NetworkLevel.EGRESS})
"""What NetworkPolicies make, where the cluster's network enforces them."""


def provable_levels(levels: frozenset[NetworkLevel], settings: KubernetesSettings) -> Mapping[NetworkLevel, str]:
    """Level -> by what it is made, which is told with what was achieved."""
    if not levels & ISOLATING:
        return {NetworkLevel.HOST: "none; no canary proved that NetworkPolicies are enforced"}
    by = "as the site says" if settings.network_policies == "enforced" else "proved by a canary"
    return {level: "none" if level is NetworkLevel.HOST else f"NetworkPolicy, {by}" for level in levels}


def lacking_levels(facts: BackendFacts) -> Mapping[NetworkLevel, Finding]:
    """Why levels are not offered: a job that names one of them is refused before anything of it starts."""
    cure, why = "use network: auto or host, or talk to the site", "; ".join(facts.warnings)
    return {
        level: refusal("batch.network", f"network level {level} cannot be proved: {why}", cure, "S107")
        for level in ISOLATING - facts.network_levels
        if why
    }
