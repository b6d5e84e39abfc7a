"""The NetworkPolicy of an attempt, and the Service that gives its pods names."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

from ffdl_batch.domain.network_level import NetworkLevel
from ffdl_batch.domain.spec import Egress
from ffdl_kubernetes.objects.names import Plain, labels, metadata
from ffdl_kubernetes.settings import KubernetesSettings


class NotAnAddress(ValueError):
    """A policy names addresses; this destination is a name."""


def policy(
    token: str, job_id: str, attempt: int, level: NetworkLevel, egress: Sequence[Egress], settings: KubernetesSettings
) -> Plain:
    """At level `host` it allows everything: the tenant's own policy denies what none allows. Raises NotAnAddress."""
    pods = {"matchLabels": labels(job_id, attempt)}
    inward: list[Plain] = []
    outward: list[Plain] = []
    if level is NetworkLevel.HOST:
        inward, outward = [{}], [{}]
    elif level is not NetworkLevel.NONE:
        inward.append({"from": [{"podSelector": pods}]})
        outward += [{"to": [{"podSelector": pods}]}, _dns(settings)]
    if level is NetworkLevel.EGRESS:
        outward += [_destination(one) for one in egress]
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(token, job_id, attempt),
        "spec": {
            "podSelector": pods,
            "policyTypes": ["Ingress", "Egress"],
            "ingress": inward,
            "egress": outward,
        },
    }


def _dns(settings: KubernetesSettings) -> Plain:
    return {
        "to": [
            {
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": settings.dns_namespace}},
                "podSelector": {"matchLabels": dict(settings.dns_labels)},
            }
        ],
        "ports": [{"protocol": "UDP", "port": 53}, {"protocol": "TCP", "port": 53}],
    }


def _destination(one: Egress) -> Plain:
    try:
        network = ipaddress.ip_network(one.host, strict=False)
    except ValueError:
        raise NotAnAddress(one.host) from None
    ports = [{"protocol": "TCP", "port": one.port}] if one.port else []
    return {"to": [{"ipBlock": {"cidr": str(network)}}], **({"ports": ports} if ports else {})}


def service(token: str, job_id: str, attempt: int) -> Plain:
    """Headless: the names of pods that are not ready resolve, too."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(token, job_id, attempt),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": labels(job_id, attempt),
        },
    }
