"""Ask the API server for the groups of its API, and for the permissions of the user."""

from __future__ import annotations

from ffdl_kubernetes.client import ClusterClient


def groups(client: ClusterClient) -> dict[str, tuple[str, ...]]:
    """Return the versions of each API group, the preferred one first. Raises Refused, SchedulerUnreachable."""
    found = {}
    for group in client.raw("GET", "apis").get("groups") or ():
        first = (group.get("preferredVersion") or {}).get("version", "")
        versions = [one["version"] for one in group.get("versions") or ()]
        found[group["name"]] = tuple(sorted(versions, key=lambda one: one != first))
    return found


def may(client: ClusterClient, verb: str, group: str, resource: str, *, everywhere: bool = False) -> bool:
    """Return whether the user has a permission in the client's namespace, or in the whole cluster. A subresource of
    `resource` follows a slash.

    Raises Refused, SchedulerUnreachable.
    """
    plural, _, part = resource.partition("/")
    asked = {
        "namespace": "" if everywhere else client.namespace,
        "verb": verb,
        "group": group,
        "resource": plural,
        "subresource": part,
    }
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": asked},
    }
    found = client.raw("POST", "apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review)
    return bool(found["status"].get("allowed"))
