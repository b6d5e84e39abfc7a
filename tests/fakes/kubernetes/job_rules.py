"""What a Job must fulfil, and what of it may change."""

from __future__ import annotations

from tests.fakes.kubernetes.kinds import Obj, clone, name_of
from tests.fakes.kubernetes.names import DNS_LABEL, check_labels
from tests.fakes.kubernetes.pod_rules import check_pod_spec
from tests.fakes.kubernetes.refusals import Cause, required, unsupported, wrong

_POSITIVE = ("parallelism", "completions", "backoffLimit", "activeDeadlineSeconds", "ttlSecondsAfterFinished")
_FIXED = ("selector", "completionMode", "podFailurePolicy", "backoffLimitPerIndex", "podReplacementPolicy", "managedBy",
          "successPolicy", "manualSelector")  # fmt: skip
_ACTIONS = ("Count", "FailIndex", "FailJob", "Ignore")
_DIRECTIVES = ("nodeSelector", "affinity", "tolerations", "schedulingGates")


def check_job(job: Obj) -> list[Cause]:
    """A new Job."""
    spec, causes = job["spec"], []
    for key in _POSITIVE:
        if key in spec and int(spec[key]) < 0:
            causes.append(wrong(f"spec.{key}", spec[key], "must be greater than or equal to 0"))
    if spec["completionMode"] == "Indexed":
        causes += _indexed(job)
    elif spec["completionMode"] != "NonIndexed":
        causes.append(unsupported("spec.completionMode", spec["completionMode"], ("NonIndexed", "Indexed")))
    template = spec["template"]
    restart = template["spec"]["restartPolicy"]
    if restart == "Always":
        causes.append(
            Cause(
                "spec.template.spec.restartPolicy",
                "FieldValueRequired",
                'Required value: valid values: "OnFailure", "Never"',
            )
        )
    elif restart not in ("OnFailure", "Never"):
        causes.append(unsupported("spec.template.spec.restartPolicy", restart, ("OnFailure", "Never")))
    if "podFailurePolicy" in spec:
        causes += _failure_policy(spec)
    causes += check_labels(template["metadata"].get("labels") or {}, "spec.template.labels")
    return causes + check_pod_spec(template["spec"], "spec.template.spec")


def _indexed(job: Obj) -> list[Cause]:
    spec, name = job["spec"], name_of(job)
    if "completions" not in spec:
        return [required("spec.completions", "when completion mode is Indexed")]
    longest = f"{name}-{max(int(spec['completions']) - 1, 0)}"
    if len(longest) > 63 or not DNS_LABEL[0].match(longest):
        why = "must be no more than 63 characters" if len(longest) > 63 else DNS_LABEL[1]
        return [wrong("metadata.name", name, f"will not able to create pod with invalid DNS label {longest!r}: {why}")]
    return []


def _failure_policy(spec: Obj) -> list[Cause]:
    causes, field = [], "spec.podFailurePolicy"
    if spec["template"]["spec"]["restartPolicy"] != "Never":
        causes.append(
            wrong(
                "spec.template.spec.restartPolicy",
                spec["template"]["spec"]["restartPolicy"],
                'only "Never" is supported when podFailurePolicy is specified',
            )
        )
    if spec["podReplacementPolicy"] != "Failed":
        causes.append(unsupported("spec.podReplacementPolicy", spec["podReplacementPolicy"], ("Failed",)))
    rules = spec["podFailurePolicy"].get("rules") or []
    if len(rules) > 20:
        causes.append(
            Cause(f"{field}.rules", "FieldValueTooMany", f"Too many: {len(rules)}: must have at most 20 items")
        )
    for at, rule in enumerate(rules):
        where = f"{field}.rules[{at}]"
        if rule.get("action") not in _ACTIONS:
            causes.append(unsupported(f"{where}.action", rule.get("action"), _ACTIONS))
        if rule.get("action") == "FailIndex" and "backoffLimitPerIndex" not in spec:
            causes.append(wrong(f"{where}.action", "FailIndex", "requires the backoffLimitPerIndex to be set"))
        if not rule.get("onPodConditions"):
            causes.append(wrong(where, rule, "specifying one of OnExitCodes and OnPodConditions is required"))
        if "onExitCodes" in rule:
            causes.append(wrong(f"{where}.onExitCodes", rule["onExitCodes"], "the tests' cluster does not know it"))
    return causes


def check_job_change(before: Obj, job: Obj) -> list[Cause]:
    """The next version of a Job."""
    old, new = before["spec"], job["spec"]
    causes = [
        wrong(f"spec.{key}", _shown(new.get(key)), "field is immutable")
        for key in _FIXED
        if old.get(key) != new.get(key)
    ]
    if old.get("completions") != new.get("completions"):
        elastic = new["completionMode"] == "Indexed" and new.get("completions") == new["parallelism"]
        if not elastic:
            causes.append(wrong("spec.completions", _shown(new.get("completions")), "field is immutable"))
    if _comparable(before, old["template"]) != _comparable(before, new["template"]):
        causes.append(wrong("spec.template", _shown(new["template"]), "field is immutable"))
    return causes


def _comparable(before: Obj, template: Obj) -> Obj:
    """The template without what may change now: while a Job is suspended and never began, its scheduling directives."""
    found: Obj = clone(template)
    if before["spec"].get("suspend") and not before.get("status", {}).get("startTime"):
        for key in _DIRECTIVES:
            found["spec"].pop(key, None)
        found["metadata"].pop("labels", None)
        found["metadata"].pop("annotations", None)
    return found


def _shown(value: object) -> object:
    return "core.PodTemplateSpec{...}" if isinstance(value, dict) else value
