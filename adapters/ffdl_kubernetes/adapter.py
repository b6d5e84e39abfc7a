"""The Kubernetes adapter: one attempt is one Indexed Job, named by its token, in one namespace.

The native id is the token. Threads copy the output of pods into the attempt's directory
(:mod:`ffdl_kubernetes.lifecycle.pod_sync`), from the first observation on. So all state of a job is in the cluster and
in that directory.
"""

from __future__ import annotations

import functools
import logging
import re
import signal as signals
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ffdl_batch.attempt.control_cell import read_control
from ffdl_batch.attempt.layout import AttemptDir, Root
from ffdl_batch.attempt.reader import find_text, status_of
from ffdl_batch.domain.backend_facts import Absent, BackendFacts, BackendTraits, PartitionShape
from ffdl_batch.domain.job.job import Token
from ffdl_batch.domain.launch.network_level import ONLY_HOST, NetworkLevel
from ffdl_batch.domain.launch.pod_protocol import PodAnnotation
from ffdl_batch.domain.outcome.observation import EndCause, NativeId, Observation, Phase
from ffdl_batch.domain.scheduler_errors import InvalidRequest, NotNow, SchedulerMissing, SchedulerUnreachable
from ffdl_batch.plugins import AdapterContext, Settings
from ffdl_batch.runtimes.launch_request import LaunchPlan, LaunchRequest
from ffdl_batch.runtimes.learner_start import staging_arguments
from ffdl_kubernetes.administration import Administration
from ffdl_kubernetes.api_discovery import groups
from ffdl_kubernetes.api_errors import explain
from ffdl_kubernetes.attach.claim_files import ClaimFiles
from ffdl_kubernetes.attach.node_access import Reach
from ffdl_kubernetes.client import UNAUTHORIZED, ClusterClient, Refused
from ffdl_kubernetes.lifecycle import marker_files
from ffdl_kubernetes.lifecycle.marker_files import elsewhere, remember
from ffdl_kubernetes.lifecycle.pending_uploads import StoresFromClaims
from ffdl_kubernetes.lifecycle.pod_sync import Pods
from ffdl_kubernetes.lifecycle.shrinking import ShrinksInPlace
from ffdl_kubernetes.lifecycle.submission import Sender, is_released, read_objects
from ffdl_kubernetes.lifecycle.termination import HEARD_S, AskedEnds, sent_after_cleanup
from ffdl_kubernetes.objects.names import placed
from ffdl_kubernetes.observing.cluster_watch import Watcher, token_of
from ffdl_kubernetes.observing.job_states import (
    Beside,
    has_begun,
    is_ending,
    is_finished,
    is_over,
    is_put_back,
    observe,
)
from ffdl_kubernetes.observing.kueue import GROUP as KUEUE
from ffdl_kubernetes.observing.kueue import Queues
from ffdl_kubernetes.observing.network_canary import Canary, canary_cure, refuse_unproved
from ffdl_kubernetes.pending.cluster_reader import ClusterReader
from ffdl_kubernetes.pending.explanation import PodExplanations
from ffdl_kubernetes.planning.launch_plan import BACKEND, make_plan
from ffdl_kubernetes.planning.network_access import ISOLATING
from ffdl_kubernetes.settings import KubernetesSettings, as_table, read_settings, settle

OLDEST = (1, 29)
"""Native sidecars are on by default since this release (kubernetes.io, "Sidecar Containers")."""
_log = logging.getLogger(__name__)
WITHDRAW_TRIES = 5
_TOKEN = re.compile(r"(training-[0-9a-z]{9})-(\d+)", re.ASCII)


def create(settings: Settings, context: AdapterContext) -> KubernetesScheduler:
    """Create the adapter for the entry point. Raises InvalidRequest for unusable settings."""
    return KubernetesScheduler(read_settings(settings), context)


