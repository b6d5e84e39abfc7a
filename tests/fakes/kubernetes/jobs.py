"""The Job controller: pods for indexes, what becomes of them, and the Job's status."""

from __future__ import annotations

import time
from datetime import datetime

from tests.fakes.kubernetes.kinds import JOBS, PODS, Key, Obj
from tests.fakes.kubernetes.objects import (
    annotations_of,
    clone,
    condition_of,
    containers_of,
    finalizers_of,
    is_deleted,
    is_over,
    is_true,
    key_of,
    name_of,
    namespace_of,
    now,
    owners_of,
    set_condition,
)
from tests.fakes.kubernetes.refusals import Refusal
from tests.fakes.kubernetes.registry import Deletion, Registry, random_suffix
from tests.fakes.kubernetes.store import Change, WorkQueue

TRACKING = "batch.kubernetes.io/job-tracking"
INDEX = "batch.kubernetes.io/job-completion-index"
RETRY_S = 1.0
"""How soon a refused pod is tried again."""
Verdict = tuple[str, str, str]
"""Condition, reason and message of a decided end."""


class JobController:
    """Looks at a Job when it or one of its pods has changed."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self.queue: WorkQueue[Key] = WorkQueue(self._sync)
        self._pods: dict[str, set[Key]] = {}
        self._done: dict[str, set[int]] = {}
        """Uid of a Job -> indexes that have succeeded."""
        self._held: dict[Key, float] = {}
        registry.store.listeners.append(self._hear)

    def _hear(self, change: Change) -> None:
        if change.kind is JOBS:
            self.queue.add(key_of(change.obj))
            if change.what == "DELETED":
                for pod in self._of(change.obj):
                    self._registry.unhold(PODS, pod, TRACKING)
        elif change.kind is PODS:
            for owner in owners_of(change.obj):
                pods = self._pods.setdefault(owner["uid"], set())
                if change.what == "DELETED":
                    pods.discard(key_of(change.obj))
                else:
                    pods.add(key_of(change.obj))
                self.queue.add((namespace_of(change.obj), owner["name"]))

    def _of(self, job: Obj) -> list[Obj]:
        keys = sorted(self._pods.get(job["metadata"]["uid"], ()))
        return [pod for key in keys if (pod := self._registry.store.get(PODS, *key)) is not None]

    def _sync(self, key: Key) -> None:
        job = self._registry.store.get(JOBS, *key)
        if job is None:
            return
        pods = self._of(job)
        if is_true(job, "Complete") or is_true(job, "Failed") or is_deleted(job):
            self._finished(job, pods)
        else:
            self._advance(job, pods)

    def _finished(self, job: Obj, pods: list[Obj]) -> None:
        for pod in pods:
            self._registry.unhold(PODS, pod, TRACKING)
        seconds = job["spec"].get("ttlSecondsAfterFinished")
        if seconds is None or is_deleted(job):
            return
        ended = next(one for one in job["status"]["conditions"] if one["type"] in ("Complete", "Failed"))
        left = seconds - _age(ended["lastTransitionTime"])
        if left <= 0:
            self._registry.delete(JOBS, *key_of(job), Deletion(foreground=True))
        else:
            self.queue.later(key_of(job), left + 0.05)

    def _advance(self, job: Obj, pods: list[Obj]) -> None:
        ended = [pod for pod in pods if is_over(pod) and TRACKING in finalizers_of(pod)]
        done = self._done.setdefault(job["metadata"]["uid"], set())
        done |= {_index_of(pod) for pod in ended if pod["status"]["phase"] == "Succeeded"}
        indexes = range(job["spec"]["completions"])  # pods of other indexes count no more
        done &= set(indexes)
        rules = [
            _failure_rule(job, pod) for pod in ended if pod["status"]["phase"] == "Failed" and _index_of(pod) in indexes
        ]
        failed = job["status"].get("failed", 0) + sum(action != "Ignore" for action, _ in rules)
        self._registry.change(JOBS, *key_of(job), lambda one: one["status"].update(succeeded=len(done), failed=failed))
        for pod in ended:
            self._registry.unhold(PODS, pod, TRACKING)
        job, pods = self._registry.get(JOBS, *key_of(job)), self._of(job)
        active = [pod for pod in pods if not is_over(pod) and not is_deleted(pod)]
        message = next((message for action, message in rules if action == "FailJob"), None)
        verdict = ("FailureTarget", "PodFailurePolicy", message) if message else self._verdict(job)
        if verdict or is_true(job, "FailureTarget") or is_true(job, "SuccessCriteriaMet"):
            self._end(job, verdict, active)
        elif job["spec"]["suspend"]:
            self._suspend(job, active)
        else:
            self._run(job, pods, done)

    def _verdict(self, job: Obj) -> Verdict | None:
        spec, status = job["spec"], job["status"]
        if status["failed"] > spec["backoffLimit"]:
            return "FailureTarget", "BackoffLimitExceeded", "Job has reached the specified backoff limit"
        if "activeDeadlineSeconds" in spec and "startTime" in status:
            left = spec["activeDeadlineSeconds"] - _age(status["startTime"])
            if left <= 0:
                return "FailureTarget", "DeadlineExceeded", "Job was active longer than specified deadline"
            self.queue.later(key_of(job), left + 0.05)
        if status["succeeded"] >= spec["completions"]:
            return "SuccessCriteriaMet", "CompletionsReached", "Reached expected number of succeeded pods"
        return None

    def _end(self, job: Obj, verdict: Verdict | None, active: list[Obj]) -> None:
        """First write the decision, then, when no pod runs any longer, the end."""
        if verdict is not None and not is_true(job, "FailureTarget") and not is_true(job, "SuccessCriteriaMet"):
            name, reason, message = verdict
            self._registry.change(JOBS, *key_of(job), lambda one: set_condition(one, name, "True", reason, message))
            job = self._registry.get(JOBS, *key_of(job))
        for pod in active:
            self._registry.delete(PODS, *key_of(pod))
        if any(not is_over(pod) for pod in self._of(job)):
            return
        name = "Failed" if is_true(job, "FailureTarget") else "Complete"
        decided = condition_of(job, "FailureTarget") or condition_of(job, "SuccessCriteriaMet") or {}
        reason, message = decided["reason"], decided["message"]
        self._registry.change(JOBS, *key_of(job), lambda one: set_condition(one, name, "True", reason, message))

    def _suspend(self, job: Obj, active: list[Obj]) -> None:
        for pod in active:  # they count neither as failed nor as done: they are tracked no longer
            self._registry.unhold(PODS, pod, TRACKING)
            self._registry.delete(PODS, *key_of(pod))

        def suspend(one: Obj) -> None:
            set_condition(one, "Suspended", "True", "JobSuspended", "Job suspended")
            one["status"].pop("startTime", None)

        self._registry.change(JOBS, *key_of(job), suspend)

    def _run(self, job: Obj, pods: list[Obj], done: set[int]) -> None:
        key, spec = key_of(job), job["spec"]

        def begin(one: Obj) -> None:
            if is_true(one, "Suspended"):
                set_condition(one, "Suspended", "False", "JobResumed", "Job resumed")
            one["status"].setdefault("startTime", now())

        self._registry.change(JOBS, *key, begin)
        if self._held.get(key, 0) > time.monotonic():
            return
        for pod in pods:
            if _index_of(pod) >= spec["completions"] and not is_over(pod) and not is_deleted(pod):
                self._registry.delete(PODS, *key_of(pod))
        waits = spec["podReplacementPolicy"] == "Failed"
        taken = {_index_of(pod) for pod in pods if not is_over(pod) and (waits or not is_deleted(pod))}
        missing = [index for index in range(spec["completions"]) if index not in done | taken]
        for index in missing[: max(spec["parallelism"] - len(taken), 0)]:
            try:
                self._registry.create(PODS, namespace_of(job), _pod(job, index))
            except Refusal as refusal:
                self._registry.tell(JOBS, job, "FailedCreate", f"Error creating: {refusal.message}")
                self._held[key] = time.monotonic() + RETRY_S
                self.queue.later(key, RETRY_S + 0.01)
                return


def _pod(job: Obj, index: int) -> Obj:
    pod: Obj = {"apiVersion": "v1", "kind": "Pod", **clone(job["spec"]["template"])}
    metadata, name, ending = pod["metadata"], name_of(job), f"-{index}-"
    metadata["name"] = f"{name[: 63 - len(ending) - 5]}{ending}{random_suffix()}"
    metadata["namespace"], metadata["finalizers"] = namespace_of(job), [*finalizers_of(pod), TRACKING]
    metadata["ownerReferences"] = [{
        "apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": job["metadata"]["uid"], "controller": True,
        "blockOwnerDeletion": True,
    }]  # fmt: skip
    for part in ("annotations", "labels"):
        metadata.setdefault(part, {})[INDEX] = str(index)
    pod["spec"].setdefault("hostname", f"{name}-{index}")
    reference = {"fieldRef": {"fieldPath": f"metadata.labels['{INDEX}']"}}
    for container in containers_of(pod["spec"]):
        container.setdefault("env", []).append({"name": "JOB_COMPLETION_INDEX", "valueFrom": reference})
    return pod


def _index_of(pod: Obj) -> int:
    return int(annotations_of(pod).get(INDEX, -1))


def _failure_rule(job: Obj, pod: Obj) -> tuple[str, str]:
    """Return what the failure policy says of a failed pod: (action, message). The first rule that matches decides."""
    for at, rule in enumerate((job["spec"].get("podFailurePolicy") or {}).get("rules") or []):
        for pattern in rule["onPodConditions"]:
            for condition in pod["status"].get("conditions") or []:
                if (condition["type"], condition["status"]) == (pattern["type"], pattern["status"]):
                    where, what = f"{namespace_of(pod)}/{name_of(pod)}", f"matching {rule['action']} rule at index {at}"
                    return rule["action"], f"Pod {where} has condition {condition['type']} {what}"
    return "Count", ""


def _age(text: str) -> float:
    return time.time() - datetime.fromisoformat(text).timestamp()
