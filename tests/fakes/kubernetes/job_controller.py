"""The Job controller: pods for indexes, what becomes of them, and the Job's status."""

from __future__ import annotations

import time
from datetime import datetime

from tests.fakes.kubernetes.conditions import set_condition
from tests.fakes.kubernetes.job_pods import TRACKING, failure_rule, index_of, job_pod, packed
from tests.fakes.kubernetes.kinds import JOBS, PODS, Obj, is_true, key_of, name_of, namespace_of
from tests.fakes.kubernetes.loops import WorkQueue
from tests.fakes.kubernetes.refusals import Refusal
from tests.fakes.kubernetes.registry import Deletion, Registry
from tests.fakes.kubernetes.store import Change, now

Key = tuple[str, str]
_SOURCE = "job-controller"


class JobController:
    """Looks at a Job when it or one of its pods has changed. `retry_s` is how soon a refused pod is tried again."""

    def __init__(self, registry: Registry, retry_s: float) -> None:
        self._registry, self._retry_s = registry, retry_s
        self.queue: WorkQueue[Key] = WorkQueue(self._sync)
        self._pods: dict[str, set[Key]] = {}
        self._held: dict[Key, float] = {}
        registry.store.listeners.append(self._hear)

    def _hear(self, change: Change) -> None:
        if change.kind is JOBS:
            self.queue.add(key_of(change.obj))
        elif change.kind is PODS:
            owner = next(
                (one for one in change.obj["metadata"].get("ownerReferences") or [] if one.get("controller")), None
            )
            if owner is None or owner["kind"] != "Job":
                return
            pods = self._pods.setdefault(owner["uid"], set())
            if change.what == "DELETED":
                pods.discard(key_of(change.obj))
            else:
                pods.add(key_of(change.obj))
            self.queue.add((namespace_of(change.obj), owner["name"]))
            self._free_orphan(change.obj, owner)

    def _free_orphan(self, pod: Obj, owner: Obj) -> None:
        """A pod whose Job is gone is tracked no longer."""
        job = self._registry.store.get(JOBS, namespace_of(pod), owner["name"])
        if job is None or job["metadata"]["uid"] != owner["uid"]:
            self._untrack(pod)

    def _sync(self, key: Key) -> None:
        job = self._registry.store.get(JOBS, *key)
        if job is None:
            self._forget(key)
            return
        if job["spec"].get("managedBy", "kubernetes.io/job-controller") != "kubernetes.io/job-controller":
            return
        pods = self._of(job)
        if is_true(job, "Complete") or is_true(job, "Failed"):
            self._finished(job, pods)
        elif job["metadata"].get("deletionTimestamp"):
            for pod in pods:
                if _over(pod) or pod["metadata"].get("deletionTimestamp"):
                    self._untrack(pod)
        else:
            self._advance(job, pods)

    def _forget(self, key: Key) -> None:
        for pods in list(self._pods.values()):
            for one in list(pods):
                pod = self._registry.store.get(PODS, *one)
                if pod is not None and any(
                    owner["kind"] == "Job" and (namespace_of(pod), owner["name"]) == key
                    for owner in pod["metadata"].get("ownerReferences") or []
                ):
                    self._untrack(pod)

    def _of(self, job: Obj) -> list[Obj]:
        keys = sorted(self._pods.get(job["metadata"]["uid"], ()))
        return [pod for key in keys if (pod := self._registry.store.get(PODS, *key)) is not None]

    def _finished(self, job: Obj, pods: list[Obj]) -> None:
        for pod in pods:
            self._untrack(pod)
        seconds = job["spec"].get("ttlSecondsAfterFinished")
        if seconds is None or job["metadata"].get("deletionTimestamp"):
            return
        ended = next(one for one in job["status"]["conditions"] if one["type"] in ("Complete", "Failed"))
        left = _age(ended["lastTransitionTime"]) - seconds
        if left >= 0:
            self._registry.delete(JOBS, *key_of(job), Deletion(propagation="Foreground"))
        else:
            self.queue.later(key_of(job), -left + 0.05)

    def _advance(self, job: Obj, pods: list[Obj]) -> None:
        spec = job["spec"]
        ended = [pod for pod in pods if _over(pod) and TRACKING in (pod["metadata"].get("finalizers") or [])]
        verdict = self._verdict(job, ended)
        job = self._count(job, ended) or job
        for pod in ended:
            self._untrack(pod)
        pods = self._of(job)
        active = [pod for pod in pods if not _over(pod) and not pod["metadata"].get("deletionTimestamp")]
        if verdict[0] or is_true(job, "FailureTarget") or is_true(job, "SuccessCriteriaMet"):
            self._end(job, verdict, active, pods)
        elif spec.get("suspend"):
            self._suspend(job, active)
        else:
            self._run(job, active, pods)
        self._show(key_of(job))

    def _verdict(self, job: Obj, ended: list[Obj]) -> tuple[str, str, str]:
        """(condition, reason, message) where the Job's end is decided; empty strings are none."""
        spec, status = job["spec"], job.get("status", {})
        failures = int(status.get("failed", 0))
        for pod in ended:
            if pod["status"]["phase"] != "Failed":
                continue
            action, message = failure_rule(job, pod)
            if action == "FailJob":
                return "FailureTarget", "PodFailurePolicy", message
            if action != "Ignore":
                failures += 1
        if failures > spec["backoffLimit"]:
            return "FailureTarget", "BackoffLimitExceeded", "Job has reached the specified backoff limit"
        limit, started = spec.get("activeDeadlineSeconds"), status.get("startTime")
        if limit is not None and started and not spec.get("suspend"):
            left = limit - _age(started)
            if left <= 0:
                return "FailureTarget", "DeadlineExceeded", "Job was active longer than specified deadline"
            self.queue.later(key_of(job), left + 0.05)
        done = int(status.get("succeeded", 0)) + sum(pod["status"]["phase"] == "Succeeded" for pod in ended)
        if "completions" in spec and done >= spec["completions"]:
            return "SuccessCriteriaMet", "CompletionsReached", "Reached expected number of succeeded pods"
        return _NOTHING

    def _count(self, job: Obj, ended: list[Obj]) -> Obj | None:
        def count(one: Obj) -> None:
            status = one.setdefault("status", {})
            indexes = set(_unpacked(status.get("completedIndexes", "")))
            for pod in ended:
                good = pod["status"]["phase"] == "Succeeded"
                if not good and failure_rule(job, pod)[0] == "Ignore":
                    continue
                status["succeeded" if good else "failed"] = int(status.get("succeeded" if good else "failed", 0)) + 1
                if good and job["spec"]["completionMode"] == "Indexed":
                    indexes.add(index_of(pod))
            if indexes:
                status["completedIndexes"] = packed(indexes)

        return self._registry.change(JOBS, *key_of(job), count) if ended else None

    def _end(self, job: Obj, verdict: tuple[str, str, str], active: list[Obj], pods: list[Obj]) -> None:
        """First the decision, then, when no pod runs any longer, the end."""
        if not is_true(job, "FailureTarget") and not is_true(job, "SuccessCriteriaMet"):
            condition, reason, message = verdict
            self._registry.change(
                JOBS, *key_of(job), lambda one: set_condition(one, condition, "True", reason, message)
            )
            job = self._registry.get(JOBS, *key_of(job))
        for pod in active:
            self._registry.delete(PODS, *key_of(pod))
        if any(not _over(pod) for pod in self._of(job)):
            return
        failed = is_true(job, "FailureTarget")
        target = next(
            one for one in job["status"]["conditions"] if one["type"] in ("FailureTarget", "SuccessCriteriaMet")
        )

        def finish(one: Obj) -> None:
            name = "Failed" if failed else "Complete"
            set_condition(one, name, "True", target.get("reason", ""), target.get("message", ""))
            if not failed:
                one["status"]["completionTime"] = now()

        self._registry.change(JOBS, *key_of(job), finish)
        if failed:
            self._registry.tell(JOBS, job, target["reason"], target["message"], _SOURCE, warning=True)
        else:
            self._registry.tell(JOBS, job, "Completed", "Job completed", _SOURCE)

    def _suspend(self, job: Obj, active: list[Obj]) -> None:
        for pod in active:  # they count neither as failed nor as done: they are tracked no longer
            self._untrack(pod)
            self._registry.delete(PODS, *key_of(pod))
        if is_true(job, "Suspended"):
            return

        def suspend(one: Obj) -> None:
            set_condition(one, "Suspended", "True", "JobSuspended", "Job suspended")
            one["status"].pop("startTime", None)

        self._registry.change(JOBS, *key_of(job), suspend)
        self._registry.tell(JOBS, job, "Suspended", "Job suspended", _SOURCE)

    def _run(self, job: Obj, active: list[Obj], pods: list[Obj]) -> None:
        key = key_of(job)
        if is_true(job, "Suspended"):
            self._registry.change(
                JOBS, *key, lambda one: set_condition(one, "Suspended", "False", "JobResumed", "Job resumed")
            )
            self._registry.tell(JOBS, job, "Resumed", "Job resumed", _SOURCE)
        if not job.get("status", {}).get("startTime"):
            self._registry.change(JOBS, *key, lambda one: one["status"].update(startTime=now()))
            if "activeDeadlineSeconds" in job["spec"]:
                self.queue.later(key, job["spec"]["activeDeadlineSeconds"] + 0.05)
        if self._held.get(key, 0) > time.monotonic():
            return
        for index in self._missing(job, active, pods):
            try:
                made = self._registry.create(PODS, namespace_of(job), job_pod(job, index))
            except Refusal as refusal:
                self._registry.tell(
                    JOBS, job, "FailedCreate", f"Error creating: {refusal.message}", _SOURCE, warning=True
                )
                self._held[key] = time.monotonic() + self._retry_s
                self.queue.later(key, self._retry_s + 0.01)
                return
            self._registry.tell(JOBS, job, "SuccessfulCreate", f"Created pod: {name_of(made)}", _SOURCE)

    def _missing(self, job: Obj, active: list[Obj], pods: list[Obj]) -> list[int | None]:
        spec = job["spec"]
        waited = spec["podReplacementPolicy"] == "Failed"
        ending = [pod for pod in pods if not _over(pod) and pod["metadata"].get("deletionTimestamp")]
        taken = active + (ending if waited else [])
        room = spec["parallelism"] - len(taken)
        if spec["completionMode"] == "Indexed":
            done = set(_unpacked(job.get("status", {}).get("completedIndexes", "")))
            done |= {index_of(pod) for pod in taken}
            left_out: list[int | None] = [index for index in range(spec["completions"]) if index not in done]
            return left_out[: max(room, 0)]
        left = spec.get("completions", spec["parallelism"]) - int(job.get("status", {}).get("succeeded", 0))
        return [None] * max(min(room, left - len(taken)), 0)

    def _show(self, key: Key) -> None:
        job = self._registry.store.get(JOBS, *key)
        if job is None:
            return
        pods = [pod for pod in self._of(job) if not _over(pod)]
        ending = [pod for pod in pods if pod["metadata"].get("deletionTimestamp")]
        active = [pod for pod in pods if not pod["metadata"].get("deletionTimestamp")]

        def show(one: Obj) -> None:
            status = one["status"]
            for name, value in (("active", len(active)),):
                if value:
                    status[name] = value
                else:
                    status.pop(name, None)
            status["ready"] = sum(is_true(pod, "Ready") for pod in active)
            status["terminating"] = len(ending)
            status.setdefault("uncountedTerminatedPods", {})

        self._registry.change(JOBS, *key, show)

    def _untrack(self, pod: Obj) -> None:
        if TRACKING in (pod["metadata"].get("finalizers") or []):
            self._registry.change(PODS, *key_of(pod), lambda one: one["metadata"]["finalizers"].remove(TRACKING))


_NOTHING = ("", "", "")


def _over(pod: Obj) -> bool:
    return pod["status"].get("phase") in ("Succeeded", "Failed")


def _age(text: str) -> float:
    return time.time() - datetime.fromisoformat(text).timestamp()


def _unpacked(text: str) -> list[int]:
    found: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found
