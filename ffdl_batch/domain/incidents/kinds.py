"""The kinds of incident: what each is called, what helps, and what it adds to the score of the node at fault.

`docs/faults.md` shows this table. Kinds are stored by name, so a name that was given stays.
"""

from __future__ import annotations

import re

from ffdl_batch.domain.incidents.incident import IncidentKind

_LOG = "read its log with ffdl logs, and correct the training"
_ADMINS = "tell the administrators; jobs that went there lately are in ffdl report faults"
_STORE_SPACE = "make room on the disk or in the bucket that the line names"
_OURS = "the platform is at fault: submit again, and tell who runs it what the message says"

_TABLE = (
    IncidentKind("user.exit", "the learner ended with an exit code", _LOG),
    IncidentKind("user.signal", "the learner was killed by a signal", _LOG),
    IncidentKind("user.traceback", "the learner ended with a Python exception", _LOG),
    IncidentKind(
        "user.cuda_oom",
        "the GPU's memory was used up",
        "make the batch smaller, save activations by checkpointing, or ask for GPUs with more memory",
    ),
    IncidentKind("user.memory", "the learner needed more memory than it has", "ask for more memory, or load less"),
    IncidentKind(
        "user.storage",
        "the learner used more of a node's disk than it asked for",
        "ask for more (storage in the manifest), or write less",
    ),
    IncidentKind("user.model", "the model could not be loaded", "check the model archive: zip its files again"),
    IncidentKind(
        "user.resources", "no node has what was asked for", "ask for fewer GPUs, CPUs or less memory, or elsewhere"
    ),
    IncidentKind(
        "user.request",
        "the scheduler refuses what the job asks for",
        "read the scheduler's message, correct the request, and submit again",
    ),
    IncidentKind(
        "user.dependency", "what the job waits for cannot happen", "ffdl show the job that it waits for; submit again"
    ),
    IncidentKind(
        "user.hang",
        "learners stood still",
        "read the stack dumps among its evidence: most often one rank waits for another in a collective call",
    ),
    IncidentKind(
        "user.straggler",
        "one learner kept the others waiting",
        "compare its data share and its node with the others'; see ffdl metrics",
    ),
    IncidentKind(
        "data.credentials", "a store refused the credentials", "check the secrets that the manifest names; ffdl secret"
    ),
    IncidentKind("data.missing", "data are not where they should be", "check bucket, prefix and directory by name"),
    IncidentKind("data.disk_full", "a disk or a store is full", _STORE_SPACE),
    IncidentKind("data.network", "a store did not answer", "try again later; where it lasts, ask who runs the store"),
    IncidentKind("data.corrupt", "what came is not what the store says it has", "store the data again"),
    IncidentKind(
        "scheduler.preempted",
        "preempted",
        "use a partition, QOS or priority class that is not preempted, or checkpoint",
    ),
    IncidentKind(
        "scheduler.time_limit", "the time limit was reached", "ask for more time, or write checkpoints: ffdl resume"
    ),
    IncidentKind(
        "scheduler.requeued",
        "the scheduler started the job anew",
        "nothing, where it was preempted or requeued by hand; the scheduler's log says which",
    ),
    IncidentKind(
        "scheduler.cancelled_by_others",
        "cancelled in the scheduler, not by the platform",
        "Slurm: sacct -X --format=jobid,state%30 prints by whom; Kubernetes: the audit log of the API server",
    ),
    IncidentKind(
        "scheduler.ended", "the scheduler ended the job", "its message has the reason; ask the administrators"
    ),
    IncidentKind("scheduler.lost", "the scheduler lost the job", "nothing: it is submitted again; tell who runs it"),
    IncidentKind("node.failed", "a node failed", _ADMINS, 1.0),
    IncidentKind("node.gpu", "a GPU or its links failed", f"reset or replace it: {_ADMINS}", 2.0),
    IncidentKind("node.disk", "a node's disk or mount failed", f"check its disks and mounts: {_ADMINS}", 1.0),
    IncidentKind("node.memory_error", "a node's memory has errors", f"check its DIMMs: {_ADMINS}", 2.0),
    IncidentKind("node.clock", "a node's clock is wrong", f"check chrony or NTP there: {_ADMINS}", 0.5),
    IncidentKind("node.slurmd", "a node's slurmd did not answer", f"check slurmd there: {_ADMINS}", 1.0),
    IncidentKind(
        "node.devices",
        "a node's devices are not those of the allocation",
        f"check gres.conf and cgroups: {_ADMINS}",
        1.0,
    ),
    IncidentKind(
        "node.silent", "a node's controller fell silent", f"check its load and its file systems: {_ADMINS}", 0.5
    ),
    IncidentKind(
        "container.image_missing", "the image is missing or cannot be used", "check the image's name, or build it again"
    ),
    IncidentKind(
        "container.runtime",
        "the container runtime failed",
        "look at what the message quotes, on the node or of the image that it names",
    ),
    IncidentKind("platform.controller_died", "a controller died", _OURS),
    IncidentKind(
        "platform.network",
        "the network could not be isolated",
        "the message names what to change on the node; docs/network.md",
    ),
    IncidentKind(
        "platform.storing", "results or logs could not be stored", "check the results store; storing is tried again"
    ),
    IncidentKind("platform.staging", "the program that moves data failed", _OURS),
    IncidentKind(
        "platform.submission", "the job could not be submitted", "read the scheduler's message, and correct the request"
    ),
    IncidentKind("platform.unknown", "an end that nothing explains", _OURS),
)
KINDS: dict[str, IncidentKind] = {kind.name: kind for kind in _TABLE}
UNKNOWN = "platform.unknown"
_NAME = re.compile(r"(user|data|scheduler|node|container|platform)\.[a-z][a-z0-9_]{0,30}", re.ASCII)


def is_kind_name(text: str) -> bool:
    """Whether a site may give a kind of its own this name: ``origin.word``."""
    return _NAME.fullmatch(text) is not None


def kind_of(name: str) -> IncidentKind:
    """The kind of that name; one of a site's own, or of a newer release, is titled by its word."""
    known = KINDS.get(name)
    if known is not None:
        return known
    if not is_kind_name(name):
        return KINDS[UNKNOWN]
    return IncidentKind(name, name.partition(".")[2].replace("_", " "), "ask the administrators what it means")
