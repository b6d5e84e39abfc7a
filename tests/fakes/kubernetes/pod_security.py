"""The Pod Security levels ``baseline`` and ``restricted``, with the words of the real admission."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tests.fakes.kubernetes.kinds import Obj

ENFORCE = "pod-security.kubernetes.io/enforce"
WARN = "pod-security.kubernetes.io/warn"
_VOLUMES = (
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "persistentVolumeClaim",
    "projected",
    "secret",
    "image",
)
_SYSCTLS = ("kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.ip_unprivileged_port_start",
            "net.ipv4.tcp_syncookies", "net.ipv4.ping_group_range")  # fmt: skip
_CAPABILITIES = {
    "AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE", "SETFCAP",
    "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT",
}  # fmt: skip


def violations(level: str, pod: Obj) -> str:
    """Why a pod (or a template) is not of that level; empty where it is."""
    checks: list[Callable[[Obj, Obj], str]] = []
    if level in ("baseline", "restricted"):
        checks += [
            _host_namespaces,
            _privileged,
            _capabilities,
            _host_path,
            _host_ports,
            _proc_mount,
            _sysctls,
            _seccomp_off,
        ]
    if level == "restricted":
        checks += [_escalation, _all_dropped, _volume_types, _not_root, _root_user, _seccomp]
    found = [said for check in checks if (said := check(pod.get("metadata", {}), pod["spec"]))]
    return ", ".join(found)


def _containers(spec: Obj) -> list[Obj]:
    return [*(spec.get("initContainers") or []), *(spec.get("containers") or [])]


def _context(holder: Obj) -> Obj:
    return dict(holder.get("securityContext") or {})


def _named(names: list[str], what: str = "container") -> str:
    listed = ", ".join(f'"{name}"' for name in names)
    return f"{what}{'s' if len(names) > 1 else ''} {listed}"


def _which(spec: Obj, bad: Callable[[Obj], bool]) -> list[str]:
    return [one["name"] for one in _containers(spec) if bad(_context(one))]


def _host_namespaces(_: Obj, spec: Obj) -> str:
    found = [f"{key}=true" for key in ("hostNetwork", "hostPID", "hostIPC") if spec.get(key)]
    return f"host namespaces ({', '.join(found)})" if found else ""


def _privileged(_: Obj, spec: Obj) -> str:
    found = _which(spec, lambda context: bool(context.get("privileged")))
    return f"privileged ({_named(found)} must not set securityContext.privileged=true)" if found else ""


def _capabilities(_: Obj, spec: Obj) -> str:
    added = sorted({
        one for container in _containers(spec)
        for one in (_context(container).get("capabilities") or {}).get("add") or []
    } - _CAPABILITIES)  # fmt: skip
    found = _which(
        spec, lambda context: bool(set((context.get("capabilities") or {}).get("add") or []) - _CAPABILITIES)
    )
    listed = ", ".join(f'"{one}"' for one in added)
    said = f"{_named(found)} must not include {listed} in securityContext.capabilities.add" if found else ""
    return f"non-default capabilities ({said})" if found else ""


def _host_path(_: Obj, spec: Obj) -> str:
    found = [volume["name"] for volume in spec.get("volumes") or [] if "hostPath" in volume]
    return f"hostPath volumes ({_named(found, 'volume')})" if found else ""


def _host_ports(_: Obj, spec: Obj) -> str:
    found = [
        (one["name"], port["hostPort"])
        for one in _containers(spec)
        for port in one.get("ports") or []
        if port.get("hostPort")
    ]
    if not found:
        return ""
    ports = ", ".join(str(port) for _name, port in found)
    return f"hostPort ({_named([name for name, _port in found])} uses hostPort{'s' if len(found) > 1 else ''} {ports})"


def _proc_mount(_: Obj, spec: Obj) -> str:
    found = _which(spec, lambda context: context.get("procMount") not in (None, "Default"))
    return f'procMount ({_named(found)} must not set securityContext.procMount to "Unmasked")' if found else ""


def _sysctls(_: Obj, spec: Obj) -> str:
    found = [one["name"] for one in _context(spec).get("sysctls") or [] if one["name"] not in _SYSCTLS]
    return f"forbidden sysctls ({', '.join(found)})" if found else ""


def _seccomp_off(_: Obj, spec: Obj) -> str:
    found = _which(spec, lambda context: _profile(context) == "Unconfined")
    holders = (["pod"] if _profile(_context(spec)) == "Unconfined" else []) + ([_named(found)] if found else [])
    said = " and ".join(holders)
    return (
        f'seccompProfile ({said} must not set securityContext.seccompProfile.type to "Unconfined")' if holders else ""
    )


def _profile(context: Obj) -> str:
    return str((context.get("seccompProfile") or {}).get("type", ""))


def _escalation(_: Obj, spec: Obj) -> str:
    found = _which(spec, lambda context: context.get("allowPrivilegeEscalation") is not False)
    said = f"{_named(found)} must set securityContext.allowPrivilegeEscalation=false" if found else ""
    return f"allowPrivilegeEscalation != false ({said})" if found else ""


def _all_dropped(_: Obj, spec: Obj) -> str:
    missing = _which(spec, lambda context: "ALL" not in ((context.get("capabilities") or {}).get("drop") or []))
    adding = _which(
        spec, lambda context: bool(set((context.get("capabilities") or {}).get("add") or []) - {"NET_BIND_SERVICE"})
    )
    said = [f'{_named(missing)} must set securityContext.capabilities.drop=["ALL"]'] if missing else []
    if adding:
        added = sorted({
            one for container in _containers(spec)
            for one in (_context(container).get("capabilities") or {}).get("add") or []
            if one != "NET_BIND_SERVICE"
        })  # fmt: skip
        listed = ", ".join(f'"{one}"' for one in added)
        said.append(f"{_named(adding)} must not include {listed} in securityContext.capabilities.add")
    return f"unrestricted capabilities ({'; '.join(said)})" if said else ""


def _volume_types(_: Obj, spec: Obj) -> str:
    found = [
        (volume["name"], kind)
        for volume in spec.get("volumes") or []
        for kind in set(volume) - {"name"} - set(_VOLUMES)
    ]  # fmt: skip
    if not found:
        return ""
    kinds = sorted({kind for _name, kind in found})
    listed = ", ".join(f'"{kind}"' for kind in kinds)
    many = "s" if len(kinds) > 1 else ""
    verb = "use" if len(found) > 1 else "uses"
    named = _named([name for name, _kind in found], "volume")
    return f"restricted volume types ({named} {verb} restricted volume type{many} {listed})"


def _unset(spec: Obj, good: Callable[[Obj], bool], bad: Callable[[Obj], bool]) -> Iterator[str]:
    """Containers that have it not, neither themselves nor from the pod; and those that set it wrong."""
    from_pod = good(_context(spec))
    for container in _containers(spec):
        context = _context(container)
        if bad(context) or not (good(context) or from_pod):
            yield container["name"]


def _not_root(_: Obj, spec: Obj) -> str:
    wrong = _which(spec, lambda context: context.get("runAsNonRoot") is False)
    if _context(spec).get("runAsNonRoot") is False:
        return "runAsNonRoot != true (pod must not set securityContext.runAsNonRoot=false)"
    if wrong:
        return f"runAsNonRoot != true ({_named(wrong)} must not set securityContext.runAsNonRoot=false)"
    found = list(_unset(spec, lambda context: context.get("runAsNonRoot") is True, lambda _context: False))
    return f"runAsNonRoot != true (pod or {_named(found)} must set securityContext.runAsNonRoot=true)" if found else ""


def _root_user(_: Obj, spec: Obj) -> str:
    found = _which(spec, lambda context: context.get("runAsUser") == 0)
    holders = (["pod"] if _context(spec).get("runAsUser") == 0 else []) + ([_named(found)] if found else [])
    return f"runAsUser=0 ({' and '.join(holders)} must not set runAsUser=0)" if holders else ""


def _seccomp(_: Obj, spec: Obj) -> str:
    good = ("RuntimeDefault", "Localhost")
    found = list(_unset(spec, lambda context: _profile(context) in good, lambda context: False))
    said = 'must set securityContext.seccompProfile.type to "RuntimeDefault" or "Localhost"'
    return f"seccompProfile (pod or {_named(found)} {said})" if found else ""
