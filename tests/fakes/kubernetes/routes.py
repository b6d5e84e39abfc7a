"""From the path and the method of a request to what is asked for: objects, or the server itself (version, groups,
kinds)."""

from __future__ import annotations

from dataclasses import dataclass

from tests.fakes.kubernetes.kinds import ACCESS_REVIEWS, KINDS, KUEUE_KINDS, NAMESPACES, Kind, Obj
from tests.fakes.kubernetes.refusals import Refusal, no_such_path
from tests.fakes.kubernetes.web import Request

_PARTS = {"pods": ("log", "status", "exec"), "serviceaccounts": ("token",)}
_SHORT = {
    "pods": ["po"], "nodes": ["no"], "namespaces": ["ns"], "configmaps": ["cm"], "services": ["svc"], "events": ["ev"],
    "persistentvolumeclaims": ["pvc"], "serviceaccounts": ["sa"], "networkpolicies": ["netpol"],
}  # fmt: skip
"""What people type to kubectl."""
_PART_VERBS = {"log": ["get"], "token": ["create"], "exec": ["create", "get"], "status": ["get", "patch", "update"]}
_VERBS = ["create", "delete", "get", "list", "patch", "update", "watch"]
_METHODS = {
    ("GET", True): "get", ("GET", False): "list", ("POST", False): "create", ("PUT", True): "update",
    ("PATCH", True): "patch", ("DELETE", True): "delete",
}  # fmt: skip
"""(method, whether one object is named) -> verb."""


@dataclass(frozen=True, slots=True)
class Route:
    """A request for objects. `verb` is as rules name it; `place` is the namespace of the objects."""

    kind: Kind
    verb: str
    namespace: str = ""
    name: str = ""
    part: str = ""

    @property
    def resource(self) -> str:
        """As rules name it: ``pods/log``."""
        return f"{self.kind.plural}/{self.part}" if self.part else self.kind.plural

    @property
    def place(self) -> str:
        return self.namespace if self.kind.namespaced else ""


class Routes:
    def __init__(self, *, kueue: bool) -> None:
        self.kinds = (*KINDS, *(KUEUE_KINDS if kueue else ()))
        self._served: dict[str, list[Kind]] = {}
        for kind in (*self.kinds, ACCESS_REVIEWS):
            place = f"apis/{kind.api_version}" if kind.group else f"api/{kind.version}"
            self._served.setdefault(place, []).append(kind)

    def route(self, request: Request) -> Route:
        """Return what a request is for. Raises NotFound, MethodNotAllowed."""
        parts = [part for part in request.path.split("/") if part]
        depth = 3 if parts[:1] == ["apis"] else 2
        kinds, rest, namespace = self._served.get("/".join(parts[:depth]), []), parts[depth:], ""
        if rest[:1] == ["namespaces"] and len(rest) > 2:
            namespace, rest = rest[1], rest[2:]
        plural, name, part = [*rest, "", "", ""][:3]
        kind = next((one for one in kinds if one.plural == plural), None)
        if kind is None or (namespace and not kind.namespaced) or (part and part not in _parts(kind)):
            raise no_such_path()
        verb = "create" if (request.method, part) == ("POST", "token") else _METHODS.get((request.method, bool(name)))
        if verb is None:
            message = "the server does not allow this method on the requested resource"
            raise Refusal(405, "MethodNotAllowed", message)
        if verb == "list" and request.asks("watch"):
            verb = "watch"
        return Route(kind, verb, name if kind is NAMESPACES else namespace, name, part)

    def discover(self, path: str, release: str) -> Obj | None:
        """Return the answer to a path that is not an object's: what we and kubectl ask for."""
        path = path.strip("/")
        if path == "version":
            major, minor = release.split(".")
            return {"major": major, "minor": minor, "gitVersion": f"v{release}.0", "platform": "linux/amd64"}
        if path == "api":
            return {"kind": "APIVersions", "versions": ["v1"]}
        if path == "apis":
            groups = []
            for kind in (served[0] for served in self._served.values() if served[0].group):
                one = {"groupVersion": kind.api_version, "version": kind.version}
                groups.append({"name": kind.group, "versions": [one], "preferredVersion": one})
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
        if path in self._served:
            listed = [one for kind in self._served[path] for one in _resources(kind)]
            version = self._served[path][0].api_version
            return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": listed}
        if path == "openapi/v3":
            return {"paths": {place: {"serverRelativeURL": f"/openapi/v3/{place}"} for place in self._served}}
        if path.startswith("openapi/v3/"):
            return self._schema(path.removeprefix("openapi/v3/"))
        return None

    def _schema(self, place: str) -> Obj:
        """No schema, but that the server itself checks fields: then kubectl asks for none."""
        text = {"in": "query", "schema": {"type": "string"}}
        checked = [{"name": name, **text} for name in ("dryRun", "fieldValidation")]
        paths: Obj = {}
        for kind in self._served.get(place, []):
            meant = {"group": kind.group, "version": kind.version, "kind": kind.kind}
            patch = {"parameters": checked, "responses": {}, "x-kubernetes-group-version-kind": meant}
            namespace = "namespaces/{namespace}/" if kind.namespaced else ""
            paths[f"/{place}/{namespace}{kind.plural}/{{name}}"] = {"patch": patch}
        return {"openapi": "3.0.0", "info": {"title": "Kubernetes", "version": "v3"}, "paths": paths}


def _parts(kind: Kind) -> tuple[str, ...]:
    return _PARTS.get(kind.plural, ("status",) if kind.status else ())


def _resources(kind: Kind) -> list[Obj]:
    """Return a kind and its subresources as discovery shows them."""
    verbs = {kind.plural: ["create"] if kind is ACCESS_REVIEWS else _VERBS}
    verbs |= {f"{kind.plural}/{part}": _PART_VERBS[part] for part in _parts(kind)}
    return [
        {
            "name": name,
            "singularName": "",
            "namespaced": kind.namespaced,
            "kind": kind.kind,
            "verbs": allowed,
            "shortNames": _SHORT.get(name, []),
        }
        for name, allowed in verbs.items()
    ]
