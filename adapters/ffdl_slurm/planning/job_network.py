"""Decide which network levels a job can have on this cluster, and write the mark that requests a network. Pure.

The nodes' prolog makes networks of jobs (``slurm-configs/libexec``). A feature of Slurm, which the site sets, shows
that a node can make one. The prolog reads the mark at the beginning of the job's comment, and nothing else.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field

from ffdl_batch.domain.backend_facts import NodeShape
from ffdl_batch.domain.findings import Finding
from ffdl_batch.domain.job.learner_layout import Gang
from ffdl_batch.domain.job.spec import Egress, JobSpec, NetworkLevel
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.runtimes.learner_start import refusal
from ffdl_slurm.planning.eligible_nodes import narrow
from ffdl_slurm.settings import SlurmSettings

LEARNERS_MOST, NODES_MOST = 62, 250
"""Limits of the prolog: learners on a node, nodes of a job."""
MECHANISMS = {
    NetworkLevel.HOST: "none",
    NetworkLevel.NONE: "apptainer --net --network none",
    NetworkLevel.JOB: "overlay",
    NetworkLevel.EGRESS: "overlay+nat",
}
"""How a level is made, as far as a plan knows. Nodes report how an overlay joins them when they have made it."""
_PLAIN_CONSTRAINT = re.compile(r"[\w.-]+(?:&[\w.-]+)*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Offer:
    """The network levels of a job."""

    provable: Mapping[NetworkLevel, str]
    """Levels that the job can have, and how they are made."""
    lacking: Mapping[NetworkLevel, Finding] = field(default_factory=dict)
    """Why the job cannot have other levels."""
    warnings: tuple[str, ...] = ()
    """What the owner of the job could change."""


def offer(
    spec: JobSpec, gang: Gang, nodes: Sequence[NodeShape], proved: Iterable[NetworkLevel], settings: SlurmSettings
) -> Offer:
    """Return the levels of a job. `nodes` are those of its partitions, `proved` the levels that need nothing of
    them."""
    provable = {level: MECHANISMS[level] for level in proved if level in MECHANISMS}
    possible = _possible(spec, gang, nodes)
    too_much = _too_much(gang)
    lacking = {}
    for level, features in _needed(settings).items():
        reason = too_much or _unproved(level, features, spec.batch.constraint, possible, nodes)
        if reason is None:
            provable[level] = MECHANISMS[level]
        else:
            lacking[level] = reason
    reason = lacking.get(NetworkLevel.JOB)
    falls = spec.batch.network is NetworkLevel.AUTO and len(gang.members) > 1
    if reason is None or not falls or not (too_much or _is_offered(settings, nodes)):
        return Offer(provable, lacking)
    return Offer(provable, lacking, (f"batch.network: auto is host for this job: {reason.message} ({reason.cure})",))


def only_host() -> Offer:
    """Return the only level that a job with enroot can have: its containers use the node's network."""
    message = "network level {} needs Apptainer, and runtime of [backend.slurm] is pyxis"
    cure = "use network: auto or host"
    lacking: dict[NetworkLevel, Finding] = {
        level: refusal("batch.network", message.format(level), cure)
        for level in MECHANISMS
        if level is not NetworkLevel.HOST
    }
    return Offer({NetworkLevel.HOST: MECHANISMS[NetworkLevel.HOST]}, lacking)


def _is_offered(settings: SlurmSettings, nodes: Sequence[NodeShape]) -> bool:
    """Return whether any of these nodes makes networks. If none does, level `host` needs no warning."""
    return bool(settings.network_feature) and any(settings.network_feature in node.features for node in nodes)


def _needed(settings: SlurmSettings) -> dict[NetworkLevel, tuple[tuple[str, str], ...]]:
    """Return the settings and features that each level needs. A feature is "" if the site does not offer the level."""
    network = ("network_feature", settings.network_feature)
    return {NetworkLevel.JOB: (network,), NetworkLevel.EGRESS: (network, ("egress_feature", settings.egress_feature))}


