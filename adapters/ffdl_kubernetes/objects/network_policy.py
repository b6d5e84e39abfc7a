"""Make the NetworkPolicy of an attempt, with the addresses of its stores, and the Service that names its pods. Pure."""

from __future__ import annotations

import hashlib
import ipaddress
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ffdl_batch.domain.data.staging_protocol import Transfer
from ffdl_batch.domain.data.store_kinds import StoreAddress, StoreKind
from ffdl_batch.domain.job.spec import Egress
from ffdl_batch.domain.launch.network_level import NetworkLevel
from ffdl_batch.domain.network_address import parse_url
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_kubernetes.objects.names import MANAGER, MANAGER_LABEL, POLICY_LABEL, Plain, labels, metadata
from ffdl_kubernetes.settings import KubernetesSettings

_PORTS = {"https": 443, "http": 80, "ssh": 22}


class Place(NamedTuple):
    """A host ("" = the store itself names it) and a TCP port (0 = likewise)."""

    host: str
    port: int


def places_of(transfers: Iterable[Transfer]) -> tuple[Place, ...]:
    """Each once, in order."""
    return tuple(sorted({_place(one.store) for one in transfers if one.store.kind is not StoreKind.FILE}))


def is_address(host: str) -> bool:
    """Return whether the text is an address and not a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _place(store: StoreAddress) -> Place:
    """Swift's tokens come with the address of the store, and Google's from another host than the objects."""
    if store.kind is StoreKind.SWIFT:
        return Place("", 0)
    if store.kind is StoreKind.FSSPEC:
        host, port = _split(f"//{store.endpoint}")
        return Place(host, port or _PORTS["ssh"]) if host else Place("", 0)
    if not store.endpoint or (store.kind is StoreKind.GCS and not is_address(_split(store.endpoint)[0])):
        return Place("", _PORTS["https"])
    host, port = _split(store.endpoint if "//" in store.endpoint else f"https://{store.endpoint}")
    return Place(host, port or _PORTS["http" if store.endpoint.lower().startswith("http://") else "https"])


def _split(url: str) -> tuple[str, int]:
    found = parse_url(url)
    return (found.host, found.port) if found is not None else ("", 0)


class NotAnAddress(ValueError):
    """A policy names addresses; this destination is a name."""


@dataclass(frozen=True, slots=True)
class Ways:
    """What a level allows. `egress` are the destinations of level `egress`; `stores` are reached at every level."""

    level: NetworkLevel
    egress: Sequence[Egress] = ()
    stores: Sequence[Place] = ()


def policy(name: str, of_pods: Mapping[str, str], ways: Ways, settings: KubernetesSettings) -> Plain:
    """Return the policy of pods with these labels. At level `host` it allows everything, because the tenant's own
    policy denies all that no policy allows. Raises NotAnAddress."""
    level, pods = ways.level, {"matchLabels": dict(of_pods)}
    inward: list[Plain] = []
    outward: list[Plain] = []
    if level is NetworkLevel.HOST:
        inward, outward = [{}], [{}]
    elif level is not NetworkLevel.NONE:
        inward.append({"from": [{"podSelector": pods}]})
        outward += [{"to": [{"podSelector": pods}]}, _dns(settings)]
    if level is NetworkLevel.EGRESS:
        outward += [_destination(one) for one in ways.egress]
    if ways.stores and level is not NetworkLevel.HOST:
        outward += [] if _dns(settings) in outward else [_dns(settings)]
        outward += [_store(one, settings) for one in ways.stores]
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": name, "labels": dict(of_pods)},
        "spec": {
            "podSelector": pods,
            "policyTypes": ["Ingress", "Egress"],
            "ingress": inward,
            "egress": [rule for number, rule in enumerate(outward) if rule not in outward[:number]],
        },
    }


def shared_policy(ways: Ways, settings: KubernetesSettings) -> Plain | None:
    """Return the policy that all jobs of one pod share at this level; None if it allows what only this job may reach.

    No Job owns it, so it stays in the namespace. Its name depends on what it allows.
    """
    is_open = ways.level is NetworkLevel.HOST
    if ways.level is NetworkLevel.EGRESS or (ways.stores and not is_open):
        return None
    egress = [{}] if is_open else [] if ways.level is NetworkLevel.NONE else [_dns(settings)]
    rules: Plain = {"policyTypes": ["Ingress", "Egress"], "ingress": [{}] if is_open else [], "egress": egress}
    digest = hashlib.sha256(json.dumps(rules, sort_keys=True).encode()).hexdigest()
    name = f"{MANAGER}-{ways.level.value}-{digest[:10]}"
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": name, "labels": {MANAGER_LABEL: MANAGER}},
        "spec": {"podSelector": {"matchLabels": {POLICY_LABEL: name}}, **rules},
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


def _store(place: Place, settings: KubernetesSettings) -> Plain:
    """Policies know addresses alone: of a store that has a name, its port is known, unless the site says more."""
    networks = settings.store_networks or ([_network(place.host)] if is_address(place.host) else [])
    found: Plain = {"to": [{"ipBlock": {"cidr": network}} for network in networks]} if networks else {}
    if place.port:
        found["ports"] = [{"protocol": "TCP", "port": place.port}]
    return found


def _network(address: str) -> str:
    return str(ipaddress.ip_network(address))


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
