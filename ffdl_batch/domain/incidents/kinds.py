"""The kinds of incidents: title, cure, and what each adds to the score of the node at fault.

`docs/faults.md` shows this table. Kinds are stored by name, so a name never changes.
"""

from __future__ import annotations

import re

from ffdl_batch.domain.incidents.incident import IncidentKind

_LOG = "read its log with ffdl logs, and correct the training"
_ADMINS = "inform the administrators; ffdl report faults lists recent jobs on it"
_STORE_SPACE = "free space on the disk or in the bucket that the line names"
_OURS = "the platform is at fault: submit again, and send the message to its administrators"

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
    IncidentKind(
        "user.results",
        "results could not be read to store them",
        "let the training keep its results readable by their owner; chmod -R u+rwX makes them readable",
    ),
    IncidentKind("user.model", "the model could not be loaded", "check the model archive: zip its files again"),
    IncidentKind(
        "user.resources",
        "no node has the requested resources",
        "ask for fewer GPUs, CPUs or less memory, or use another partition",
    ),
    IncidentKind(
        "user.request",
        "the scheduler refuses the request",
        "read the scheduler's message, correct the request, and submit again",
    ),
    IncidentKind(
        "user.image",
        "the site does not allow the image",
        "use an image from a location that the message lists, or ask the administrators",
    ),
    IncidentKind(
        "user.dependency", "a dependency of the job cannot be met", "ffdl show the job that it waits for; submit again"
    ),
    IncidentKind(
        "user.hang",
        "learners hung",
        "read the stack dumps among its evidence: most often one rank waits for another in a collective call",
    ),
    IncidentKind(
        "user.straggler",
        "one learner slowed down the others",
        "compare its data share and its node with the others'; see ffdl metrics",
    ),
    IncidentKind(
        "user.idle_gpus",
        "GPUs were idle",
        "see ffdl metrics and ffdl advise; request fewer GPUs, or change batch.idle of the manifest",
    ),
    IncidentKind(
        "data.credentials", "a store refused the credentials", "check the secrets that the manifest names; ffdl secret"
    ),
    IncidentKind("data.missing", "data were not found", "check bucket, prefix and directory by name"),
    IncidentKind("data.disk_full", "a disk or a store is full", _STORE_SPACE),
    IncidentKind(
        "data.network", "a store did not answer", "try again later; if it lasts, ask the administrators of the store"
    ),
    IncidentKind("data.corrupt", "data do not match the store's checksum or size", "store the data again"),
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
        "the scheduler requeued the job",
        "nothing, if it was preempted or requeued by hand; see the scheduler's log",
    ),
    IncidentKind(
        "scheduler.cancelled_by_others",
        "cancelled in the scheduler, not by the platform",
        "Slurm: sacct -X --format=jobid,state%30 prints the user; Kubernetes: the audit log of the API server",
    ),
    IncidentKind(
        "scheduler.ended", "the scheduler ended the job", "its message has the reason; ask the administrators"
    ),
    IncidentKind(
        "scheduler.lost", "the scheduler lost the job", "nothing: it is submitted again; inform the administrators"
    ),
    IncidentKind("node.failed", "a node failed", _ADMINS, 1.0),
    IncidentKind("node.gpu", "a GPU or its links failed", f"reset or replace it: {_ADMINS}", 2.0),
    IncidentKind("node.disk", "a node's disk or mount failed", f"check its disks and mounts: {_ADMINS}", 1.0),
    IncidentKind("node.memory_error", "a node's memory has errors", f"check its DIMMs: {_ADMINS}", 2.0),
    IncidentKind("node.clock", "a node's clock is wrong", f"check chrony or NTP there: {_ADMINS}", 0.5),
    IncidentKind("node.slurmd", "a node's slurmd did not answer", f"check slurmd there: {_ADMINS}", 1.0),
    IncidentKind(
        "node.devices",
        "a node's devices differ from the allocation",
        f"check gres.conf and cgroups: {_ADMINS}",
        1.0,
    ),
    IncidentKind(
        "node.silent", "a node's controller stopped reporting", f"check its load and its file systems: {_ADMINS}", 0.5
    ),
    IncidentKind(
        "container.image_missing", "the image is missing or cannot be used", "check the image's name, or build it again"
    ),
    IncidentKind(
        "container.runtime",
        "the container runtime failed",
        "check what the message quotes, on the node or in the image",
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
    IncidentKind("platform.unknown", "an unexplained end", _OURS),
)
KINDS: dict[str, IncidentKind] = {kind.name: kind for kind in _TABLE}
UNKNOWN = "platform.unknown"
_NAME = re.compile(r"(user|data|scheduler|node|container|platform)\.[a-z][a-z0-9_]{0,30}", re.ASCII)


def is_kind_name(text: str) -> bool:
    """Return whether a site may use this name for a kind of its own: ``origin.word``."""
    return _NAME.fullmatch(text) is not None


def kind_of(name: str) -> IncidentKind:
    """Return the kind of that name; the title of a site's own kind, or of one of a newer release, is its word."""
    known = KINDS.get(name)
    if known is not None:
        return known
    if not is_kind_name(name):
        return KINDS[UNKNOWN]
    return IncidentKind(name, name.partition(".")[2].replace("_", " "), "ask the administrators what it means")
