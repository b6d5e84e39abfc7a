"""Send requests with plain objects to the API server.

lightkube reads the kubeconfig (contexts, certificates, tokens, exec plugins, the service account of a pod) and
authenticates. The objects are plain, so that a dry run prints what is sent. The libraries are imported on first use.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ffdl_batch.domain.scheduler_errors import NotTaken, SchedulerMissing, SchedulerUnreachable, SubmissionUncertain
from ffdl_batch.host.backoff import growing_pause
from ffdl_kubernetes.connection import load_config, parameters_of, require_library
from ffdl_kubernetes.settings import KubernetesSettings

if TYPE_CHECKING:
    import httpx2
    from lightkube.config.kubeconfig import SingleConfig

Plain = dict[str, Any]

PATHS = {
    "Job": ("apis/batch/v1", "jobs"),
    "Pod": ("api/v1", "pods"),
    "ConfigMap": ("api/v1", "configmaps"),
    "Secret": ("api/v1", "secrets"),
    "Service": ("api/v1", "services"),
    "Event": ("api/v1", "events"),
    "NetworkPolicy": ("apis/networking.k8s.io/v1", "networkpolicies"),
    "Namespace": ("api/v1", "namespaces"),
    "ResourceQuota": ("api/v1", "resourcequotas"),
    "LimitRange": ("api/v1", "limitranges"),
    "ServiceAccount": ("api/v1", "serviceaccounts"),
    "Role": ("apis/rbac.authorization.k8s.io/v1", "roles"),
    "RoleBinding": ("apis/rbac.authorization.k8s.io/v1", "rolebindings"),
    "ClusterRole": ("apis/rbac.authorization.k8s.io/v1", "clusterroles"),
    "ClusterRoleBinding": ("apis/rbac.authorization.k8s.io/v1", "clusterrolebindings"),
}
"""Group and version, and name in paths, by kind."""
_OF_THE_CLUSTER = frozenset({"Namespace", "ClusterRole", "ClusterRoleBinding"})
"""Kinds that are in no namespace."""
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
"""The patch that can remove one item of a list."""
PAGE = 500
"""Objects in one page of a list, as for kubectl."""
UNAUTHORIZED, FORBIDDEN = 401, 403
TRIES = 4
PAUSE_S = 0.75
LONGEST_PAUSE_S = 10.0
_ALL: Mapping[str, str] = MappingProxyType({})
TAKEN = "TAKEN"
"""The first event of a watch. It does not come from the API server."""


class Refused(Exception):
    """The API server refused a request: HTTP status, reason and message of its answer."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message or f"{status} {reason}")
        self.status, self.reason = status, reason


class Expired(Exception):
    """A watch cannot continue from its version (HTTP 410). The caller has to list again."""


