"""The Pod Security level ``restricted``, which has that of ``baseline`` (kubernetes.io, "Pod Security Standards")."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tests.fakes.kubernetes.kinds import Obj
from tests.fakes.kubernetes.objects import containers_of

ENFORCE = "pod-security.kubernetes.io/enforce"
_VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}
_BASELINE = {
    "AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE", "SETFCAP",
    "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT",
}  # fmt: skip
"""Capabilities that may be added."""


def violations(level: str, pod: Obj) -> str:
    """Return why a pod (or a template) is not of that level; empty if it is, or if the level is another."""
    return ", ".join([*_baseline(pod["spec"]), *_restricted(pod["spec"])]) if level == "restricted" else ""


def _context(holder: Obj) -> Obj:
    return dict(holder.get("securityContext") or {})


def _added(context: Obj) -> set[str]:
    return set((context.get("capabilities") or {}).get("add") or [])


def _profile(context: Obj) -> object:
    return (context.get("seccompProfile") or {}).get("type")


def _named(spec: Obj, bad: Callable[[Obj], bool]) -> str:
    """Return which containers have a bad security context."""
    names = [f'"{one["name"]}"' for one in containers_of(spec) if bad(_context(one))]
    return f"container{'s' if len(names) > 1 else ''} {', '.join(names)}" if names else ""


def _baseline(spec: Obj) -> Iterator[str]:
    if found := [f"{key}=true" for key in ("hostNetwork", "hostPID", "hostIPC") if spec.get(key)]:
        yield f"host namespaces ({', '.join(found)})"
    if who := _named(spec, lambda context: bool(context.get("privileged"))):
        yield f"privileged ({who} must not set securityContext.privileged=true)"
    if who := _named(spec, lambda context: bool(_added(context) - _BASELINE)):
        yield f"non-default capabilities ({who} must not add them in securityContext.capabilities.add)"
    if found := [volume["name"] for volume in spec.get("volumes") or [] if "hostPath" in volume]:
        yield f"hostPath volumes ({', '.join(found)})"
    if any(port.get("hostPort") for one in containers_of(spec) for port in one.get("ports") or []):
        yield "hostPort"
    if _context(spec).get("sysctls"):
        yield "forbidden sysctls"
    every = [_context(spec), *map(_context, containers_of(spec))]
    if any(_profile(context) == "Unconfined" for context in every):
        yield 'seccompProfile (must not set securityContext.seccompProfile.type to "Unconfined")'


def _restricted(spec: Obj) -> Iterator[str]:
    if who := _named(spec, lambda context: context.get("allowPrivilegeEscalation") is not False):
        yield f"allowPrivilegeEscalation != false ({who} must set securityContext.allowPrivilegeEscalation=false)"
    if who := _named(spec, lambda context: "ALL" not in ((context.get("capabilities") or {}).get("drop") or [])):
        yield f'unrestricted capabilities ({who} must set securityContext.capabilities.drop=["ALL"])'
    if who := _named(spec, lambda context: bool(_added(context) - {"NET_BIND_SERVICE"})):
        yield f"unrestricted capabilities ({who} must not add them in securityContext.capabilities.add)"
    if kinds := {kind for volume in spec.get("volumes") or [] for kind in volume} - {"name"} - _VOLUMES:
        yield f"restricted volume types ({', '.join(sorted(kinds))})"
    of_pod = _context(spec)
    if of_pod.get("runAsNonRoot") is False:
        yield "runAsNonRoot != true (pod must not set securityContext.runAsNonRoot=false)"
    elif who := _named(spec, lambda context: context.get("runAsNonRoot", of_pod.get("runAsNonRoot")) is not True):
        yield f"runAsNonRoot != true (pod or {who} must set securityContext.runAsNonRoot=true)"
    if who := "pod" if of_pod.get("runAsUser") == 0 else _named(spec, lambda context: context.get("runAsUser") == 0):
        yield f"runAsUser=0 ({who} must not set runAsUser=0)"
    good = ("RuntimeDefault", "Localhost")
    if who := _named(spec, lambda context: (_profile(context) or _profile(of_pod)) not in good):
        yield f'seccompProfile (pod or {who} must set securityContext.seccompProfile.type to "RuntimeDefault")'
