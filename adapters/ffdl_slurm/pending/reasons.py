"""Interpret Slurm's reasons why a job waits. Pure.

The words are those of `jsra` in src/common/job_state_reason.c of 26.05 and of `job_reason_string` in releases back to
20.11; a job's own description (`state_desc`), which slurmctld prints instead where it has one, is recognised by its
beginning. Limits are read by their grammar: whose, most or least, of what, per what.
"""

from __future__ import annotations

import re

from ffdl_batch.domain.pending.explanation import Limit, Measure, Per, Reason, WaitKind

REASONS: dict[str, WaitKind] = {
    "None": WaitKind.UNCONSIDERED,
    "Prolog": WaitKind.STARTING,
    "Priority": WaitKind.PRIORITY,
    "Dependency": WaitKind.DEPENDENCY,
    "Resources": WaitKind.RESOURCES,
    "PartitionNodeLimit": WaitKind.PARTITION_SIZE,
    "PartitionTimeLimit": WaitKind.PARTITION_TIME,
    "PartitionDown": WaitKind.PARTITION_CLOSED,
    "PartitionInactive": WaitKind.PARTITION_CLOSED,
    "PartitionConfig": WaitKind.PARTITION_RULE,
    "JobHeldAdmin": WaitKind.HELD_BY_ADMIN,
    "JobHeldUser": WaitKind.HELD_BY_USER,
    "JobHoldMaxRequeue": WaitKind.HELD_AFTER_FAILURES,
    "NvidiaImexChannels": WaitKind.DEVICE_CHANNELS,
    "BeginTime": WaitKind.BEGIN_TIME,
    "Licenses": WaitKind.LICENSES,
    "Reservation": WaitKind.RESERVATION,
    "ReservationDeleted": WaitKind.RESERVATION_GONE,
    "ReservationInvalid": WaitKind.RESERVATION_GONE,
    "ReqNodeNotAvail": WaitKind.NODES_AWAY,
    "NodeDown": WaitKind.NODES_AWAY,
    "SchedDefer": WaitKind.DEFERRED,
    "BadConstraints": WaitKind.IMPOSSIBLE,
    "Constraints": WaitKind.CONSTRAINTS,
    "SystemFailure": WaitKind.BROKEN,
    "JobLaunchFailure": WaitKind.BROKEN,
    "NonZeroExitCode": WaitKind.ENDED,
    "RaisedSignal": WaitKind.ENDED,
    "TimeLimit": WaitKind.ENDED,
    "InactiveLimit": WaitKind.ENDED,
    "OutOfMemory": WaitKind.ENDED,
    "InvalidAccount": WaitKind.NOT_ALLOWED,
    "InvalidQOS": WaitKind.NOT_ALLOWED,
    "QOSNotAllowed": WaitKind.NOT_ALLOWED,
    "AccountNotAllowed": WaitKind.NOT_ALLOWED,
    "Cleaning": WaitKind.CLEANING,
    "DependencyNeverSatisfied": WaitKind.DEPENDENCY_NEVER,
    "JobArrayTaskLimit": WaitKind.ARRAY_LIMIT,
    "BurstBufferResources": WaitKind.BURST_BUFFER,
    "BurstBufferStageIn": WaitKind.BURST_BUFFER,
    "BurstBufferOperation": WaitKind.BURST_BUFFER,
    "DeadLine": WaitKind.DEADLINE,
    "FedJobLock": WaitKind.FEDERATION,
    "MaxPoweredUpNodes": WaitKind.POWER,
    "MpiPortsBusy": WaitKind.PORTS,
    # Releases before 26.05.
    "ReservationBad": WaitKind.RESERVATION_GONE,
    "FrontEndDown": WaitKind.NODES_AWAY,
    "FeatureNotAvailable": WaitKind.CONSTRAINTS,
    "PowerNotAvail": WaitKind.POWER,
    "PowerReserved": WaitKind.POWER,
}
_GENERAL_LIMITS: dict[str, tuple[str, str, Measure]] = {
    "AssociationJobLimit": ("association", "jobs", Measure.AMOUNT),
    "AssociationResourceLimit": ("association", "resources", Measure.AMOUNT),
    "AssociationTimeLimit": ("association", "time", Measure.AMOUNT),
    "QOSJobLimit": ("QOS", "jobs", Measure.AMOUNT),
    "QOSResourceLimit": ("QOS", "resources", Measure.AMOUNT),
    "QOSTimeLimit": ("QOS", "time", Measure.AMOUNT),
    "QOSUsageThreshold": ("QOS", "usage", Measure.AMOUNT),
    "AccountingPolicy": ("association or QOS", "resources", Measure.AMOUNT),
}
_RESOURCES = {
    "cpu": "CPUs", "mem": "memory", "memory": "memory", "node": "nodes", "nodes": "nodes", "gres": "GPUs or other GRES",
    "license": "licenses", "bb": "burst buffer", "energy": "energy", "billing": "billing units",
    "unknown": "a resource", "jobs": "jobs", "submitjobs": "jobs", "submitjob": "jobs", "wall": "time",
    "wallduration": "time",
}  # fmt: skip
_LIMIT = re.compile(
    r"(?P<owner>QOS|Assoc|)(?P<bound>Grp|Max|Min)"
    r"(?P<what>SubmitJobs?|Jobs|WallDuration|Wall|Cpu|CPU|Mem(?:ory)?|Nodes?|GRES|License|BB|Energy|Billing|Unknown)"
    r"(?P<span>RunMinutes|RunMins|Minutes)?(?:Limit|NotSatisfied)?(?:Per(?P<per>Job|Node|User|Account|Limit))?"
    r"(?:Limit)?"
)
_DESCRIBED: tuple[tuple[str, WaitKind], ...] = (
    ("nodes required for job are down, drained or reserved", WaitKind.NODES_AWAY),
    ("required node", WaitKind.NODES_AWAY),
    ("reserved for maintenance", WaitKind.NODES_AWAY),
    ("user env retrieval failed", WaitKind.HELD_AFTER_FAILURES),
    ("launch failed requeued held", WaitKind.HELD_AFTER_FAILURES),
    ("launch failure limit exceeded", WaitKind.HELD_AFTER_FAILURES),
    ("job requeued in held state", WaitKind.HELD_BY_USER),
    ("job requeued in special exit", WaitKind.HELD_BY_USER),
    ("held by special exit", WaitKind.HELD_BY_USER),
)


