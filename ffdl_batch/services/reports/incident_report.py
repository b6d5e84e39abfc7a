"""Reports incidents as they were recorded, and how often each node failed jobs. It asks no scheduler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ffdl_batch.config import Settings
from ffdl_batch.domain.incidents.incident import EvidenceRow, IncidentRow
from ffdl_batch.domain.incidents.kinds import kind_of
from ffdl_batch.domain.incidents.node_score import NodesReport
from ffdl_batch.domain.incidents.report import HOUR_S, FaultsReport, Scope, make_report
from ffdl_batch.domain.job.job import Job, JobId
from ffdl_batch.domain.job.submission import Caller
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.services.backends.node_exclusion import NodeExclusion
from ffdl_batch.services.job_storage import JobStorage
from ffdl_batch.services.refusals import not_allowed, wrong_usage
from ffdl_batch.store import Noticed, Store


@dataclass(frozen=True, slots=True)
class FaultsAsked:
    """The requested period, from after `since` to `until` (None = now), in seconds since the epoch; the caller's jobs,
    or those of `all_users`. If `rows_after` is set, the rows begin after it instead of after `since`."""

    since: float
    until: float | None = None
    all_users: bool = False
    rows_after: float | None = None


def report_faults(storage: JobStorage, caller: Caller, asked: FaultsAsked) -> FaultsReport:
    """Return the whole report. Raises :class:`Refused`.

    The user of a personal daemon, which has no other user's jobs, gets a report of their own jobs for `all_users`.
    """
    if asked.all_users and not caller.is_admin and caller.uid != storage.uid:
        raise not_allowed("only administrators may have a report about other users' jobs")
    now = storage.store.now()
    until = now if asked.until is None else min(asked.until, now)
    if not asked.since < until:
        raise wrong_usage("the period is empty: it has to begin before its end, and before now")
    scope = Scope(asked.since, until, now, asked.since if asked.rows_after is None else asked.rows_after)
    uid = None if asked.all_users and caller.is_admin else caller.uid
    noticed = storage.store.incidents_noticed(scope.first, until, uid)
    return make_report(incident_rows(storage.store, noticed), scope, own_only=uid is not None)


def incidents_of(store: Store, job: Job) -> tuple[IncidentRow, ...]:
    """Return the incidents of one job, in the order in which they happened."""
    noticed = store.incidents_of([job.id]).get(job.id, [])
    return tuple(_row(one, {job.id: job}) for one in noticed)


def incident_rows(store: Store, noticed: Sequence[Noticed]) -> list[IncidentRow]:
    """Return the incidents with the names and owners of their jobs."""
    ids = sorted({one.incident.job_id for one in noticed})
    jobs = {job.id: job for job in store.get_many([JobId(job_id) for job_id in ids])} if ids else {}
    return [_row(one, jobs) for one in noticed]


def _row(one: Noticed, jobs: Mapping[JobId, Job]) -> IncidentRow:
    incident, job = one.incident, jobs.get(JobId(one.incident.job_id))
    kind = kind_of(incident.kind)
    return IncidentRow(
        incident.job_id,
        incident.attempt,
        incident.episode,
        incident.kind,
        incident.origin.value,
        kind.title,
        kind.cure,
        incident.at,
        one.noticed_at,
        incident.code,
        incident.message,
        job.spec.name if job is not None else "",
        job.user if job is not None else "",
        incident.nodes,
        incident.learner,
        incident.lost_gpu_s / HOUR_S,
        tuple(EvidenceRow(said.source, said.text, said.at) for said in incident.evidence),
    )


def report_nodes(store: Store, settings: Settings, node_exclusion: NodeExclusion) -> NodesReport:
    """Return the current score of each node, from all jobs in the database. The report names nodes, never jobs."""
    rules = settings.nodes
    scores = node_exclusion.scores()
    return NodesReport(store.now(), tuple(scores), rules.threshold if rules.exclude_unreliable else None)
