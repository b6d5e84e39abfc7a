"""From a plan to objects in the cluster, in an order in which a death in between leaves nothing half made.

A Job of one pod that has no Secret of its own and a small model carries all that the pod needs, so one request makes
it. The NetworkPolicy, which such Jobs share, exists before. Any other Job is created suspended, then what it owns, and
the last request lets it go.
"""

from __future__ import annotations

import base64
import contextlib
import json
import math
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.attempt.reader import MAX_EVENT_BYTES, MAX_TEXT_BYTES, DamagedFile, read_whole, size_of
from ffdl_batch.domain.job.secret_references import from_text, read_reference, to_text
from ffdl_batch.domain.launch.pod_protocol import ANNOTATIONS, ATTEMPT_LABEL, JOB_LABEL
from ffdl_batch.domain.scheduler_errors import InvalidRequest, NotNow, NotTaken, SchedulerError
from ffdl_kubernetes.api_errors import explain
from ffdl_kubernetes.client import ClusterClient, Refused
from ffdl_kubernetes.objects.carried_files import carrying, has_room, without_files
from ffdl_kubernetes.objects.job import release
from ffdl_kubernetes.objects.names import image_secret, is_shared, placed
from ffdl_kubernetes.objects.pod_files import (
    DOCKER_CONFIG,
    configuration,
    fits_config_map,
    model_parts,
    number_of_parts,
    private,
)
from ffdl_kubernetes.objects.pod_template import MODEL, model_volume
from ffdl_kubernetes.settings import KubernetesSettings

Plain = Mapping[str, Any]
OBJECTS = "objects.json"
"""In the attempt's directory: the plan's objects, for who completes what another began."""
RELEASED = f"{ANNOTATIONS}/released"
PRIVATE = ("environment.json", "secrets.json")
"""Files of the attempt's directory that pods get as a Secret."""


SEEN_S = 10.0
"""A shared NetworkPolicy that was seen this many seconds ago is not asked for again."""


class Sender:
    """Sends the objects of attempts. Safe in every thread."""

    def __init__(self, client: ClusterClient, settings: KubernetesSettings) -> None:
        self._client, self._settings = client, settings
        self._seen: dict[str, float] = {}
        """Name of a shared NetworkPolicy -> when it was last seen (monotonic)."""
        self._lock = threading.Lock()

    def send(self, objects: Sequence[Plain], attempt: AttemptDir, archive: Path) -> dict[str, Any]:
        """Create what is missing of `objects`, whose first is the Job, and let the Job go. The Job.

        Raises InvalidRequest, SchedulerUnreachable, NotNow, NotTaken, SubmissionUncertain.
        """
        client, settings = self._client, self._settings
        _check_size(settings, archive)
        first, *rest = (placed(one, client.namespace) for one in objects)
        others = [one for one in rest if not is_shared(one)]
        for one in rest:
            if is_shared(one):
                with self._lock:  # many jobs that begin together ask once
                    self._require(one)
        try:
            job, is_new = client.create(whole(first, others, settings, archive) or _sized(first, others, archive))
        except Refused as refused:
            raise explain(refused, f"Job {first['metadata']['name']}") from refused
        if not is_new:
            _check_ours(job, first)
        if not is_released(job):
            job = self._complete(job, others, attempt, archive)
        return without_files(job)

    def _complete(self, job: Plain, others: Sequence[Plain], attempt: AttemptDir, archive: Path) -> dict[str, Any]:
        """Create what a suspended Job owns, and let it go."""
        client = self._client
        try:
            for thing in (*_as_planned(others), *_made_here(job, others, attempt, archive)):
                _create_owned(client, thing, job)
            found = _release(client, self._settings, job)
        except InvalidRequest:
            with contextlib.suppress(Refused, SchedulerError):  # it never started, and the caller may report the error
                client.delete("Job", job["metadata"]["name"])
            raise
        if found is None:
            raise NotTaken(f"Job {job['metadata']['name']} was deleted while it was being created")
        return found

    def _require(self, policy: Plain) -> None:
        """Create a shared NetworkPolicy if it does not exist. Raises NotNow if it allows something else."""
        name = str(policy["metadata"]["name"])
        if time.monotonic() - self._seen.get(name, -math.inf) < SEEN_S:
            return
        try:
            found = self._client.get("NetworkPolicy", name) or self._client.create(policy)[0]
        except Refused as refused:
            raise explain(refused, f"NetworkPolicy {name}") from refused
        if found["metadata"].get("deletionTimestamp"):
            raise NotTaken(f"NetworkPolicy {name} is being deleted")
        if _rules(found) != _rules(policy):
            raise NotNow(
                f"NetworkPolicy {name} was changed, and jobs rely on its rules: delete it, and it is created again"
            )
        self._seen[name] = time.monotonic()


