"""Pods that find out whether the cluster's network enforces NetworkPolicies: two that listen, two that connect.

One of each pair is allowed all that a policy can allow, the other nothing. All pass the Pod Security level restricted.
"""

from __future__ import annotations

from collections.abc import Sequence

from ffdl_kubernetes.objects.names import INDEX, MANAGER_LABEL, Plain
from ffdl_kubernetes.settings import KubernetesSettings

CANARY_LABEL, PART_LABEL = "ffdl-batch/canary", "ffdl-batch/canary-part"
MANAGER = "ffdl-batch-canary"
"""Not that of jobs' objects: watches of jobs do not report it."""
SERVERS, CLIENTS = "servers", "clients"
OPEN = FREE = 0
SHUT = BOUND = 1
"""Completion indexes: of the servers, and of the clients."""
PORT = 8472
TRIES, LAST = 8, 3
LIFE_S = 240
"""Of a Job while it runs, and once more when it has ended, whatever becomes of the daemon."""
LISTEN = f"""\
import os, socket
address = os.environ["FFDL_POD_IP"]
family = socket.AF_INET6 if ":" in address else socket.AF_INET
server = socket.create_server((address, {PORT}), family=family)
while True:
    connection, _ = server.accept()
    connection.sendall(b"ffdl")
    connection.close()
"""
CONNECT = f"""\
import json, socket, sys, time
def reaches(address):
    try:
        with socket.create_connection((address, {PORT}), 2) as connection:
            connection.settimeout(2)
            return connection.recv(4) == b"ffdl"
    except OSError:
        return False
said = {{}}
for address in sys.argv[1:]:
    tries = []
    for _ in range({TRIES}):
        tries.append(reaches(address))
        time.sleep(0.5)
    said[address] = sum(tries[-{LAST}:])
with open("/dev/termination-log", "w") as file:
    json.dump(said, file)
"""
"""Rules come into force a moment after a pod has started, so that the last tries count."""


def jobs_of(name: str, part: str, arguments: Sequence[str], settings: KubernetesSettings) -> Plain:
    """Return the suspended Job of one part."""
    text = LISTEN if part == SERVERS else CONNECT
    pod = plain_pod(part, [settings.python, "-I", "-c", text, *arguments], settings)
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": f"{name}-{part}", "labels": labels(name, part)},
        "spec": {
            "suspend": True,
            "completionMode": "Indexed",
            "completions": 2,
            "parallelism": 2,
            "backoffLimit": 0,
            "activeDeadlineSeconds": LIFE_S,
            "ttlSecondsAfterFinished": LIFE_S,
            "template": {"metadata": {"labels": labels(name, part)}, "spec": pod},
        },
    }


def plain_pod(name: str, command: Sequence[str], settings: KubernetesSettings) -> Plain:
    """Return a pod with one container of the controller's image that passes the level restricted."""
    uid = settings.run_as_user or 1000
    container: Plain = {
        "name": name,
        "image": settings.controller_image,
        "imagePullPolicy": settings.image_pull_policy,
        "command": list(command),
        "env": [{"name": "FFDL_POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
        "resources": {
            "requests": {"cpu": "10m", "memory": "64Mi"},
            "limits": {"cpu": "200m", "memory": "64Mi"},
        },
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    pod: Plain = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 1,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": uid,
            "runAsGroup": uid,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
    }
    if settings.service_account:
        pod["serviceAccountName"] = settings.service_account
    if settings.image_pull_secrets:
        pod["imagePullSecrets"] = [{"name": secret} for secret in settings.image_pull_secrets]
    return pod


def labels(name: str, part: str) -> dict[str, str]:
    """Return the labels of the objects of one canary."""
    return {MANAGER_LABEL: MANAGER, CANARY_LABEL: name, PART_LABEL: part}


def policies(name: str) -> list[Plain]:
    """Return the policies of the four pods. A pod that a policy chooses may do only what a policy allows."""
    return [
        _policy(name, SERVERS, OPEN, inward=[{}], outward=[]),
        _policy(name, SERVERS, SHUT, inward=[], outward=[]),
        _policy(name, CLIENTS, FREE, inward=[], outward=[{}]),
        _policy(name, CLIENTS, BOUND, inward=[], outward=[]),
    ]


def _policy(name: str, part: str, index: int, *, inward: list[Plain], outward: list[Plain]) -> Plain:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": f"{name}-{part}-{index}", "labels": labels(name, part)},
        "spec": {
            "podSelector": {"matchLabels": {CANARY_LABEL: name, PART_LABEL: part, INDEX: str(index)}},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": inward,
            "egress": outward,
        },
    }
