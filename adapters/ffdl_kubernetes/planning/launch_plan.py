"""Plan one attempt on a cluster: the launch file for its pods, and the objects. Pure."""

from __future__ import annotations

import json
import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

from ffdl_batch.attempt.layout import Root
from ffdl_batch.domain.job.secret_references import SECRET, image_credentials, uses_of
from ffdl_batch.domain.job.spec import JobSpec
from ffdl_batch.domain.launch.launch_file import HostVariables, LaunchFile, Pod, encode
from ffdl_batch.domain.launch.network_level import NetworkLevel
from ffdl_batch.domain.launch.pod_protocol import INDEX, POD_DIR, SHIM, TREE
from ffdl_batch.domain.scheduler_errors import InvalidRequest
from ffdl_batch.runtimes.data import without_learners
from ffdl_batch.runtimes.launch_plan import BasePlan, assemble, plan_base, require_image
from ffdl_batch.runtimes.launch_request import LaunchPlan, LaunchRequest, PlannedFile
from ffdl_batch.runtimes.learner_start import RequestRefused, Runtime, Start, refusal, refuse_unsupported
from ffdl_batch.runtimes.pod import SHIM_TEXT, PodMount, pre_stop_argv, shim_argv
from ffdl_kubernetes.lifecycle.pending_uploads import OBJECTS as STORING_OBJECTS
from ffdl_kubernetes.lifecycle.pending_uploads import plan_storing
from ffdl_kubernetes.lifecycle.submission import OBJECTS
from ffdl_kubernetes.objects.job import job
from ffdl_kubernetes.objects.names import NAME, USER, Plain, is_shared, labels, placed
from ffdl_kubernetes.objects.network_policy import NotAnAddress, Ways, policy, service, shared_policy
from ffdl_kubernetes.objects.pod_files import configuration, hidden, private, pull_secret
from ffdl_kubernetes.objects.pod_template import ClaimMount, Mount, PodShape, for_staging
from ffdl_kubernetes.planning.network_access import Access, choose_access
from ffdl_kubernetes.planning.pod_shape import KILL_WAIT_S, asked_shape, hints, refuse, require_storage, seats_of
from ffdl_kubernetes.settings import KubernetesSettings

BACKEND = "kubernetes"
_HOST = HostVariables(
    native_id="FFDL_NATIVE_ID", node_rank=INDEX, gpus="", address="FFDL_POD_IP", machine="FFDL_NODE_NAME"
)


def make_plan(request: LaunchRequest, settings: KubernetesSettings) -> LaunchPlan:
    """Return what will be sent, exactly. Raises InvalidRequest."""
    spec, facts = request.spec, request.facts
    refuse(spec, settings)
    refuse_unsupported(spec)
    if not request.only_stages:
        require_storage(spec, facts)
    require_image(request)
    if not facts.python:
        raise InvalidRequest("the cluster was never asked what it is; ffdl-submitd has to reach it once")
    runtime = Runtime(request.image, controller=(facts.python, *facts.controller), staging=facts.staging, pod=True)
    base = plan_base(request, seats_of(spec), runtime, BACKEND, tree=TREE, apart=not settings.claim)
    start = base.start
    access = choose_access(request, settings, start.data)
    launch = _launch(request, settings, base, access)
    plan = assemble(request, base, launch, (*access.warnings, *hints(request, settings, start.data)))
    private_texts = _private_texts(request, cut_off=access.cut_off)
    shape = replace(_shape(request, settings, start), has_private=bool(private_texts))
    shape = for_staging(shape, settings) if request.only_stages else shape
    texts = {"launch.json": encode(plan.launch), SHIM: SHIM_TEXT}
    way = _policy(request, access, settings, learners=shape.learners)
    shape = replace(shape, policy=str(way["metadata"]["name"]) if is_shared(way) else "")
    objects = _objects(request, settings, shape, texts, private_texts, way)
    storing = plan_storing(plan.launch, shape, _private_texts(request, cut_off=False), settings, _namespace(request))
    files = (_file(OBJECTS, objects), *([_file(STORING_OBJECTS, storing)] if storing else []))
    return replace(plan, files=(*plan.files, *files), objects=(*objects, *(storing if access.cut_off else ())))


def _file(name: str, objects: Sequence[Plain]) -> PlannedFile:
    return PlannedFile(name, json.dumps(objects, sort_keys=True) + "\n")


def _objects(
    request: LaunchRequest,
    settings: KubernetesSettings,
    shape: PodShape,
    texts: Mapping[str, str],
    private_texts: Mapping[str, str],
    way: Plain,
) -> list[Plain]:
    """Return the objects in the order in which they are sent; the Job is first because it owns the others."""
    token, job_id, attempt = request.token, request.job_id, request.attempt
    objects = [
        job(shape, settings),
        configuration(token, job_id, attempt, texts),
        way,
    ]
    if private_texts:
        objects.append(private(token, job_id, attempt, private_texts))
    if shape.learners > 1:
        objects.append(service(token, job_id, attempt))
    if shape.has_image_secret:
        objects.append(pull_secret(token, job_id, attempt, request.image, image_credentials(request.spec)))
    namespace = _namespace(request)
    return [placed(one, namespace) for one in objects] if namespace else objects


def _namespace(request: LaunchRequest) -> str:
    return next((one.name for one in request.facts.partitions), "")


def _private_texts(request: LaunchRequest, *, cut_off: bool) -> dict[str, str]:
    """Return the files of the Secret, without values; none for pods that get neither variables nor secrets."""
    names = _secrets_of(request, cut_off=cut_off)
    if not (request.user_env or names):
        return {}
    return {
        "environment.json": hidden(tuple(request.user_env)),
        **({"secrets.json": hidden(names)} if names else {}),
    }