def _rules(policy: Plain) -> dict[str, Any]:
    """Return the rules, without the empty lists that the API server leaves out."""
    return {name: rule for name, rule in policy["spec"].items() if rule}


def whole(job: Plain, others: Sequence[Plain], settings: KubernetesSettings, archive: Path) -> Plain | None:
    """Return the Job with all that its pod needs, let go; None if it needs other objects."""
    if [one["kind"] for one in others] != ["ConfigMap"] or not has_room(others[0]["data"], size_of(str(archive))):
        return None
    change = _let_go(settings)
    meta = {**job["metadata"]}
    for key, values in change["metadata"].items():
        meta[key] = {**(meta.get(key) or {}), **values}
    whole = carrying(job, others[0]["data"], _read(archive))
    return {**whole, "metadata": meta, "spec": {**whole["spec"], **change.get("spec", {})}}


def _release(client: ClusterClient, settings: KubernetesSettings, job: Plain) -> dict[str, Any] | None:
    try:
        return client.patch("Job", job["metadata"]["name"], _let_go(settings))
    except Refused as refused:
        raise explain(refused, f"the start of Job {job['metadata']['name']}") from refused


def _check_size(settings: KubernetesSettings, archive: Path) -> None:
    """Before anything is made: what is complete needs its archive no more, and has none, perhaps."""
    size = size_of(str(archive))
    if size > settings.model_bytes:
        raise InvalidRequest(
            f"the model archive has {size} bytes, and ConfigMaps take {settings.model_bytes} (model_bytes): leave data "
            "out of it, and put them into a data store"
        )


def is_released(job: Plain) -> bool:
    """Return whether all that the pods need exists."""
    return RELEASED in (job["metadata"].get("annotations") or {})