class ClusterClient:
    """A client for one namespace of one cluster. It connects at the first request. For one thread at a time."""

    def __init__(self, settings: KubernetesSettings) -> None:
        self._settings = settings
        self._config: SingleConfig | None = None
        self._http: httpx2.Client | None = None
        self._pause: Callable[[float], None] = time.sleep
        self.paths = dict(PATHS)

    @property
    def config(self) -> SingleConfig:
        """The chosen context. Raises SchedulerMissing with file and context."""
        if self._config is None:
            self._config = load_config(self._settings)
        return self._config

    @property
    def namespace(self) -> str:
        """The namespace of the jobs."""
        return self._settings.namespace or self.config.namespace

    @property
    def _client(self) -> httpx2.Client:
        if self._http is None:
            require_library()
            import httpx2

            try:
                parameters = parameters_of(self.config, self._settings.request_timeout_s)
            except SchedulerMissing:
                self._config = None  # the file may be corrected meanwhile
                raise
            self._http = httpx2.Client(**parameters)
        return self._http

    def close(self) -> None:
        """Close its connections."""
        if self._http is not None:
            self._http.close()
            self._http = None

    # ----------------------------------------------------------------------------------------------- requests

    def version(self) -> str:
        """Return the version of the server, such as ``v1.36.1``."""
        return str(self._ask("GET", "version").get("gitVersion", ""))

    def raw(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Plain:
        """Send a request that is not about a kind of :data:`PATHS`."""
        return self._ask(method, path, body=body)

    def create(self, thing: Mapping[str, Any], *, dry_run: bool = False) -> tuple[Plain, bool]:
        """Create an object. Return it, and whether it is new: an existing object of its name is returned unchanged.

        Raises Refused, SchedulerUnreachable if it was certainly not created, SubmissionUncertain if it may exist.
        """
        name, kind = thing["metadata"]["name"], thing["kind"]
        query = {"fieldManager": "ffdl-batch", "fieldValidation": "Strict", **({"dryRun": "All"} if dry_run else {})}
        is_read = kind != "Secret"  # the daemon may not read Secrets
        try:
            return self._ask("POST", self._path(kind), query=query, body=thing, changes=True), True
        except Refused as refused:
            if refused.status == FORBIDDEN and is_read and not dry_run and (known := self._counted(kind, name)):
                return known, False
            if refused.status != 409 or refused.reason != "AlreadyExists":
                raise
        if not is_read:
            return {**thing}, False
        found = self.get(kind, name)
        if found is None:  # deleted in between
            raise NotTaken(f"{kind} {name} existed and is gone; it is tried again")
        return found, False

    def _counted(self, kind: str, name: str) -> Plain | None:
        """Return the existing object of a name that is refused, or None.

        The server checks quotas before names. So if an object filled a quota and the answer to its first request was
        lost, the second request is refused. Raises SubmissionUncertain if the server does not answer.
        """
        try:
            return self.get(kind, name)
        except Refused:  # without permission to read
            return None
        except SchedulerUnreachable as error:
            raise SubmissionUncertain(str(error)) from error

    def get(self, kind: str, name: str) -> Plain | None:
        """Return the object; None if there is none of this name."""
        try:
            return self._ask("GET", self._path(kind, name))
        except Refused as refused:
            if refused.status == 404:
                return None
            raise

    def patch(self, kind: str, name: str, change: Mapping[str, Any], content: str = MERGE) -> Plain | None:
        """Merge `change` into an object and return it; None if it is gone."""
        try:
            return self._ask("PATCH", self._path(kind, name), body=change, content=content)
        except Refused as refused:
            if refused.status == 404:
                return None
            raise

    def replace(self, thing: Mapping[str, Any]) -> Plain:
        """Replace an object. With its version in `thing`, only if it has not changed."""
        return self._ask("PUT", self._path(thing["kind"], thing["metadata"]["name"]), body=thing)

    def delete(self, kind: str, name: str, version: str = "") -> bool:
        """Delete an object, and in the background what it owns; with `version` only if it has not changed. Return False
        if it is gone or has changed."""
        body: Plain = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"}
        if version:
            body["preconditions"] = {"resourceVersion": version}
        try:
            self._ask("DELETE", self._path(kind, name), body=body)
        except Refused as refused:
            if refused.status in (404, 409):
                return False
            raise
        return True

    def list(self, kind: str, selectors: Mapping[str, str]) -> tuple[list[Plain], str]:
        """Return the objects of `selectors` (labelSelector, fieldSelector), and the version to watch from."""
        items: list[Plain] = []
        version = ""
        for page in self._pages(self._path(kind), selectors):
            items += page.get("items") or []
            version = str(page["metadata"]["resourceVersion"])
        return items, version

    def items(self, path: str, selectors: Mapping[str, str] = _ALL) -> Iterator[Plain]:
        """Yield the objects under a path, for kinds that are not in :data:`PATHS`. One page is in memory at a time."""
        for page in self._pages(path, selectors):
            yield from page.get("items") or []

    def _pages(self, path: str, selectors: Mapping[str, str]) -> Iterator[Plain]:
        query = {**selectors, "limit": str(PAGE)}
        while True:
            page = self._ask("GET", path, query=query)
            yield page
            following = page["metadata"].get("continue")
            if not following:
                return
            query["continue"] = following

    def watch(
        self, kind: str, selectors: Mapping[str, str], version: str, timeout_s: int
    ) -> Iterator[tuple[str, Plain]]:
        """Yield (:data:`TAKEN`, {}) when the server has accepted the watch. Then yield the changes since `version` as
        (ADDED | MODIFIED | DELETED | BOOKMARK, object), until the server closes.

        Raises Expired, Refused, SchedulerUnreachable.
        """
        query = {
            **selectors, "watch": "true", "allowWatchBookmarks": "true", "resourceVersion": version,
            "timeoutSeconds": str(timeout_s),
        }  # fmt: skip
        with self._stream(self._path(kind), query, timeout_s + self._settings.request_timeout_s) as lines:
            yield TAKEN, {}
            for line in lines:
                event = _event(line, self._server)
                if event["type"] == "ERROR":
                    status = event["object"]
                    if status.get("code") == 410:
                        raise Expired
                    raise Refused(int(status.get("code", 0)), status.get("reason", ""), status.get("message", ""))
                yield event["type"], event["object"]

    # ---------------------------------------------------------------------------------------------- transport

    def _path(self, kind: str, name: str = "") -> str:
        group, plural = self.paths[kind]
        where = "" if kind in _OF_THE_CLUSTER else f"namespaces/{self.namespace}/"
        return f"{group}/{where}{plural}" + (f"/{name}" if name else "")

    def _ask(
        self, method: str, path: str, *, query: Mapping[str, str] | None = None, body: Mapping[str, Any] | None = None,
        content: str = "application/json", changes: bool = False,
    ) -> Plain:  # fmt: skip
        """Send a request, and repeat it if the server asks for it or does not answer. All requests may be sent
        twice."""
        require_library()
        import httpx2

        data = None if body is None else json.dumps(body).encode()
        headers = {} if data is None else {"Content-Type": content}
        sent = False
        for attempt in range(1, TRIES + 1):
            try:
                reply = self._client.request(method, path, params=query, content=data, headers=headers)
            except httpx2.ConnectError as error:
                failure, after = f"{self._server} cannot be reached: {error}", 0.0
                if "CERTIFICATE_VERIFY_FAILED" in failure:  # a repetition would not help
                    raise SchedulerMissing(f"{failure}; {self._certificate_cure}") from error
            except httpx2.HTTPError as error:
                failure, after, sent = f"{self._server} did not answer: {str(error) or type(error).__name__}", 0.0, True
            else:
                if reply.status_code < 400:
                    return _answer(reply, self._server)
                if reply.status_code != 429 and reply.status_code < 500:
                    raise refusal_of(reply)
                failure = f"{self._server}: {refusal_of(reply)}"
                after = _seconds(reply.headers.get("Retry-After", ""))
                sent = sent or reply.status_code >= 500
            if attempt < TRIES:
                spread = random.random()  # noqa: S311 - not a secret
                pause_s = growing_pause(attempt, PAUSE_S, LONGEST_PAUSE_S, spread)
                self._pause(min(LONGEST_PAUSE_S, after or pause_s))
        if changes and sent:
            raise SubmissionUncertain(failure)
        raise SchedulerUnreachable(failure)

    def _stream(self, path: str, query: Mapping[str, str], timeout_s: float) -> AbstractContextManager[Iterator[str]]:
        return _Lines(self._client, self._server, path, query, timeout_s)

    @property
    def _certificate_cure(self) -> str:
        return f"correct certificate-authority of cluster {self.config.context.cluster} in {self.config.fname}"

    @property
    def _server(self) -> str:
        return f"the API server {self.config.cluster.server}"


class _Lines:
    """A context that reads a reply line by line."""

    def __init__(
        self, client: httpx2.Client, server: str, path: str, query: Mapping[str, str], timeout_s: float
    ) -> None:
        import httpx2

        timeout = httpx2.Timeout(timeout_s, connect=10.0)
        self._reply = client.stream("GET", path, params=query, timeout=timeout)
        self._server, self._errors = server, httpx2.HTTPError

    def __enter__(self) -> Iterator[str]:
        try:
            reply = self._reply.__enter__()
        except self._errors as error:
            raise SchedulerUnreachable(f"{self._server} cannot be reached: {error}") from error
        if reply.status_code == 410:
            self._reply.__exit__(None, None, None)
            raise Expired
        if reply.status_code >= 400:
            reply.read()
            self._reply.__exit__(None, None, None)
            raise refusal_of(reply)
        return self._lines(reply)

    def _lines(self, reply: httpx2.Response) -> Iterator[str]:
        try:
            yield from (line for line in reply.iter_lines() if line)
        except self._errors as error:
            raise SchedulerUnreachable(f"{self._server} broke off: {str(error) or type(error).__name__}") from error

    def __exit__(self, *exception: object) -> None:
        self._reply.__exit__(None, None, None)


def _answer(reply: httpx2.Response, server: str) -> Plain:
    try:
        return dict(reply.json()) if reply.content else {}
    except (ValueError, TypeError) as error:
        raise SchedulerUnreachable(f"{server} did not answer with an object of its API: {error}") from error


def _event(line: str, server: str) -> Plain:
    try:
        return dict(json.loads(line))
    except (ValueError, TypeError) as error:
        raise SchedulerUnreachable(f"{server} broke off within a line of a watch: {error}") from error


def refusal_of(reply: httpx2.Response) -> Refused:
    """Return the error for a reply with a Status object (kubernetes.io, API conventions)."""
    try:
        status = reply.json()
        message = str(status.get("message", ""))
        if reply.status_code == UNAUTHORIZED:
            message = f"{message}; the credentials of the kubeconfig are not valid, or have expired: log in again"
        return Refused(reply.status_code, str(status.get("reason", "")), message)
    except (ValueError, AttributeError):
        return Refused(reply.status_code, "", " ".join(reply.text.split())[:300])


def _seconds(text: str) -> float:
    return float(text) if text.isdecimal() else 0.0