def _secrets_of(request: LaunchRequest, *, cut_off: bool) -> tuple[str, ...]:
    """Return the names of the secrets that the pods get.

    Kubelet uses those of the image's registry. Those of stores are for pods that reach them.
    """
    others = ("framework.image_location.", *(("data_stores[",) if cut_off else ()))
    uses = (use for use in uses_of(request.spec) if use.kind == SECRET)
    return tuple(use.name for use in uses if not use.path.startswith(others))


def _launch(request: LaunchRequest, settings: KubernetesSettings, base: BasePlan, access: Access) -> LaunchFile:
    elastic = request.spec.batch.elasticity
    launch = replace(
        base.launch,
        shrinks=elastic is not None and elastic.in_place,
        doorbell=f"{POD_DIR}/doorbell",
        gid=None,
        limits=replace(base.launch.limits, kill_wait_s=KILL_WAIT_S),
        network=access.network,
        host=_HOST,
        scratch_base=f"{POD_DIR}/scratch",
        echo_output=False,
        carry=_carried(request, settings),
        pod=Pod(
            POD_DIR, apart=not settings.claim, cut_off=access.cut_off,
            claims=_claims(base.start, request.spec, settings),
            store_patience_s=float(settings.store_patience_s),
        ),
    )  # fmt: skip
    return without_learners(launch) if request.only_stages else launch


def _carried(request: LaunchRequest, settings: KubernetesSettings) -> str:
    """Return the results of the previous attempt if pods of different attempts see the same files."""
    below = f"{request.job_dir.path}/"
    if not settings.claim or not request.carry.startswith(below):
        return ""
    return f"{Root(TREE).job(request.job_id).path}/{request.carry.removeprefix(below)}"


def _shape(request: LaunchRequest, settings: KubernetesSettings, start: Start) -> PodShape:
    return replace(
        asked_shape(request.spec, settings, request.facts),
        token=request.token,
        job_id=request.job_id,
        attempt=request.attempt,
        image=request.image,
        shim=shim_argv(),
        pre_stop=pre_stop_argv(),
        mounts=tuple(_mount(one, request.spec, settings) for one in start.pod_mounts),
        outside=_outside(start, request.spec, settings),
        has_image_secret="password" in image_credentials(request.spec),
        about={NAME: request.spec.name, **({USER: request.user} if request.user else {})},
    )


def _mount(one: PodMount, spec: JobSpec, settings: KubernetesSettings) -> Mount:
    if one.volume:
        return Mount(one.sub_path, one.target, one.read_only, volume=one.volume, per_pod=one.per_pod)
    claim, below, _ = _claim_of(one.sub_path, spec, settings)
    return Mount(below, one.target, one.read_only, claim=claim)


def _claims(start: Start, spec: JobSpec, settings: KubernetesSettings) -> dict[str, str]:
    """Return those of `volumes` that contain the manifest's directories."""
    tops = {one.target for one in _outside(start, spec, settings)}
    return {top: claim for top, claim in settings.volumes.items() if top.rstrip("/") in tops}


def _outside(start: Start, spec: JobSpec, settings: KubernetesSettings) -> tuple[ClaimMount, ...]:
    """Return the mounts of the manifest's directories in the controller, by their paths there."""
    stores = start.data.stores
    paths = [*start.data.needs_dirs, *(one.source for one in start.data.copies)]
    paths += [path for path in (stores.results, stores.logs, stores.model) if path]
    found = {}
    for path in paths:
        claim, below, top = _claim_of(path, spec, settings)
        root = below.removesuffix(posixpath.relpath(path, top)).rstrip("/") if path != top else below
        found[top] = ClaimMount(claim, root, top)
    return tuple(found[top] for top in sorted(found))


def _claim_of(path: str, spec: JobSpec, settings: KubernetesSettings) -> tuple[str, str, str]:
    """Return the claim, the path in it, and the directory of `volumes` above it. Raises RequestRefused."""
    for top in sorted(settings.volumes, key=len, reverse=True):
        plain = top.rstrip("/")
        if path == plain or path.startswith(f"{plain}/"):
            claim, _, base = settings.volumes[top].partition("/")
            below = posixpath.normpath(posixpath.join(base, path[len(plain) :].lstrip("/")))
            return claim, "" if below == "." else below, plain
    known = ", ".join(sorted(settings.volumes)) or "none is configured"
    message = f"pods have no directory {path}; the cluster has: {known}"
    cure = "map it to a claim in volumes of [backend.kubernetes], or use a data store"
    raise RequestRefused([refusal(_store_of(path, spec), message, cure, "C103")])


def _store_of(path: str, spec: JobSpec) -> str:
    """Return the place in the manifest of the data store in whose directory `path` is."""
    for number, store in enumerate(spec.data_stores):
        if (top := store.connection.get("path")) and PurePosixPath(path).is_relative_to(top):
            return f"data_stores[{number}].connection.path"
    return "data_stores"


def _policy(request: LaunchRequest, access: Access, settings: KubernetesSettings, *, learners: int) -> dict[str, Any]:
    ways = Ways(NetworkLevel(access.network.level), request.spec.batch.egress, access.stores)
    if learners == 1 and (shared := shared_policy(ways, settings)) is not None:
        return shared
    try:
        return policy(request.token, labels(request.job_id, request.attempt), ways, settings)
    except NotAnAddress as error:
        message = f"{error} is a name, and NetworkPolicies accept addresses only"
        number = next(i for i, one in enumerate(ways.egress) if one.host == str(error))
        raise RequestRefused([refusal(f"batch.network.allow[{number}]", message, "write its IPv4 address")]) from None
