"""What a client may ask of the server itself: version, groups, kinds."""

from __future__ import annotations

from tests.fakes.kubernetes.kinds import ACCESS_REVIEWS, Kind, Obj
from tests.fakes.kubernetes.routes import Routes, subresources

_VERBS = ["create", "delete", "get", "list", "patch", "update", "watch"]


def discover(path: str, routes: Routes, release: str, address: str) -> Obj | str | None:
    """The answer to a path that is no object's; text is sent as it is."""
    parts = tuple(part for part in path.split("/") if part)
    if parts == ("version",):
        major, minor = release.split(".")[:2]
        return {"major": major, "minor": minor, "gitVersion": f"v{major}.{minor}.0", "platform": "linux/amd64"}
    if parts and parts[0] in ("healthz", "livez", "readyz"):
        return "ok"
    if parts[:2] == ("openapi", "v3"):
        return _schemas(routes, "/".join(parts[2:]))
    if parts == ("api",):
        where = [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}]
        return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": where}
    if parts == ("apis",):
        groups = sorted({(kind.group, kind.version) for kind in (*routes.kinds, ACCESS_REVIEWS) if kind.group})
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_group(*one) for one in groups]}
    return _in_group(parts, routes)


def _in_group(parts: tuple[str, ...], routes: Routes) -> Obj | None:
    if len(parts) == 2 and parts[0] == "apis":
        known = {kind.group: kind.version for kind in (*routes.kinds, ACCESS_REVIEWS)}
        found = _group(parts[1], known[parts[1]]) if parts[1] in known else None
        return {"kind": "APIGroup", "apiVersion": "v1", **found} if found else None
    if parts[:1] == ("api",) and len(parts) == 2:
        return _resources(routes, "", parts[1])
    if parts[:1] == ("apis",) and len(parts) == 3:
        return _resources(routes, parts[1], parts[2])
    return None


def _schemas(routes: Routes, which: str) -> Obj | None:
    """No schema, but that the server itself checks fields: who knows that (kubectl) asks for no schema."""
    served: dict[str, list[Kind]] = {}
    for kind in routes.kinds:
        served.setdefault(f"apis/{kind.group}/{kind.version}" if kind.group else f"api/{kind.version}", []).append(kind)
    if not which:
        return {"paths": {name: {"serverRelativeURL": f"/openapi/v3/{name}"} for name in served}}
    if which not in served:
        return None
    checked = [
        {"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": True}}
        for name in ("dryRun", "fieldManager", "fieldValidation")
    ]
    paths: Obj = {}
    for kind in served[which]:
        place = "/namespaces/{namespace}" if kind.namespaced else ""
        meant = {"group": kind.group, "version": kind.version, "kind": kind.kind}
        patch = {"parameters": checked, "responses": {}, "x-kubernetes-group-version-kind": meant}
        paths[f"/{which}{place}/{kind.plural}/{{name}}"] = {"patch": patch}
    return {"openapi": "3.0.0", "info": {"title": "Kubernetes", "version": "v3"}, "paths": paths}


def _group(group: str, version: str) -> Obj:
    one = {"groupVersion": f"{group}/{version}", "version": version}
    return {"name": group, "versions": [one], "preferredVersion": one}


def _resources(routes: Routes, group: str, version: str) -> Obj | None:
    listed: list[Obj] = []
    for kind in (*routes.kinds, ACCESS_REVIEWS):
        if (kind.group, kind.version) != (group, version):
            continue
        verbs = ["create"] if kind is ACCESS_REVIEWS else _VERBS
        one: Obj = {
            "name": kind.plural,
            "singularName": kind.kind.lower(),
            "namespaced": kind.namespaced,
            "kind": kind.kind,
            "verbs": verbs,
        }
        if kind.short:
            one["shortNames"] = list(kind.short)
        listed.append(one)
        for part in subresources(kind):
            verbs = {
                "log": ["get"], "token": ["create"], "exec": ["create", "get"],
            }.get(part, ["get", "patch", "update"])  # fmt: skip
            listed.append({
                "name": f"{kind.plural}/{part}", "singularName": "", "namespaced": kind.namespaced, "kind": kind.kind,
                "verbs": verbs,
            })  # fmt: skip
    if not listed:
        return None
    shown = f"{group}/{version}" if group else version
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": shown, "resources": listed}
