"""The API server: requests to answers."""

from __future__ import annotations

import functools
import json
import secrets
import sys
import traceback
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.fakes.kubernetes.authorization import Authorizer, User, Wanted
from tests.fakes.kubernetes.executing import Begin, check, execute
from tests.fakes.kubernetes.kinds import ACCESS_REVIEWS, PODS, SERVICE_ACCOUNTS, Obj
from tests.fakes.kubernetes.objects import clone
from tests.fakes.kubernetes.refusals import Refusal, about, bad_request, no_such_path
from tests.fakes.kubernetes.registry import Asked, Deletion, Registry
from tests.fakes.kubernetes.routes import Route, Routes
from tests.fakes.kubernetes.store import in_json
from tests.fakes.kubernetes.watching import Watches, list_of
from tests.fakes.kubernetes.web import Fault, Request, Response, meet

MERGE_PATCH, STRATEGIC_PATCH = "application/merge-patch+json", "application/strategic-merge-patch+json"


class ApiServer:
    """Answers requests. `log_of` and `execute_in` are the kubelets' part; `counts` has requests by verb and kind."""

    def __init__(self, registry: Registry, authorizer: Authorizer, routes: Routes) -> None:
        self._registry, self._authorizer, self._routes = registry, authorizer, routes
        self.watches = Watches(registry.store)
        self.faults: list[Fault] = []
        self.log_of: Callable[[Obj, Request], AsyncIterator[bytes]] | None = None
        self.execute_in: Callable[[Obj, Request], Begin] | None = None
        self.counts: dict[str, int] = {}

    async def answer(self, request: Request) -> Response:
        try:
            await meet(self.faults, request)
            return await self._answer(request)
        except Refusal as refusal:
            headers = {} if refusal.retry_after is None else {"Retry-After": str(refusal.retry_after)}
            return Response(refusal.code, in_json(refusal.status), headers=headers)
        except Exception:  # noqa: BLE001 - a fault of the fake must be seen, in its log and by the client
            text = traceback.format_exc()
            print(text, file=sys.stderr, flush=True)
            return Response(500, in_json(Refusal(500, "InternalError", f"Internal error occurred: {text}").status))

    async def _answer(self, request: Request) -> Response:
        user = self._authorizer.user_of(request)
        if request.method == "GET" and (found := self._routes.discover(request.path, self._registry.release)):
            return Response(200, in_json(found))
        route = self._routes.route(request)
        counted = f"{route.verb} {route.resource}"
        self.counts[counted] = self.counts.get(counted, 0) + 1
        if route.kind is ACCESS_REVIEWS:
            return Response(201, in_json(self._review(user, _decoded(request))))
        verbs = [route.verb]
        if route.part == "exec" and tuple(map(int, self._registry.release.split("."))) >= (1, 35):
            verbs.append("create")  # AuthorizePodWebsocketUpgradeCreatePermission
        for verb in verbs:
            wanted = Wanted(verb, route.kind.group, route.resource, route.namespace, route.name)
            self._authorizer.demand(user, wanted, route.kind)
        if route.part in ("log", "exec"):
            pod = self._registry.get(PODS, route.namespace, route.name)
            if self.log_of is None or self.execute_in is None:
                raise no_such_path()
            if route.part == "exec":
                return await execute(request, self._registry.release, check(request), self.execute_in(pod, request))
            return Response(200, media="text/plain", stream=self.log_of(pod, request))
        if route.verb == "watch":
            return Response(200, stream=self.watches.begin(route.kind, route.place, request))
        asked = Asked(
            dry_run=request.query.get("dryRun") == "All", strict=request.query.get("fieldValidation") == "Strict",
            guard=functools.partial(self._authorizer.guard, user),
        )  # fmt: skip
        found = self._execute(route, request, asked)
        return Response(201 if route.verb == "create" else 200, in_json(found))

    def _execute(self, route: Route, request: Request, asked: Asked) -> Obj:
        registry, where = self._registry, (route.kind, route.place, route.name)
        if route.part == "token":
            return self._token(route)
        if route.verb == "list":
            return list_of(registry.store, route.kind, route.place, request)
        if route.verb == "get":
            return registry.get(*where)
        if route.verb == "create":
            return registry.create(route.kind, route.place, _decoded(request), asked)
        if route.verb == "update":
            return registry.update(route.kind, route.place, _decoded(request), part=route.part, asked=asked)
        before = registry.get(*where)
        if route.verb == "patch":
            after = patched(before, _decoded(request), request.headers.get("content-type", ""))
            return registry.update(route.kind, route.place, after, part=route.part, asked=asked)
        last = registry.delete(*where, _deletion(request))
        if route.kind is PODS or registry.store.get(*where) is not None:
            return last
        details = {**about(route.kind, route.name), "uid": before["metadata"]["uid"]}
        return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}

    def _token(self, route: Route) -> Obj:
        """Make a token of a service account. It does not expire here, whatever the answer says."""
        self._registry.get(SERVICE_ACCOUNTS, route.namespace, route.name)
        token, name = secrets.token_hex(16), f"system:serviceaccount:{route.namespace}:{route.name}"
        self._authorizer.tokens[token] = (name, [f"system:serviceaccounts:{route.namespace}"])
        ends = (datetime.now(UTC) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
        status = {"token": token, "expirationTimestamp": ends}
        return {"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "status": status}

    def _review(self, user: User, review: Obj) -> Obj:
        asked = {key: value for key, value in review["spec"]["resourceAttributes"].items() if value}
        resource = "/".join(asked[key] for key in ("resource", "subresource") if key in asked)
        place = (asked.get("namespace", ""), asked.get("name", ""))
        wanted = Wanted(asked["verb"], asked.get("group", ""), resource, *place)
        return {**review, "status": {"allowed": self._authorizer.may(user, wanted)}}


def _decoded(request: Request) -> Any:
    try:
        return json.loads(request.body)
    except ValueError as error:
        raise bad_request(f"couldn't get version/kind; json parse error: {error}") from None


def _deletion(request: Request) -> Deletion:
    body = _decoded(request) if request.body else {}
    propagation = body.get("propagationPolicy") or request.query.get("propagationPolicy")
    if propagation not in (None, "Background", "Foreground"):
        raise bad_request("the tests' cluster orphans no objects")
    version = (body.get("preconditions") or {}).get("resourceVersion", "")
    return Deletion(propagation == "Foreground", body.get("gracePeriodSeconds"), version)


def patched(obj: Obj, patch: Obj, media: str) -> Obj:
    """Return the object with the patch applied; without the patch's own it has no version."""
    if media not in (MERGE_PATCH, STRATEGIC_PATCH):
        message = f"the body of the request was in an unknown format: {media}"
        raise Refusal(415, "UnsupportedMediaType", message)
    obj = clone(obj)
    del obj["metadata"]["resourceVersion"]
    return dict(_merge(obj, patch, strategic=media == STRATEGIC_PATCH))


def _merge(target: Any, patch: Any, *, strategic: bool) -> Any:
    """RFC 7386; `strategic`: ``$deleteFromPrimitiveList`` is obeyed."""
    if not isinstance(patch, dict):
        if strategic and target and isinstance(patch, list):
            raise bad_request("the tests' API server merges no lists")
        return patch
    found = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if strategic and key.startswith("$deleteFromPrimitiveList/"):
            name = key.partition("/")[2]
            found[name] = [one for one in found.get(name) or [] if one not in value]
        elif value is None:
            found.pop(key, None)
        else:
            found[key] = _merge(found.get(key), value, strategic=strategic)
    return found