def read_objects(attempt: AttemptDir, name: str = OBJECTS) -> list[Plain]:
    """Return the objects of the plan that was submitted, or those of another file. Raises SchedulerError."""
    path = Path(attempt.path, name)
    try:
        found: list[Plain] = json.loads(read_whole(str(path), MAX_EVENT_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        raise NotNow(f"{path} cannot be read: {error}") from error
    return found


def _read(path: Path) -> bytes:
    """Return the content of a file for the cluster. Raises InvalidRequest if the file is damaged, OSError."""
    try:
        return read_whole(str(path), MAX_TEXT_BYTES)
    except DamagedFile as error:
        raise InvalidRequest(str(error)) from None


def _let_go(settings: KubernetesSettings) -> dict[str, Any]:
    change: dict[str, Any] = {**release(settings.queue)}
    change["metadata"] = {**change.get("metadata", {}), "annotations": {RELEASED: "true"}}
    return change


def _sized(job: Plain, others: Sequence[Plain], archive: Path) -> Plain:
    """Return the planned Job. If the model archive does not fit beside the launch file, give it a volume of the
    archive's parts."""
    token, size = str(job["metadata"]["name"]), size_of(str(archive))
    plan = next(one for one in others if one["kind"] == "ConfigMap")
    if fits_config_map(plan["data"], size):
        return job
    pod = job["spec"]["template"]["spec"]
    volume = model_volume(token, number_of_parts(size))
    volumes = [volume if one["name"] == MODEL else one for one in pod["volumes"]]
    template = {**job["spec"]["template"], "spec": {**pod, "volumes": volumes}}
    return {**job, "spec": {**job["spec"], "template": template}}


def _as_planned(objects: Sequence[Plain]) -> list[Plain]:
    """Return the objects that are sent as planned: those without values of secrets and without the model."""
    return [one for one in objects if one["kind"] != "Secret" and "binaryData" not in one]


def _made_here(job: Plain, objects: Sequence[Plain], attempt: AttemptDir, archive: Path) -> list[Plain]:
    """Return the other objects, with values and model."""
    token, job_id = str(job["metadata"]["name"]), job["metadata"]["labels"][JOB_LABEL]
    number, namespace = int(job["metadata"]["labels"][ATTEMPT_LABEL]), str(job["metadata"]["namespace"])
    texts = {}
    for name in PRIVATE:
        with contextlib.suppress(FileNotFoundError):
            texts[name] = _read(Path(attempt.path, name)).decode("utf-8")
    values = from_text(texts.get("secrets.json", "{}"))
    made = [_with_values(one, values) for one in objects if one["metadata"]["name"] == image_secret(token)]
    for secret in objects:
        if secret["kind"] != "Secret" or secret["metadata"]["name"] != token:
            continue
        if values:
            named = json.loads(secret["stringData"].get("secrets.json", "{}"))
            texts["secrets.json"] = to_text({name: value for name, value in values.items() if name in named})
        made.append(placed(private(token, job_id, number, texts), namespace))
    content = _read(archive)
    plan = next(one for one in objects if one["kind"] == "ConfigMap")
    if _has_parts(job):  # the existing Job decides, whichever daemon made it
        things = [*model_parts(token, job_id, number, content)]
        if "binaryData" in plan:
            things.append(configuration(token, job_id, number, plan["data"], None))
    else:
        things = [configuration(token, job_id, number, plan["data"], content)]
    return [*made, *(placed(one, namespace) for one in things)]


def _has_parts(job: Plain) -> bool:
    token, volumes = job["metadata"]["name"], job["spec"]["template"]["spec"]["volumes"]
    sources = next(one["projected"]["sources"] for one in volumes if one["name"] == MODEL)
    return token not in [one["configMap"]["name"] for one in sources]


def _with_values(secret: Plain, values: Mapping[str, str]) -> dict[str, Any]:
    """Credentials of a registry in the place of their references. Raises NotTaken."""
    config = json.loads(secret["stringData"][DOCKER_CONFIG])
    for known in config["auths"].values():
        for field, text in known.items():
            reference = read_reference(text)
            if reference is not None and reference[1] not in values:
                raise NotTaken(
                    f"the secret {reference[1]} of the image's registry is not in the attempt's secrets.json"
                )
            known[field] = values[reference[1]] if reference is not None else text
        known["auth"] = base64.b64encode(f"{known['username']}:{known['password']}".encode()).decode("ascii")
    return {**secret, "stringData": {DOCKER_CONFIG: json.dumps(config)}}


def _create_owned(client: ClusterClient, thing: Plain, job: Plain) -> None:
    owner = {
        "apiVersion": "batch/v1", "kind": "Job", "name": job["metadata"]["name"], "uid": job["metadata"]["uid"],
        "controller": False, "blockOwnerDeletion": False,
    }  # fmt: skip
    owned = {**thing, "metadata": {**thing["metadata"], "ownerReferences": [owner]}}
    what = f"{thing['kind']} {thing['metadata']['name']}"
    try:
        found, is_new = client.create(owned)
    except Refused as refused:
        raise explain(refused, what) from refused
    if is_new or thing["kind"] == "Secret":  # which the daemon may not read; its name was given for this attempt alone
        return
    _check_ours(found, thing)
    uids = {one.get("uid") for one in found["metadata"].get("ownerReferences") or ()}
    if job["metadata"]["uid"] not in uids:  # of a Job of this name that is being deleted
        raise NotTaken(f"{what} is that of an earlier Job, and not gone yet")


def _check_ours(found: Plain, wanted: Plain) -> None:
    own = (found["metadata"].get("labels") or {}).get(JOB_LABEL)
    name = found["metadata"]["name"]
    if own != wanted["metadata"]["labels"][JOB_LABEL]:
        raise InvalidRequest(f"{wanted['kind']} {name} is somebody else's; nothing was changed")
    if found["metadata"].get("deletionTimestamp"):
        raise NotTaken(f"{wanted['kind']} {name} is being deleted")
