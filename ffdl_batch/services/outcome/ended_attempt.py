"""Read what an attempt that ended, or one run of it, left: checkpoint, GPU time, failed nodes, pending uploads."""

from __future__ import annotations

from dataclasses import field
from pathlib import Path

from ffdl_batch.attempt.layout import AttemptDir, JobDir, Root
from ffdl_batch.domain.job.job import Job
from ffdl_batch.domain.job.learner_layout import count_gpus
from ffdl_batch.domain.outcome.attempt_reports import latest_run, stored_learners
from ffdl_batch.domain.outcome.continuation import UNFIT_NODE, Checkpoint
from ffdl_batch.domain.outcome.controller_events import FinalRecord
from ffdl_batch.domain.outcome.facts import AttemptFacts
from ffdl_batch.domain.outcome.observation import Observation, Phase
from ffdl_batch.domain.outcome.verdict import Verdict, VerdictKind
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.services.job_files.attempt_directory import begun_at
from ffdl_batch.services.job_files.element_directory import make_directories
from ffdl_batch.services.outcome.attempt_records import (
    gone_first,
    nodes_at_fault,
    read_final,
    read_launch,
    saved_checkpoint,
)
from ffdl_batch.services.outcome.record_completion import is_storable


@dataclass(frozen=True, slots=True)
class Remains:
    """What an attempt, or one run of it, left, and what the site's fault policies decide about it."""

    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    gpu_seconds: float = 0.0
    failed_nodes: tuple[str, ...] = ()
    """Names of the nodes that failed, and that the next attempt avoids."""
    is_successor_begun: bool = False
    """Whether the submission of the next attempt was begun, by the head controller."""
    is_upload_pending: bool = False
    unfit_before: tuple[str, ...] = ()
    """Messages of the attempts just before this one that also ended because their nodes were not fit for the job."""
    policy: str = ""
    """The name of the fault policy that matches the log; "" if none does."""
    stops_retries: bool = False
    """Whether that policy permits no further attempt."""


def read_remains(
    root: Root, job: Job, facts: AttemptFacts, verdict: Verdict, seen: Observation | None, *, avoids_nodes: bool
) -> Remains:
    """Read what the attempt left beside its events. `avoids_nodes`: the backend can exclude nodes. Raises OSError."""
    directory = root.job(job.id)
    attempt = directory.attempt(job.attempt)
    # A run that was ended from outside has left a record, too, although it is not the attempt's last one.
    final = facts.final_record if verdict.kind is VerdictKind.REQUEUED else facts.valid_record
    checkpoint = final.checkpoint if final is not None else Checkpoint()
    if checkpoint == Checkpoint() and verdict.interruption is not None:
        make_directories(root, [job])  # the launch file has the place of the checkpoint
        checkpoint = _find_checkpoint(directory, attempt)
    return Remains(
        checkpoint=checkpoint,
        gpu_seconds=_gpu_seconds(job, attempt, facts, final, seen),
        failed_nodes=_failed_nodes(job, attempt, facts) if verdict.has_lost_node and avoids_nodes else (),
        is_successor_begun=begun_at(directory.attempt(job.attempt + 1)) is not None,
        is_upload_pending=_is_unstored(facts) and not Path(attempt.uploaded).exists() and is_storable(attempt),
        unfit_before=_unfit_before(directory, job) if verdict.error_code in UNFIT_NODE else (),
    )


def gpus_of(job: Job, attempt: AttemptDir) -> float:
    """Return the number of GPUs that the attempt was given. Some may be idle if the roles fill their nodes differently.
    Raises OSError."""
    requested = count_gpus(job.effective_spec)
    launch = read_launch(attempt) if requested or job.effective_spec.resources.gres else None
    return launch.succession.gpus if launch is not None and launch.succession is not None else requested


def _find_checkpoint(directory: JobDir, attempt: AttemptDir) -> Checkpoint:
    """Return the checkpoint of an attempt whose final record names none. Only the pods can see a checkpoint on a
    Kubernetes claim, and one in a pod's own tree is gone with the pod."""
    launch = read_launch(attempt)
    place = launch.checkpoints if launch is not None else ""
    pod = launch.pod if launch is not None else None
    if pod is not None and (not pod.apart or pod.claimed(place)):
        return Checkpoint(unseen=True)
    return saved_checkpoint(attempt, place or directory.checkpoints)


def _failed_nodes(job: Job, attempt: AttemptDir, facts: AttemptFacts) -> tuple[str, ...]:
    """Return the names of the nodes that failed.

    If the job has one node, it is that one. Otherwise it is the silent nodes of an abandoned attempt, the nodes that
    reported a fault themselves, or those whose heartbeats stopped first.
    """
    seen = facts.observation
    # If the scheduler has started the job again, it may already name nodes that did not fail.
    nodes = (seen.nodes if seen is not None and seen.phase is Phase.ENDED else "") or job.nodes
    if nodes and "," not in nodes and "[" not in nodes:
        return (nodes,)
    if facts.abandon_mark is not None:
        return facts.abandon_mark.nodes
    events = latest_run(facts.events)
    return nodes_at_fault(events) or gone_first(attempt, events)


def _gpu_seconds(
    job: Job, attempt: AttemptDir, facts: AttemptFacts, final: FinalRecord | None, seen: Observation | None
) -> float:
    """Return the GPU time of the attempt's last run: from the final record, else from the scheduler's times, else from
    the first event to the last sign of life. Time without heartbeats before the attempt was abandoned does not count,
    nor does that of nodes after they were released."""
    gpus, seconds, ended = gpus_of(job, attempt), 0.0, 0.0
    if final is not None and final.gpu_seconds > 0:
        seconds, ended = final.gpu_seconds, final.at
    else:
        began, ended = _last_run(facts, seen)
        seconds = gpus * max(0.0, ended - began)
    before = facts.learners
    for at, learners in facts.resizes:
        seconds -= gpus * (before - learners) / facts.learners * max(0.0, ended - at)
        before = learners
    return max(0.0, seconds)


def _last_run(facts: AttemptFacts, seen: Observation | None) -> tuple[float, float]:
    """Return when the attempt's last run began and ended."""
    events = latest_run(facts.events)
    # Slurm's accounting starts another record when nodes are released.
    began = seen.started_at if seen is not None and seen.phase is Phase.ENDED and not facts.resizes else None
    ended = seen.ended_at if seen is not None else None
    if began is None or ended is None:
        began = min((event.at for event in events), default=0.0)
        ended = (facts.last_sign_at or began) if events else began
    return began, ended if facts.abandon_mark is None else min(ended, facts.abandon_mark.since)


def _is_unstored(facts: AttemptFacts) -> bool:
    """Return whether learners ran and no report proves that everything they left is stored."""
    if not facts.has_started_learners:
        return False
    if facts.valid_record is not None:
        return not facts.valid_record.stored
    return not set(range(1, facts.learners + 1)) <= stored_learners(facts.events)


def _unfit_before(directory: JobDir, job: Job) -> tuple[str, ...]:
    """Return the messages of the preceding attempts, newest first, up to one whose nodes were fit. Raises OSError."""
    messages: list[str] = []
    for number in range(job.attempt - 1, max(0, job.attempt - 1 - job.spent.node_failures), -1):
        final = read_final(directory.attempt(number))
        if final is None or final.error_code not in UNFIT_NODE:
            break
        messages.append(f"attempt {number}: {final.message}")
    return tuple(messages)