def read_reason(text: str) -> Reason:
    """Interpret the reason that squeue prints for a job. Unknown text is of the kind OTHER, with the text."""
    said = text.strip().strip("()").strip()
    word = re.split(r"[,:\s]", said.replace("_", " ") if "_" in said and " " not in said else said, maxsplit=1)[0]
    detail = said[len(word) :].strip(" ,:") if said.startswith(word) else ""
    kind = REASONS.get(word)
    if kind is not None and (not detail or kind in _WITH_DETAIL):
        return Reason(kind, word, detail)
    if (limit := read_limit(word)) is not None:
        return Reason(WaitKind.LIMIT, word, detail, limit)
    low = said.replace("_", " ").lower()
    for beginning, meaning in _DESCRIBED:
        if low.startswith(beginning):
            return Reason(meaning, said)
    if low.endswith("requeued held"):
        return Reason(WaitKind.HELD_AFTER_FAILURES, said)
    return Reason(WaitKind.OTHER if said else WaitKind.UNCONSIDERED, said or "None")


_WITH_DETAIL = frozenset(
    {WaitKind.NODES_AWAY, WaitKind.RESERVATION, WaitKind.RESERVATION_GONE, WaitKind.BROKEN, WaitKind.ENDED,
     WaitKind.BURST_BUFFER, WaitKind.LICENSES, WaitKind.DEPENDENCY, WaitKind.HELD_AFTER_FAILURES, WaitKind.POWER}
)  # fmt: skip
"""Words that slurmctld adds something to, behind a comma or a colon."""


def read_limit(word: str) -> Limit | None:
    """Return the limit that a reason names, without figures; None if it names none."""
    if word in _GENERAL_LIMITS:
        owner, resource, measure = _GENERAL_LIMITS[word]
        return Limit(owner, resource, measure=measure)
    match = _LIMIT.fullmatch(word)
    if match is None:
        return None
    what, span = match["what"].lower(), match["span"] or ""
    if match["per"] == "Limit":  # MaxMemPerLimit: of memory per CPU or node (slurm.conf, MaxMemPerNode)
        return Limit("partition", _RESOURCES[what], Per.NODE)
    measure = Measure.AMOUNT
    if span:
        measure = Measure.RUN_MINUTES if span.startswith("Run") else Measure.MINUTES
    elif what.startswith("submit"):
        measure = Measure.SUBMITTED
    owner = {"QOS": "QOS", "Assoc": "association", "": "QOS"}[match["owner"]]
    return Limit(owner, _RESOURCES[what], _per(match, owner, what), measure, least=match["bound"] == "Min")


def _per(match: re.Match[str], owner: str, what: str) -> Per:
    if match["bound"] == "Grp":
        return Per.ALL
    if match["per"]:
        return Per(match["per"].lower())
    if match["bound"] == "Min":
        return Per.JOB
    # AssocMaxJobsLimit and AssocMaxSubmitJobLimit are of one user in the account (sacctmgr(1), MaxJobs).
    return Per.USER if owner == "association" and what in ("jobs", "submitjob", "submitjobs") else Per.JOB
