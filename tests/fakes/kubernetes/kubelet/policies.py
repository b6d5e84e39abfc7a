"""NetworkPolicies, as far as these kubelets can enforce them: pods share the machine's network, each with an address
of its own. One that may reach nobody and be reached by nobody has a network with nothing in it; for others nothing is
done.

Pods of other namespaces that are allowed count for nothing, and so do ports.
"""

from __future__ import annotations

from collections.abc import Sequence

from tests.fakes.kubernetes.kinds import PODS, POLICIES, Obj, labels_of, name_of, namespace_of
from tests.fakes.kubernetes.selectors import selector_matches
from tests.fakes.kubernetes.store import Store


def is_cut_off(store: Store, pod: Obj) -> bool:
    """Whether policies choose the pod for both ways, and none of them allows anybody (kubernetes.io, "Network
    Policies": rules add up, and an empty list has none)."""
    specs = [one["spec"] for one in store.list(POLICIES, namespace_of(pod))]
    chosen = [one for one in specs if selector_matches(one["podSelector"], labels_of(pod))]
    others = [labels_of(one) for one in store.list(PODS, namespace_of(pod)) if name_of(one) != name_of(pod)]
    return all(
        any(way in one["policyTypes"] for one in chosen)
        and not any(_allows(rule.get(peers) or (), others) for one in chosen for rule in one.get(way.lower()) or ())
        for way, peers in (("Ingress", "from"), ("Egress", "to"))
    )


def _allows(peers: Sequence[Obj], others: list[dict[str, str]]) -> bool:
    """Whether a rule with these peers allows anybody; without any it allows all."""
    return not peers or any("ipBlock" in peer or _is_there(peer, others) for peer in peers)


def _is_there(peer: Obj, others: list[dict[str, str]]) -> bool:
    return "namespaceSelector" not in peer and any(selector_matches(peer["podSelector"], one) for one in others)
