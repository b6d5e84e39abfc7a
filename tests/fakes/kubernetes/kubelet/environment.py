"""What a container is started with: argv, environment, user; and its pod's hosts file."""

from __future__ import annotations

import re
from typing import Any

from tests.fakes.kubernetes.kinds import PODS, SECRETS, SERVICES, Obj
from tests.fakes.kubernetes.kubelet.volumes import content_of, field_value
from tests.fakes.kubernetes.objects import is_over, is_true, labels_of, name_of, namespace_of
from tests.fakes.kubernetes.store import Store

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_REFERENCE = re.compile(r"\$\$|\$\(([^)]*)\)")


class ConfigError(Exception):
    """CreateContainerConfigError."""


def expanded(text: str, values: dict[str, str]) -> str:
    """Replace ``$(NAME)`` by its value, if it has one; ``$$`` is a dollar."""
    return _REFERENCE.sub(lambda match: "$" if match[0] == "$$" else values.get(match[1], match[0]), text)


def environment_of(pod: Obj, container: Obj, image: Obj, store: Store) -> dict[str, str]:
    """Return the environment. Raises ConfigError if what it refers to is missing."""
    values = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    for one in container.get("env") or []:
        source = one.get("valueFrom") or {}
        if "fieldRef" in source:
            values[one["name"]] = field_value(pod, source["fieldRef"]["fieldPath"])
        elif "secretKeyRef" in source:
            values[one["name"]] = _secret(pod, source["secretKeyRef"], store)
        elif source:
            raise ConfigError(f"the tests' kubelet does not know {source}")
        else:
            values[one["name"]] = expanded(one.get("value", ""), values)
    return {"PATH": PATH, "HOSTNAME": hostname_of(pod), "HOME": "/", **(image.get("env") or {}), **values}


def _secret(pod: Obj, reference: Obj, store: Store) -> str:
    secret = store.get(SECRETS, namespace_of(pod), reference["name"])
    if secret is None or reference["key"] not in content_of(secret):
        raise ConfigError(f'secret "{reference["name"]}" not found, or it has no key {reference["key"]}')
    return content_of(secret)[reference["key"]].decode()


def hostname_of(pod: Obj) -> str:
    return str(pod["spec"].get("hostname") or name_of(pod))[:63]


def argv_of(container: Obj, environment: dict[str, str]) -> list[str]:
    """Return command and arguments; these images have none of their own."""
    argv = [*(container.get("command") or []), *(container.get("args") or [])]
    if not argv:
        raise ConfigError("no command specified")
    return [expanded(one, environment) for one in argv]


def user_of(pod: Obj, container: Obj, image: Obj) -> dict[str, Any]:
    """Return whom its processes belong to."""
    of_pod, own = pod["spec"].get("securityContext") or {}, container.get("securityContext") or {}
    merged = {**of_pod, **own}
    uid = merged.get("runAsUser", image.get("user", 0))
    if merged.get("runAsNonRoot") and uid == 0:
        raise ConfigError(f"container has runAsNonRoot and image will run as root (container: {container['name']})")
    return {
        "uid": uid, "gid": merged.get("runAsGroup", image.get("group", 0)),
        "groups": [of_pod["fsGroup"]] if "fsGroup" in of_pod else [],
        "drop": "ALL" in ((own.get("capabilities") or {}).get("drop") or []),
        "no_new_privs": own.get("allowPrivilegeEscalation") is False,
    }  # fmt: skip


def hosts_text(store: Store, pod: Obj, address: str) -> str:
    """Return the hosts file as kubelet writes it. In place of a cluster's DNS it has the names of headless services,
    too."""
    namespace, name, subdomain = namespace_of(pod), hostname_of(pod), pod["spec"].get("subdomain")
    lines = ["# Kubernetes-managed hosts file.", "127.0.0.1\tlocalhost", "::1\tlocalhost ip6-localhost ip6-loopback"]
    full = f"{name}.{subdomain}.{namespace}.svc.cluster.local\t" if subdomain else ""
    lines += [f"{address}\t{full}{name}", "", "# In place of the cluster's DNS."]
    for service in store.list(SERVICES, namespace):
        if service["spec"].get("clusterIP") == "None":
            lines += [line for one in store.list(PODS, namespace) if (line := _host_line(service, one))]
    return "\n".join(lines) + "\n"


def _host_line(service: Obj, pod: Obj) -> str:
    """Return the line of a pod that a service has, or nothing."""
    selector, address = service["spec"].get("selector") or {}, pod["status"].get("podIP")
    is_shown = service["spec"].get("publishNotReadyAddresses") or is_true(pod, "Ready")
    if not address or is_over(pod) or not is_shown or not selector.items() <= labels_of(pod).items():
        return ""
    short = name_of(service)
    names = [f"{short}.{namespace_of(pod)}.svc.cluster.local", short]
    if pod["spec"].get("hostname") and pod["spec"].get("subdomain") == short:
        short = f"{pod['spec']['hostname']}.{short}"
        names = [f"{short}.{namespace_of(pod)}.svc.cluster.local", f"{short}.{namespace_of(pod)}", short, *names]
    return f"{address}\t" + "\t".join(names)