def _too_much(gang: Gang) -> Finding | None:
    learners = learners_most(gang)
    if learners > LEARNERS_MOST:
        message = f"{learners} learners on a node, and a network of the job's own has at most {LEARNERS_MOST} there"
        return refusal("batch.network", message, "ask for placement: spread, or network: host", "C104")
    if gang.nodes > NODES_MOST:
        message = f"{gang.nodes} nodes, and a network of the job's own has at most {NODES_MOST}"
        return refusal("batch.network", message, "ask for placement: pack, or network: host", "C104")
    return None


def _unproved(
    level: NetworkLevel,
    features: tuple[tuple[str, str], ...],
    constraint: str,
    nodes: Sequence[NodeShape],
    there: Sequence[NodeShape],
) -> Finding | None:
    """Return why the level cannot be proved for a job that may get any of `nodes`; None if it can. `there` are all
    nodes."""
    cure = "use network: auto, host, or none for one learner"
    for setting, feature in features:
        if not feature:
            message = f"network level {level} is not offered here: {setting} of [backend.slurm] is empty"
            return refusal("batch.network", message, cure)
        if _asks_for(constraint, feature) and (vain := _in_vain(constraint, there)):
            message = f"network level {level} cannot be proved: {vain}"
            return refusal("batch.constraint", message, f"ask for features that nodes have, or {cure}", "C104")
        lacking = [] if _asks_for(constraint, feature) else [n.name for n in nodes if feature not in n.features]
        if lacking or not any(feature in node.features for node in nodes):
            names = ", ".join(dict.fromkeys(lacking)) or "every node of the partition"
            message = (
                f"network level {level} cannot be proved: {names} has not the feature {feature!r}, by which a site "
                f"says that a node's prolog makes networks (docs/network.md; {setting} of [backend.slurm] names it)"
            )
            return refusal("batch.network", message, f"add --constraint={feature}, choose another partition, or {cure}")
    return None


def _asks_for(constraint: str, feature: str) -> bool:
    """Return whether the constraint of the job demands the feature."""
    return _PLAIN_CONSTRAINT.fullmatch(constraint) is not None and feature in constraint.split("&")


def _in_vain(constraint: str, nodes: Sequence[NodeShape]) -> str:
    """Return why no node has all features of a constraint of names joined by &; "" if one has, or if no node is
    known."""
    names = constraint.split("&")
    if not nodes or any(set(names) <= set(node.features) for node in nodes):
        return ""
    missing = [name for name in names if not any(name in node.features for node in nodes)]
    what = f"has the feature {missing[0]!r}" if missing else f"has all of {', '.join(names)}"
    return f"the constraint {constraint} leaves no node, for none of {', '.join(node.name for node in nodes)} {what}"


def _possible(spec: JobSpec, gang: Gang, nodes: Sequence[NodeShape]) -> list[NodeShape]:
    """Return the nodes that the job may get: only the named ones if it names as many as it needs."""
    left = narrow(spec.batch, nodes)
    if left and sum(group.named for group in left) >= gang.nodes:
        left = [group for group in left if group.named]
    return [group.shape for group in left]


def learners_most(gang: Gang) -> int:
    """Learners of the node that has most."""
    return max(Counter(gang.nodes_of).values(), default=1)


def mark_of(level: NetworkLevel, gang: Gang, egress: Sequence[Egress], settings: SlurmSettings) -> str:
    """Return the beginning of the job's comment; "" if it asks for no network."""
    learners = learners_most(gang)
    if level is NetworkLevel.JOB:
        return f"{settings.job_mark}job/{learners}"
    if level is NetworkLevel.EGRESS:
        destinations = ",".join(dict.fromkeys(f"{to.host}:{to.port}" for to in egress))
        return f"{settings.job_mark}egress/{learners}/{destinations}"
    return ""
