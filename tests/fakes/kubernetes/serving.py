"""The API server: requests to answers."""

from __future__ import annotations

import functools
import json
import secrets
import sys
import traceback
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import yaml

from tests.fakes.kubernetes.authorization import Authorizer, User, Wanted
from tests.fakes.kubernetes.discovery import discover
from tests.fakes.kubernetes.escalation import Escalation
from tests.fakes.kubernetes.executing import Begin, check, execute
from tests.fakes.kubernetes.faults import Faults
from tests.fakes.kubernetes.kinds import ACCESS_REVIEWS, PODS, SERVICE_ACCOUNTS, Obj
from tests.fakes.kubernetes.patches import APPLY_PATCH, patched
from tests.fakes.kubernetes.refusals import Refusal, bad_request, no_such_path, not_found
from tests.fakes.kubernetes.registry import Asked, Deletion, Registry
from tests.fakes.kubernetes.routes import Route, Routes
from tests.fakes.kubernetes.store import in_json
from tests.fakes.kubernetes.watching import Lists, Watches
from tests.fakes.kubernetes.web import Request, Response

ExecuteIn = Callable[[Obj, Request], Begin]
LogOf = Callable[[Obj, Request], AsyncIterator[bytes]]


class ApiServer:
    """Answers requests. `log_of` and `execute_in` are the kubelets' part; `counts` has requests by verb and kind."""

    def __init__(
        self, registry: Registry, authorizer: Authorizer, routes: Routes, lists: Lists, watches: Watches, faults: Faults
    ) -> None:
        self._registry, self._authorizer, self._routes = registry, authorizer, routes
        self._lists, self._watches, self._faults = lists, watches, faults
        self._escalation = Escalation(registry.store, authorizer)
        self.log_of: LogOf | None = None
        self.execute_in: ExecuteIn | None = None
        self.counts: dict[str, int] = {}
        self.address = ""

    async def answer(self, request: Request) -> Response:
        """One request."""
        try:
            await self._faults.meet(request)
            if request.reset:
                return Response(200)
            return await self._answer(request)
        except Refusal as refusal:
            headers = {} if refusal.retry_after is None else {"Retry-After": str(refusal.retry_after)}
            return Response(refusal.code, in_json(refusal.status), headers=headers)
        except Exception:  # noqa: BLE001 - a fault of the fake must be seen, in its log and by the client
            text = traceback.format_exc()
            print(text, file=sys.stderr, flush=True)
            return Response(500, in_json(Refusal(500, "InternalError", f"Internal error occurred: {text}").status))

    async def _answer(self, request: Request) -> Response:
        user = request.user = self._authorizer.user_of(request)
        if request.method == "GET":
            found = discover(request.path, self._routes, self._registry.release, self.address)
            if isinstance(found, str):
                return Response(200, found.encode(), "text/plain; charset=utf-8")
            if found is not None:
                return Response(200, in_json(found))
        route = self._routes.route(request)
        counted = f"{route.verb} {route.resource}"
        self.counts[counted] = self.counts.get(counted, 0) + 1
        if route.kind is ACCESS_REVIEWS:
            return Response(201, in_json(self._review(user, _decoded(request))))
        wanted = Wanted(route.verb, route.kind.group, route.resource, route.namespace, route.name)
        self._authorizer.demand(user, wanted, route.kind)
        if route.part == "exec" and route.verb == "get" and self._asks_twice:
            self._authorizer.demand(user, replace(wanted, verb="create"), route.kind)
        return await self._execute(route, request)

    async def _execute(self, route: Route, request: Request) -> Response:
        if route.part == "log":
            return self._log(route, request)
        if route.part == "exec":
            return await self._exec(route, request)
        if route.part == "token":
            return self._token(route)
        if route.verb == "watch":
            stream = self._watches.begin(route.kind, _of_list(route), request)
            return Response(200, stream=stream)
        how: dict[str, Callable[[Route, Request], tuple[int, Obj]]] = {
            "get": lambda route, _: (200, self._registry.get(route.kind, _place(route), route.name)),
            "list": lambda route, request: (200, self._lists.answer(route.kind, _of_list(route), request)),
            "create": self._create, "update": self._update, "patch": self._patch, "delete": self._delete,
        }  # fmt: skip
        status, found = how[route.verb](route, request)
        return Response(status, in_json(found))

    def _create(self, route: Route, request: Request) -> tuple[int, Obj]:
        return 201, self._registry.create(route.kind, _place(route), _decoded(request), self._asked(request))

    def _update(self, route: Route, request: Request) -> tuple[int, Obj]:
        return 200, self._registry.update(
            route.kind, _place(route), route.name, _decoded(request), part=route.part, asked=self._asked(request)
        )

    def _patch(self, route: Route, request: Request) -> tuple[int, Obj]:
        media = request.headers.get("content-type", "").split(";")[0].strip()
        patch = _decoded(request)
        before = self._registry.store.get(route.kind, _place(route), route.name)
        if media == APPLY_PATCH:
            if "fieldManager" not in request.query:
                raise Refusal(
                    422,
                    "Invalid",
                    'PatchOptions.meta.k8s.io "" is invalid: fieldManager: Required value: is required for apply patch',
                )
            if before is None:
                return 201, self._registry.create(route.kind, _place(route), patch, self._asked(request))
        if before is None:
            raise not_found(route.kind, route.name)
        after = patched(before, patch, media)
        given = patch.get("metadata", {}) if isinstance(patch, dict) else {}
        if "resourceVersion" not in (given or {}):
            after["metadata"].pop("resourceVersion", None)
        return 200, self._registry.update(
            route.kind, _place(route), route.name, after, part=route.part, asked=self._asked(request)
        )

    def _delete(self, route: Route, request: Request) -> tuple[int, Obj]:
        before = self._registry.get(route.kind, _place(route), route.name)
        found = self._registry.delete(route.kind, _place(route), route.name, _deletion(request))
        if route.kind is PODS or self._registry.store.get(route.kind, _place(route), route.name) is not None:
            return 200, found
        details = {
            "name": route.name,
            "group": route.kind.group,
            "kind": route.kind.plural,
            "uid": before["metadata"]["uid"],
        }
        return 200, {
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success",
            "details": {key: value for key, value in details.items() if value},
        }  # fmt: skip

    def _asked(self, request: Request) -> Asked:
        dry = request.query.get("dryRun", "")
        if dry not in ("", "All"):
            raise Refusal(
                422,
                "Invalid",
                f'CreateOptions.meta.k8s.io "" is invalid: dryRun: Unsupported value: "{dry}": supported values: "All"',
            )
        guard = functools.partial(self._escalation.refuse, request.user)
        return Asked(dry == "All", request.query.get("fieldValidation") or "Warn", request.warnings, guard)

    def _log(self, route: Route, request: Request) -> Response:
        pod = self._registry.get(PODS, route.namespace, route.name)
        if self.log_of is None:
            raise no_such_path()
        return Response(200, media="text/plain", stream=self.log_of(pod, request))

    @property
    def _asks_twice(self) -> bool:
        """Who executes by GET must be allowed `create`, too (1.35: AuthorizePodWebsocketUpgradeCreatePermission)."""
        return tuple(int(part) for part in self._registry.release.split(".")[:2]) >= (1, 35)

    async def _exec(self, route: Route, request: Request) -> Response:
        pod = self._registry.get(PODS, route.namespace, route.name)
        command = check(request)
        if self.execute_in is None:
            raise no_such_path()
        return await execute(request, self._registry.release, command, self.execute_in(pod, request))

    def _token(self, route: Route) -> Response:
        """TokenRequest: a token of a service account, which does not expire here."""
        self._registry.get(SERVICE_ACCOUNTS, route.namespace, route.name)
        token = secrets.token_hex(16)
        groups = [f"system:serviceaccounts:{route.namespace}"]
        self._authorizer.tokens[token] = (f"system:serviceaccount:{route.namespace}:{route.name}", groups)
        found = {"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "status": {"token": token}}
        return Response(201, in_json(found))

    def _review(self, user: User, review: Obj) -> Obj:
        asked = review.get("spec", {}).get("resourceAttributes") or {}
        resource = asked.get("resource", "") + (f"/{asked['subresource']}" if asked.get("subresource") else "")
        wanted = Wanted(
            asked.get("verb", ""), asked.get("group", ""), resource, asked.get("namespace", ""), asked.get("name", "")
        )
        return {**review, "kind": ACCESS_REVIEWS.kind, "apiVersion": ACCESS_REVIEWS.api_version,
                "status": {"allowed": self._authorizer.may(user, wanted)}}  # fmt: skip


def _place(route: Route) -> str:
    return route.namespace if route.kind.namespaced else ""


def _of_list(route: Route) -> str:
    return _place(route)


def _decoded(request: Request) -> Any:
    media = request.headers.get("content-type", "")
    try:
        if "yaml" in media:
            return yaml.safe_load(request.body)
        return json.loads(request.body)
    except (ValueError, yaml.YAMLError) as error:
        raise bad_request(f"couldn't get version/kind; json parse error: {error}") from None


def _deletion(request: Request) -> Deletion:
    body = _decoded(request) if request.body else {}
    conditions = body.get("preconditions") or {}
    grace = body.get("gracePeriodSeconds", request.query.get("gracePeriodSeconds"))
    propagation = body.get("propagationPolicy") or request.query.get("propagationPolicy") or ""
    if propagation == "Orphan" or body.get("orphanDependents"):
        raise bad_request("the tests' cluster orphans no objects")
    return Deletion(
        propagation, None if grace is None else int(grace), conditions.get("uid") or "",
        conditions.get("resourceVersion") or "",
        "All" in (body.get("dryRun") or []) or request.query.get("dryRun") == "All",
    )  # fmt: skip
