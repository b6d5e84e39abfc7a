"""Answers of the API server in words, each with what to do; who is at fault decides whether it is tried again."""

from __future__ import annotations

import pytest

from ffdl_batch.domain.scheduler_errors import InvalidRequest, NotTaken, SchedulerError, SchedulerMissing, TooMany
from ffdl_kubernetes.api_errors import TooManyJobs, explain
from ffdl_kubernetes.client import Refused

QUOTA = (
    'jobs.batch "t-1" is forbidden: exceeded quota: team, requested: count/jobs.batch=1, used: count/jobs.batch=4, '
    "limited: count/jobs.batch=4"
)


@pytest.mark.parametrize(("status", "message", "kind", "words"), [
    (401, "Unauthorized; log in again", SchedulerMissing, "log in again"),
    (403, QUOTA, TooManyJobs, "when Jobs of the namespace are gone: one that has ended counts until then"),
    (403, QUOTA.replace("jobs.batch", "configmaps"), TooMany, "it is tried again when others of the namespace end"),
    (403, QUOTA, TooManyJobs, "quota team of the namespace is used up (count/jobs.batch=4 of count/jobs.batch=4,"),
    (403, QUOTA.replace("=4", "=0"), TooMany, "never has so much (count/jobs.batch=1 is asked for, of count/jobs"),
    (403, "exceeded quota in words of another release", TooMany, "exceeded quota in words"),
    (403, 'admission webhook "p.example.com" denied the request: no latest', InvalidRequest, "or ask who runs"),
    (403, "ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no", InvalidRequest, "the cluster's own"),
    (403, 'jobs.batch "t-1" is forbidden: violates PodSecurity "restricted:latest"', InvalidRequest, "own: change"),
    (403, 'unable to create new content in namespace a because it is being terminated', NotTaken, "name another"),
    (403, 'User "bob" cannot create resource "jobs"', NotTaken, "permissions of its Role"),
    (404, 'namespaces "team-b" not found', NotTaken, "ffdl-admin tenant create team-b"),
    (404, "the server could not find the requested resource", NotTaken, "404"),
    (413, "Request entity too large", InvalidRequest, "leave data out of the model"),
    (422, "spec.template: Invalid value", InvalidRequest, "ffdl-submit --dry-run shows"),
])  # fmt: skip
def test_api_refusal_maps_to_error_type_with_cure(
    status: int, message: str, kind: type[SchedulerError], words: str
) -> None:
    found = explain(Refused(status, "Reason", message), "Job t-1")
    assert type(found) is kind
    assert words in str(found)
    # Others that wait for the same quota say it too.
    assert str(found).startswith("no " if "quota team" in str(found) else "Job t-1 ")
