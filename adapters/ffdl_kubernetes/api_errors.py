"""What an answer of the API server means for a request: whose it is to change, and what. Pure.

Sources of the wordings: Kubernetes' RBAC and admission (ResourceQuota, Pod Security, webhooks, policies).
"""

from __future__ import annotations

import re

from ffdl_batch.domain.scheduler_errors import InvalidRequest, NotTaken, SchedulerError, SchedulerMissing, TooMany
from ffdl_kubernetes.client import Refused
from ffdl_kubernetes.quantities import QUOTA, amounts, never_given

_BY_RULES = re.compile(r"denied the request|denied request|violates PodSecurity")
_JOBS = "count/jobs.batch"
_NO_NAMESPACE = re.compile(r'namespaces "(?P<name>[^"]+)" not found')


class TooManyJobs(TooMany):
    """A quota of Jobs is used up: those that have ended count as long as they are kept."""


def explain(refused: Refused, what: str) -> SchedulerError:
    """Return the port's error for a refusal. `what` names the request."""
    said = f"{what} was refused ({refused.status} {refused.reason}): {refused}"
    if refused.status == 401:
        return SchedulerMissing(said)
    if refused.status == 403:
        return _forbidden(str(refused), said)
    if refused.status == 413:
        return InvalidRequest(f"{said}; it is larger than the cluster takes: leave data out of the model")
    if refused.status in (400, 422):
        return InvalidRequest(
            f"{said}; ffdl-submit --dry-run shows what was sent, and the field that is named is wrong"
        )
    if refused.status == 404 and (missing := _NO_NAMESPACE.search(str(refused))):
        cure = f"have it made (ffdl-admin tenant create {missing['name']}), or name another in [backend.kubernetes]"
        return NotTaken(f"{said}; there is no namespace {missing['name']}: {cure}")
    return NotTaken(said)


def _forbidden(message: str, said: str) -> SchedulerError:
    if "exceeded quota" in message:
        match = QUOTA.search(message)
        if match is None:
            return TooMany(said)
        if never_given(match):
            return TooMany(
                f"no such Job is taken: quota {match['name']} of the namespace never has so much ({match['asked']} is "
                f"asked for, of {match['limit']}); have it made larger"
            )
        used_up = (
            f"no further Job is taken now: quota {match['name']} of the namespace is used up ({match['used']} of "
            f"{match['limit']}, and {match['asked']} is asked for); it is tried again"
        )
        if _JOBS in amounts(match["asked"]):
            return TooManyJobs(f"{used_up} when Jobs of the namespace are gone: one that has ended counts until then")
        return TooMany(f"{used_up} when others of the namespace end")
    if _BY_RULES.search(message):
        cure = "change in the manifest or in [backend.kubernetes] what they name, or ask who runs the cluster"
        return InvalidRequest(f"{said}; these are rules of the cluster's own: {cure}")
    if "being terminated" in message:
        return NotTaken(f"{said}; the namespace is being deleted: name another in [backend.kubernetes]")
    return NotTaken(f"{said}; the daemon needs the permissions of its Role in this namespace")
