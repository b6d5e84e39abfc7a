"""From the path and the method of a request to what is asked for."""

from __future__ import annotations

from dataclasses import dataclass

from tests.fakes.kubernetes.kinds import ACCESS_REVIEWS, KINDS, KUEUE_KINDS, NAMESPACES, Kind
from tests.fakes.kubernetes.refusals import no_such_path, not_allowed
from tests.fakes.kubernetes.web import Request

_SUBRESOURCES = {
    "pods": ("log", "status", "exec"),
    "namespaces": ("status", "finalize"),
    "serviceaccounts": ("token",),
}
_GROUP_PARTS, _CORE_PARTS = 3, 2


@dataclass(frozen=True, slots=True)
class Route:
    """A request for objects. `verb` is as rules name it."""

    kind: Kind
    verb: str
    namespace: str = ""
    name: str = ""
    part: str = ""

    @property
    def resource(self) -> str:
        """As rules name it: ``pods/log``."""
        return f"{self.kind.plural}/{self.part}" if self.part else self.kind.plural


class Routes:
    """The kinds that are served."""

    def __init__(self, *, kueue: bool) -> None:
        self.kinds = (*KINDS, *(KUEUE_KINDS if kueue else ()))
        self._found = {(kind.group, kind.version, kind.plural): kind for kind in (*self.kinds, ACCESS_REVIEWS)}

    def route(self, request: Request) -> Route:
        """What a request is for; NotFound and MethodNotAllowed."""
        parts = [part for part in request.path.split("/") if part]
        if parts[:1] == ["api"] and len(parts) > _CORE_PARTS:
            group, version, rest = "", parts[1], parts[2:]
        elif parts[:1] == ["apis"] and len(parts) > _GROUP_PARTS:
            group, version, rest = parts[1], parts[2], parts[3:]
        else:
            raise no_such_path()
        namespace = ""
        if rest[0] == "namespaces" and len(rest) > 2 and rest[2] not in _SUBRESOURCES["namespaces"]:
            namespace, rest = rest[1], rest[2:]
        kind = self._found.get((group, version, rest[0]))
        if kind is None or (namespace and not kind.namespaced):
            raise no_such_path()
        name, part = (rest[1] if len(rest) > 1 else ""), "/".join(rest[2:])
        if part and part not in subresources(kind):
            raise no_such_path()
        if kind is NAMESPACES:
            namespace = name
        return Route(kind, _verb(request, name, part), namespace, name, part)


def subresources(kind: Kind) -> tuple[str, ...]:
    """Those of a kind."""
    return _SUBRESOURCES.get(kind.plural, ("status",) if kind.status else ())


def _verb(request: Request, name: str, part: str) -> str:
    watching = request.asks("watch")
    table = {
        ("GET", True): "get", ("HEAD", True): "get", ("GET", False): "watch" if watching else "list",
        ("POST", False): "create", ("PUT", True): "update", ("PATCH", True): "patch", ("DELETE", True): "delete",
    }  # fmt: skip
    if part == "token":
        table = {("POST", True): "create"}
    if part == "exec":
        table = {("POST", True): "create", ("GET", True): "get"}
    found = table.get((request.method, bool(name)))
    if found is None:
        raise not_allowed()
    return found
