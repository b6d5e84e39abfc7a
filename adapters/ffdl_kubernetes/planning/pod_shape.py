"""What a manifest asks a cluster for: the pods of its learners, without what only an attempt has. Pure."""

from __future__ import annotations

from ffdl_batch.domain.job.learner_layout import Gang, lay_out, members_of, parts_of
from ffdl_batch.domain.job.spec import JobSpec, Placement
from ffdl_batch.runtimes.learner_start import RequestRefused, refusal
from ffdl_kubernetes.objects.pod_template import PodShape
from ffdl_kubernetes.planning.manifest_checks import pairs, profile_of, resources_of
from ffdl_kubernetes.quantities import amount
from ffdl_kubernetes.settings import REQUEST, KubernetesSettings

KILL_WAIT_S = 30
DEADLINE_MARGIN_S = 300
"""A pod may live so much longer than its training may run: kubelet's deadline is for controllers that are stuck."""


def seats_of(spec: JobSpec) -> Gang:
    """Each learner has a pod, which is a node of one learner to its controller. Raises RequestRefused."""
    shares = [part for part in parts_of(spec) if part.gpus != int(part.gpus)]
    if shares:
        message = f"{shares[0].gpus:g} GPUs: shares of a GPU are not offered here"
        cure = "ask for whole GPUs, or name a MIG type in gpu_type"
        raise RequestRefused([refusal(shares[0].path("gpus"), message, cure, "C104")])
    members = members_of(spec)
    gang = lay_out(members, Placement.NODE, lambda _: len(members))
    assert gang is not None  # as many nodes as are asked for
    return gang


def _cpu_limits(
    cpus: float, wanted: str, settings: KubernetesSettings, needed: float | None
) -> tuple[float | None, float | None]:
    """Return the CPU limits of a learner that asks for `cpus`, and of its controller; none is below the request.

    `needed` is as in BackendFacts. If the namespace demands a limit and gives none, a learner gets its request and a
    controller one CPU.
    """
    own, given = float(amount(settings.controller_cpus) or 0), amount(settings.controller_cpu_limit)
    learner, controller = (None, None) if needed is None else (max(cpus, needed), max(own, needed or 1.0))
    if wanted:
        learner = cpus if wanted == REQUEST else max(cpus, float(amount(wanted) or 0))
    return learner, controller if given is None else max(own, float(given))


def asked_shape(spec: JobSpec, settings: KubernetesSettings, needed_cpu_limit: float | None = None) -> PodShape:
    """The pods as the scheduler sees them: no attempt, no image and no mounts. Raises RequestRefused."""
    gang = seats_of(spec)
    own, profile = spec.batch.kubernetes, profile_of(spec, settings)
    time_s = spec.batch.time_s
    grace_s = spec.batch.checkpoint.grace_s + KILL_WAIT_S
    cpus = max(part.cpus for part in parts_of(spec))
    limits = _cpu_limits(cpus, profile.cpu_limit or settings.cpu_limit, settings, needed_cpu_limit)
    return PodShape(
        token="",
        job_id="",
        attempt=0,
        image="",
        shim=(),
        pre_stop=(),
        learners=len(gang.members),
        cpus=cpus,
        memory_bytes=max(part.memory_bytes for part in parts_of(spec)),
        gpus=gang.load.gpus,
        gpu_type=spec.resources.gpu_type,
        gres=resources_of(spec, settings),
        storage_bytes=spec.resources.storage_bytes,
        uid=settings.run_as_user,
        grace_s=grace_s,
        limit_s=None if time_s is None else time_s + grace_s + settings.load_patience_s + DEADLINE_MARGIN_S,
        time_s=time_s,
        placement=spec.batch.placement,
        node_selector={**profile.node_selector, **pairs(own.get("node_selector", ""))},
        tolerations=profile.tolerations,
        priority_class=own.get("priority_class", "") or profile.priority_class,
        runtime_class=own.get("runtime_class", "") or profile.runtime_class,
        cpu_limit=limits[0],
        controller_cpu_limit=limits[1],
    )
