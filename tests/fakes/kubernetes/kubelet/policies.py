"""What NetworkPolicies leave of a pod's way out. There are no addresses of pods here: a pod has the machine's network,
or one of its own with nothing in it.

It has none where policies select it for egress and none of them lets it reach an address, by a block or by naming no
peer. Peers that are pods have no address here, and count for nothing; so do ports.
"""

from __future__ import annotations

from tests.fakes.kubernetes.kinds import POLICIES, Obj, labels_of, namespace_of
from tests.fakes.kubernetes.selectors import selector_matches
from tests.fakes.kubernetes.store import Store


def is_cut_off(store: Store, pod: Obj) -> bool:
    """Whether the pod reaches nothing outside. What any policy allows is allowed (kubernetes.io, "Network
    Policies")."""
    found = [
        policy["spec"]
        for policy in store.list(POLICIES, namespace_of(pod))
        if selector_matches(policy["spec"]["podSelector"], labels_of(pod))
        and "Egress" in policy["spec"].get("policyTypes", ())
    ]
    return bool(found) and not any(_leads_out(rule) for spec in found for rule in spec.get("egress") or ())


def _leads_out(rule: Obj) -> bool:
    peers = rule.get("to") or ()
    return not peers or any("ipBlock" in peer for peer in peers)