class KubernetesScheduler(
    Administration, AskedEnds, ClaimFiles, Reach, ShrinksInPlace, StoresFromClaims, PodExplanations
):
    """See :class:`ffdl_batch.ports.scheduler.Scheduler`."""

    def __init__(self, settings: KubernetesSettings, context: AdapterContext) -> None:
        """Create the adapter without a request."""
        self._settings = settle(settings, context.user, context.uid)
        super().__init__(self._settings, self._make(), Canary(self._settings, context.root, self._make))
        self._sender = Sender(self._client, self._settings)
        self._root = Root(context.root)
        self._pods = Pods(self._settings, self._root, self._make)
        self._watcher = Watcher(self._make, self._on_change)
        self._gone: dict[str, dict[str, Mapping[str, Any]]] = {}
        self._swept = False
        self._brought: dict[str, int] = {}
        """Token of an attempt -> modification time of the `control.json` that its pods have got."""
        self._queues = Queues(self._make)
        self._reader = ClusterReader(self._make)

    def _make(self) -> ClusterClient:
        return ClusterClient(self._settings)

    @property
    def _namespace(self) -> str:
        return self._client.namespace

    def _on_change(self, what: str, kind: str, thing: Mapping[str, Any]) -> None:
        if kind == "Pod":
            self._pods.on_change(what, thing)
        if what == "DELETED" and kind == "Job":
            self._gone.pop(token_of(thing), None)
            self._pods.forget(token_of(thing))
            self._brought.pop(token_of(thing), None)
        elif what == "DELETED" and kind == "Pod":
            job = self._watcher.job(token_of(thing))
            if job is not None and not job["metadata"].get("deletionTimestamp"):
                self._gone.setdefault(token_of(thing), {})[thing["metadata"]["name"]] = thing

    @property
    def name(self) -> str:
        """See the port."""
        return BACKEND

    @property
    def traits(self) -> BackendTraits:
        """See the port. ConfigMaps hold models, and an API server ends requests after a minute."""
        return BackendTraits(
            own_keys=frozenset({"kubernetes", "profile"}),
            model_bytes=self._settings.model_bytes,
            credential_life_s=60.0 + self._settings.request_timeout_s,
        )

    def effective_settings(self) -> Mapping[str, object]:
        """See the port."""
        return as_table(self._settings)

    def probe(self) -> BackendFacts:
        """See the port."""
        try:
            version = self._client.version()
        except Refused as refused:
            kind = SchedulerMissing if refused.status == UNAUTHORIZED else SchedulerUnreachable
            raise kind(f"the API server does not report its version: {refused}") from refused
        release = re.match(r"v(\d+)\.(\d+)", version)
        if release and (int(release[1]), int(release[2])) < OLDEST:
            raise InvalidRequest(f"the cluster is {version}, and controllers need native sidecars: 1.29 or later")
        if self._settings.queue and KUEUE not in groups(self._client):
            raise InvalidRequest(
                f"queue is {self._settings.queue!r} in [backend.kubernetes], and the cluster has no Kueue: its jobs "
                "would never start. Leave it out, or have Kueue installed"
            )
        levels, warnings, is_passing = {NetworkLevel.HOST}, [], False
        if self._settings.network_policies == "enforced" or (found := self._canary.look()).enforced:
            levels |= ISOLATING
        else:
            is_passing = found.enforced is None  # a canary still runs
            advice = f"; {canary_cure(found)}" if is_passing else ""
            warnings.append(f"{ONLY_HOST}: {found.text}{advice}")
        demands, _ = self._reader.demands()
        return BackendFacts(
            partitions=(PartitionShape(self._client.namespace, is_default=True),),
            network_levels=frozenset(levels),
            version=f"Kubernetes {version}",
            python=self._settings.python,
            controller=("-I", "-m", "ffdl_batch.controller"),
            staging=staging_arguments(self._settings.python),
            pulls_images=True,
            warnings=tuple(warnings),
            is_passing=is_passing,
            cpu_limit=demands.cpu_limit,
            default_storage_bytes=demands.storage_bytes,
        )

    def plan(self, request: LaunchRequest) -> LaunchPlan:
        """See the port."""
        return make_plan(request, self._settings)

    def test_only(self, plan: LaunchPlan) -> str:
        """See :class:`ffdl_batch.ports.capabilities.TrialSubmission`. The API server checks all objects without
        creating them."""
        for thing in plan.objects:
            try:
                self._client.create(placed(thing, self._client.namespace), dry_run=True)
            except Refused as refused:
                raise explain(refused, f"{thing['kind']} {plan.token}") from refused
        where = f"in namespace {self._client.namespace}"
        return f"the API server accepts all {len(plan.objects)} objects {where}; none was created"

    def submit(self, plan: LaunchPlan) -> NativeId:
        """See the port. A second submission of one attempt completes the first."""
        archive = Path(self._root.job(plan.launch.job_id).model_archive)
        if plan.network.level != NetworkLevel.HOST.value and self._settings.network_policies != "enforced":
            refuse_unproved(self._canary.look())
        objects = read_objects(plan.attempt_dir)
        remember(plan.attempt_dir, self._client)
        begin = functools.partial(self._sender.send, objects, plan.attempt_dir, archive)
        self._watcher.put("Job", sent_after_cleanup(begin, self._client, self._watcher, self._synced, self._root))
        return NativeId(plan.token)

    def find(self, token: Token, attempt_dir: AttemptDir) -> frozenset[NativeId]:
        """See the port. Complete a Job that is still suspended because its daemon died."""
        try:
            job = self._client.get("Job", token)
        except Refused as refused:
            raise explain(refused, f"Job {token}") from refused
        if job is None:
            if words := elsewhere(attempt_dir, self._client):
                raise NotNow(words)
            existed = (
                any(marker_files.is_marked(attempt_dir, one) for one in marker_files.ALL)
                or Path(attempt_dir.final).exists()
            )
            return frozenset({NativeId(token)}) if existed else frozenset()
        if not is_released(job) and not job["metadata"].get("deletionTimestamp"):
            archive = Path(self._job_dir(token).model_archive)
            job = self._sender.send(read_objects(attempt_dir), attempt_dir, archive)
        self._watcher.put("Job", job)
        return frozenset({NativeId(token)})

    def observe(self, ids: Collection[NativeId]) -> Mapping[NativeId, Observation]:
        """See the port. The watch has the state, so no request is sent."""
        self._synced()
        pods, refusals, seen = self._watcher.pods_by_token(), self._watcher.refusals(), {}
        workloads, troubles = self._queues.by_owner(), self._watcher.pod_warnings()
        for native in ids:
            token = native.job
            present, gone = pods.get(token, []), list(self._gone.get(token, {}).values())
            lost = self._pods.lost(present)
            if lost and _TOKEN.fullmatch(token):
                self._end_lost(token, present, lost)
            job = self._watcher.job(token)
            known = self._beside(token, job, refusals.get(token, ""), workloads)
            beside = replace(known, pod_warnings=troubles, lost=lost)
            # The pod that ended it may be gone.
            found = observe(job, [*present, *gone] if job is not None and is_finished(job) else present, beside)
            if found is None and (words := self._elsewhere(token)):
                seen[native] = Observation(Phase.UNKNOWN, "Elsewhere", lacks=words)
            if found is not None:
                has_more = self._pods.has_more(job, present, gone)
                still = (
                    job is not None
                    and is_ending(job)
                    and any(not is_over(pod) and pod["metadata"]["name"] not in lost for pod in present)
                )
                seen[native] = self._as_far_as_copied(token, found, has_more=has_more, has_pods=still)
            if found is not None and found.end is EndCause.PREEMPTED and job is not None and is_put_back(job, beside):
                self._remove(token, job, found.reason)
            if job is not None and not is_ending(job) and _TOKEN.fullmatch(token):
                self._judge_images(token, present)
                self._bring_changed_control(token)
        return seen

    def _as_far_as_copied(self, token: str, found: Observation, *, has_more: bool, has_pods: bool) -> Observation:
        """Report an end only when all output of its pods is in the attempt's directory, or the wait for it is over.
        `has_pods`: pods were asked to end and still run. Up to 1.30 a Job is Failed before they have ended."""
        if found.phase is not Phase.ENDED:
            return found
        if not (has_more or has_pods):
            return self._reported(token, found)
        if not has_pods and self._pods.has_waited_enough(token):
            return self._reported(token, found)
        return replace(found, phase=Phase.COMPLETING, end=None, exit_code=None, ended_at=None)

    def _reported(self, token: str, found: Observation) -> Observation:
        """Return the end, and leave a marker file that it was reported if no final record shows it."""
        if _TOKEN.fullmatch(token) and not Path(self._attempt(token).final).exists():
            marker_files.leave(self._attempt(token), marker_files.END_REPORTED)
        return found

    def _beside(
        self, token: str, job: Mapping[str, Any] | None, refusal: str, workloads: Mapping[str, Mapping[str, Any]]
    ) -> Beside:
        if _TOKEN.fullmatch(token) is None:
            return Beside(refusal)
        if job is None or is_finished(job):
            return self._marked(token, Beside(), is_gone=job is None)
        found = Beside(refusal)
        if job.get("spec", {}).get("suspend"):
            began = is_released(job) and Path(self._attempt(token).claim_owner).exists()
            workload = workloads.get(job["metadata"]["uid"])
            preempted = "" if workload is not None else marker_files.read(self._attempt(token), marker_files.PREEMPTED)
            found = Beside(refusal, workload, began=began, preempted=preempted)
        return self._marked(token, found) if is_ending(job) else found

    def _marked(self, token: str, found: Beside, *, is_gone: bool = False) -> Beside:
        """Add what the marker files say about an end that the daemon requested."""
        attempt = self._attempt(token)
        return replace(
            found,
            cancelled=marker_files.is_marked(attempt, marker_files.CANCELLED),
            preempted=marker_files.read(attempt, marker_files.PREEMPTED) if is_gone else found.preempted,
            no_image=marker_files.read(attempt, marker_files.NO_IMAGE),
            node_lost=marker_files.read(attempt, marker_files.NODE_LOST),
        )

    def _remove(self, token: str, job: Mapping[str, Any], why: str) -> None:
        """Delete a suspended Job without pods, so that its queue does not start it again without the data of its
        pods."""
        marker_files.leave(self._attempt(token), marker_files.PREEMPTED, why)
        try:
            self._client.delete("Job", token, str(job["metadata"]["resourceVersion"]))
        except (Refused, SchedulerUnreachable) as error:
            _log.warning("Job %s, which is to end, cannot be deleted: %s; it is tried again", token, error)

    def find_absent(self, ids: Collection[NativeId]) -> Absent:
        """See :class:`ffdl_batch.ports.capabilities.ForgetsJobs`."""
        return Absent(frozenset(ids) - frozenset(self.observe(ids)))

    def signal(self, native_id: NativeId, signal: str) -> None:
        """See the port."""
        name = signal.removeprefix("SIG")
        if f"SIG{name}" not in signals.Signals.__members__:
            raise InvalidRequest(f"{signal!r} is not the name of a signal; give one without SIG, such as URG")
        self._synced()
        self._bring_control(native_id.job)
        self._pods.signal(native_id.job, name)

    def cancel(self, native_id: NativeId) -> None:
        """See the port. Request the end from running controllers, and end the Job after HEARD_S, because kubelet
        updates no annotations of a pod that is being deleted. Its pods then end with their grace."""
        token = native_id.job
        self._synced()
        job, pods = self._watcher.job(token), self._watcher.pods_by_token().get(token, [])
        if job is None and self._elsewhere(token):
            marker_files.leave(self._attempt(token), marker_files.CANCELLED)
        if job is None or is_finished(job):
            return
        asked_s = marker_files.age_s(self._attempt(token), marker_files.CANCELLED)
        if asked_s is not None and asked_s < HEARD_S:
            return
        marker_files.leave(self._attempt(token), marker_files.CANCELLED)
        if asked_s is not None or not any(has_begun(pod) for pod in pods):
            self._finish(token, pods)
            return
        self._bring_control(token)
        self._pods.signal(token, "TERM")
        self._pods.end_later(token, HEARD_S, lambda: is_finished(self._watcher.job(token)))

    def withdraw(self, native_id: NativeId) -> None:
        """See the port. A Job has started if one of its pods has a node. The watch may be behind, so the API server is
        asked, and asked again if the Job's status changes in between."""
        token = native_id.job
        self._synced()
        for _ in range(WITHDRAW_TRIES):
            job = self._client.get("Job", token)
            pods = self._client.list("Pod", {"labelSelector": f"batch.kubernetes.io/job-name={token}"})[0]
            if job is None or any(pod.get("spec", {}).get("nodeName") for pod in pods):
                return
            marker_files.leave(self._attempt(token), marker_files.CANCELLED)
            try:
                if self._client.delete("Job", token, str(job["metadata"]["resourceVersion"])):
                    return
            except Refused as refused:
                raise explain(refused, f"the deletion of Job {token}") from refused

    def close(self) -> None:
        """End the threads and connections."""
        self._watcher.stop()
        self._queues.stop()
        self._canary.stop()
        self._pods.stop()
        self._client.close()

    def _synced(self) -> None:
        self._watcher.start()
        if self._settings.queue:
            self._queues.start()
        self._watcher.await_sync(self._settings.request_timeout_s)
        self._pods.look_for_lost()
        if not self._swept:
            self._swept = self._end_cancelled()

    def _bring_changed_control(self, token: str) -> None:
        attempt = self._attempt(token)
        found = status_of(attempt.control)
        if found is None or self._brought.get(token) == found.st_mtime_ns:
            return
        if token in self._brought or not read_control(attempt).requests_nothing(_number(token)):
            self._bring_control(token)
        self._brought[token] = found.st_mtime_ns  # only now: if it fails, the next observation repeats it

    def _bring_control(self, token: str) -> None:
        if self._watcher.job(token) is None:
            return
        text = find_text(self._attempt(token).control)
        if text:
            self._pods.annotate(token, PodAnnotation.CONTROL, text)

    def _job_dir(self, token: str) -> Any:
        match = _TOKEN.fullmatch(token)
        if match is None:
            raise InvalidRequest(f"{token!r} is not the token of an attempt")
        return self._root.job(match[1])

    def _elsewhere(self, token: str) -> str:
        return elsewhere(self._attempt(token), self._client) if _TOKEN.fullmatch(token) else ""

    def _attempt(self, token: str) -> AttemptDir:
        found: AttemptDir = self._job_dir(token).attempt(_number(token))
        return found


def _number(token: str) -> int:
    """Return the number of the attempt."""
    return int(token.rpartition("-")[2])
