"""What a container is started with: argv, environment, user."""

from __future__ import annotations

import re
from typing import Any

from tests.fakes.kubernetes.kinds import CONFIG_MAPS, SECRETS, SERVICES, Obj, name_of, namespace_of
from tests.fakes.kubernetes.kubelet.volumes import content_of, field_value
from tests.fakes.kubernetes.store import Store

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_REFERENCE = re.compile(r"\$\$|\$\(([^)]*)\)")


class ConfigError(Exception):
    """CreateContainerConfigError."""


def expanded(text: str, values: dict[str, str]) -> str:
    """``$(NAME)`` by its value, where there is one; ``$$`` is a dollar."""
    return _REFERENCE.sub(lambda match: "$" if match[0] == "$$" else values.get(match[1], match[0]), text)


def environment_of(pod: Obj, container: Obj, image: Obj, store: Store) -> dict[str, str]:
    """The environment; :class:`ConfigError` where what it refers to is missing."""
    values = _service_links(pod, store)
    for source in container.get("envFrom") or []:
        values.update(_whole(pod, source, store))
    for one in container.get("env") or []:
        found = _value(pod, container, one, values, store)
        if found is not None:
            values[one["name"]] = found
    return {"PATH": PATH, "HOSTNAME": hostname_of(pod), **(image.get("env") or {}), **values}


def hostname_of(pod: Obj) -> str:
    return str(pod["spec"].get("hostname") or name_of(pod))[:63]


def argv_of(container: Obj, image: Obj, environment: dict[str, str]) -> list[str]:
    """`command` takes the place of the image's entry point, and without `args` of its command, too."""
    command, args = container.get("command"), container.get("args")
    if command:
        argv = [*command, *(args or [])]
    else:
        argv = [*(image.get("entrypoint") or []), *(args if args else image.get("cmd") or [])]
    if not argv:
        raise ConfigError("no command specified")
    return [expanded(one, environment) for one in argv] if command or args else argv


def user_of(pod: Obj, container: Obj, image: Obj) -> dict[str, Any]:
    """Whom its processes belong to."""
    of_pod, own = pod["spec"].get("securityContext") or {}, container.get("securityContext") or {}
    merged = {**of_pod, **own}
    uid = merged.get("runAsUser", image.get("user", 0))
    if merged.get("runAsNonRoot") and uid == 0:
        what = (
            "container's runAsUser breaks non-root policy"
            if "runAsUser" in merged
            else ("container has runAsNonRoot and image will run as root")
        )
        where = f"{name_of(pod)}_{namespace_of(pod)}({pod['metadata']['uid']})"
        raise ConfigError(f'{what} (pod: "{where}", container: {container["name"]})')
    groups = [*(of_pod.get("supplementalGroups") or []), *([of_pod["fsGroup"]] if "fsGroup" in of_pod else [])]
    return {
        "uid": uid, "gid": merged.get("runAsGroup", image.get("group", 0)), "groups": groups,
        "drop": "ALL" in ((own.get("capabilities") or {}).get("drop") or []),
        "no_new_privs": own.get("allowPrivilegeEscalation") is False,
    }  # fmt: skip


def _service_links(pod: Obj, store: Store) -> dict[str, str]:
    values = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    if pod["spec"].get("enableServiceLinks") is False:
        return values
    for service in store.list(SERVICES, namespace_of(pod)):
        address, ports = service["spec"].get("clusterIP"), service["spec"].get("ports") or []
        if address in (None, "None") or not ports:
            continue
        prefix = name_of(service).upper().replace("-", "_")
        values[f"{prefix}_SERVICE_HOST"], values[f"{prefix}_SERVICE_PORT"] = address, str(ports[0]["port"])
        values[f"{prefix}_PORT"] = f"tcp://{address}:{ports[0]['port']}"
    return values


def _whole(pod: Obj, source: Obj, store: Store) -> dict[str, str]:
    reference, kind = (
        (source["configMapRef"], CONFIG_MAPS) if "configMapRef" in source else (source["secretRef"], SECRETS)
    )
    obj = store.get(kind, namespace_of(pod), reference["name"])
    if obj is None:
        if reference.get("optional"):
            return {}
        raise ConfigError(f'{kind.kind.lower()} "{reference["name"]}" not found')
    prefix = source.get("prefix", "")
    return {prefix + key: value.decode() for key, value in content_of(obj).items()}


def _value(pod: Obj, container: Obj, one: Obj, values: dict[str, str], store: Store) -> str | None:
    source = one.get("valueFrom")
    if not source:
        return expanded(one.get("value", ""), values)
    if "fieldRef" in source:
        return field_value(pod, source["fieldRef"]["fieldPath"])
    if "resourceFieldRef" in source:
        part, _, resource = source["resourceFieldRef"]["resource"].partition(".")
        return str((container.get("resources", {}).get(part) or {}).get(resource, "0"))
    reference, kind = (
        (source["configMapKeyRef"], CONFIG_MAPS) if "configMapKeyRef" in source else (source["secretKeyRef"], SECRETS)
    )
    obj = store.get(kind, namespace_of(pod), reference["name"])
    content = content_of(obj) if obj is not None else {}
    if reference["key"] in content:
        return content[reference["key"]].decode()
    if reference.get("optional"):
        return None
    if obj is None:
        raise ConfigError(f'{kind.kind.lower()} "{reference["name"]}" not found')
    raise ConfigError(f"couldn't find key {reference['key']} in {kind.kind} {namespace_of(pod)}/{reference['name']}")
