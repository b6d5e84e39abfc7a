"""The Job that reads a claim for its owner: one pod, which sees one directory of the claim and cannot write."""

from __future__ import annotations

from typing import Any

from ffdl_kubernetes.objects.canary import plain_pod
from ffdl_kubernetes.objects.names import CONTROLLER, MANAGER_LABEL, Plain
from ffdl_kubernetes.settings import KubernetesSettings, parse_toleration

MANAGER = "ffdl-batch-reader"
"""Not that of jobs' objects: the watch of jobs does not see it."""
LIFE_S = 6 * 3600
"""Maximum lifetime of the Job in seconds, if no daemon deletes it."""
MOUNT = "/claim"
FOUND, ABSENT = b"ffdl-tar\n", b"ffdl-absent\n"
"""What :data:`PROGRAM` prints first."""
PROGRAM = f"""\
import os, sys, tarfile
out = sys.stdout.buffer
try:
    os.chdir(sys.argv[1])
except OSError:
    out.write({ABSENT!r})
    sys.exit()
out.write({FOUND!r})
def alone(entry):
    archive.inodes.clear()
    return entry
archive = tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT)
for name in sorted(os.listdir(".")):
    archive.add(name, filter=alone)
archive.close()
"""
"""Writes the directory that it is given as a tar. A file with several names is written once for each of them."""


def reader_job(name: str, claim: str, top: str, settings: KubernetesSettings) -> Plain:
    """Return the Job; its pod sees the directory `top` of the claim at :data:`MOUNT`, and waits."""
    waits = [settings.python, "-I", "-c", f"import time; time.sleep({LIFE_S})"]
    pod: dict[str, Any] = plain_pod(CONTROLLER, waits, settings)
    mount = {"name": "claim", "mountPath": MOUNT, "readOnly": True, **({"subPath": top} if top else {})}
    pod["containers"][0]["volumeMounts"] = [mount]
    pod["volumes"] = [{"name": "claim", "persistentVolumeClaim": {"claimName": claim}}]
    if settings.node_selector:
        pod["nodeSelector"] = dict(settings.node_selector)
    if settings.tolerations:
        pod["tolerations"] = [parse_toleration(text) for text in settings.tolerations]
    labels = {MANAGER_LABEL: MANAGER}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "completionMode": "Indexed",
            "completions": 1,
            "parallelism": 1,
            "backoffLimit": 0,
            "activeDeadlineSeconds": LIFE_S,
            "ttlSecondsAfterFinished": 60,
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }
