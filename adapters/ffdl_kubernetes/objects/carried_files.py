"""The files of a pod in the Job itself, as annotations of its pod, so that one request makes all that a job needs."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from ffdl_batch.domain.launch.pod_protocol import ANNOTATIONS, MODEL_TEXT, SHIM
from ffdl_kubernetes.objects.pod_template import MODEL, PLAN

CARRIED_BYTES = 32 * 1024
"""Maximum in one Job. All annotations of a pod may have 256 KiB (kubernetes.io, "Annotations"), and each change of a
pod sends them to its watchers."""
_FILES = {PLAN: ("launch.json", SHIM), MODEL: (MODEL_TEXT,)}
_KEYS = frozenset(f"{ANNOTATIONS}/{name}" for names in _FILES.values() for name in names)


def has_room(texts: Mapping[str, str], size: int) -> bool:
    """Return whether a Job can carry these texts and a model archive of `size` bytes."""
    return sum(len(text.encode()) for text in texts.values()) + 4 * -(-size // 3) <= CARRIED_BYTES


def carrying(job: Mapping[str, Any], texts: Mapping[str, str], archive: bytes) -> dict[str, Any]:
    """Return the Job with `texts`, which are the launch file and the shim, and the model archive for its pod."""
    values = {**texts, MODEL_TEXT: base64.b64encode(archive).decode("ascii")}
    template = job["spec"]["template"]
    meta, pod = template["metadata"], template["spec"]
    annotations = {**(meta.get("annotations") or {}), **{f"{ANNOTATIONS}/{name}": values[name] for name in values}}
    volumes = [_volume(one["name"]) if one["name"] in _FILES else one for one in pod["volumes"]]
    changed = {"metadata": {**meta, "annotations": annotations}, "spec": {**pod, "volumes": volumes}}
    return {**job, "spec": {**job["spec"], "template": changed}}


def _volume(name: str) -> dict[str, Any]:
    items = [
        {"path": file, "fieldRef": {"fieldPath": f"metadata.annotations['{ANNOTATIONS}/{file}']"}}
        for file in _FILES[name]
    ]
    return {"name": name, "downwardAPI": {"items": items}}


def without_files(thing: dict[str, Any]) -> dict[str, Any]:
    """Remove the files from a Job or a pod, for who keeps many of them and reads none. Return it."""
    for owner in (thing, (thing.get("spec") or {}).get("template") or {}):
        annotations = (owner.get("metadata") or {}).get("annotations") or {}
        for key in _KEYS & annotations.keys():
            del annotations[key]
    return thing
