"""The hosts file of a pod. In place of a cluster's DNS it has the names of headless services, too."""

from __future__ import annotations

from tests.fakes.kubernetes.kinds import PODS, SERVICES, Obj, is_true, labels_of, name_of, namespace_of
from tests.fakes.kubernetes.kubelet.environment import hostname_of
from tests.fakes.kubernetes.store import Store

DOMAIN = "svc.cluster.local"


def hosts_text(store: Store, pod: Obj, address: str) -> str:
    """As kubelet writes it, and below that what DNS would answer."""
    spec, namespace = pod["spec"], namespace_of(pod)
    lines = ["# Kubernetes-managed hosts file.", "127.0.0.1\tlocalhost", "::1\tlocalhost ip6-localhost ip6-loopback"]
    name = hostname_of(pod)
    full = f"{name}.{spec['subdomain']}.{namespace}.{DOMAIN}\t" if spec.get("subdomain") else ""
    lines.append(f"{address}\t{full}{name}")
    if spec.get("hostAliases"):
        lines += ["", "# Entries added by HostAliases."]
        lines += [f"{one['ip']}\t" + "\t".join(one.get("hostnames") or []) for one in spec["hostAliases"]]
    lines += ["", "# In place of the cluster's DNS."]
    for service in store.list(SERVICES, namespace):
        if service["spec"].get("clusterIP") == "None":
            lines += _of_service(store, service, namespace)
    return "\n".join(lines) + "\n"


def _of_service(store: Store, service: Obj, namespace: str) -> list[str]:
    selector, found = service["spec"].get("selector") or {}, []
    for pod in store.list(PODS, namespace):
        address = pod["status"].get("podIP")
        known = service["spec"].get("publishNotReadyAddresses") or is_true(pod, "Ready")
        over = pod["status"].get("phase") in ("Succeeded", "Failed")
        if not address or over or not known or not selector.items() <= labels_of(pod).items():
            continue
        names = [f"{name_of(service)}.{namespace}.{DOMAIN}", name_of(service)]
        if pod["spec"].get("hostname") and pod["spec"].get("subdomain") == name_of(service):
            short = f"{pod['spec']['hostname']}.{name_of(service)}"
            names = [f"{short}.{namespace}.{DOMAIN}", f"{short}.{namespace}", short, *names]
        found.append(f"{address}\t" + "\t".join(names))
    return found
