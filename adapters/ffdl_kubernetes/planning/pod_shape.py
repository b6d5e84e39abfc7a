"""What a manifest asks a cluster for: the pods of its learners, without what only an attempt has. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from ffdl_batch.domain.backend_facts import BackendFacts
from ffdl_batch.domain.data.mounts import Mounting
from ffdl_batch.domain.job.learner_layout import Gang, lay_out, members_of, parts_of, starts_mpi
from ffdl_batch.domain.job.spec import JobSpec, NetworkLevel, Placement, Staging
from ffdl_batch.domain.quantity import WHOLE_NODE
from ffdl_batch.runtimes.data import Data
from ffdl_batch.runtimes.launch_request import LaunchRequest
from ffdl_batch.runtimes.learner_start import RequestRefused, refusal
from ffdl_batch.runtimes.slurm_steps import takes_steps
from ffdl_kubernetes.objects.pod_template import PodShape
from ffdl_kubernetes.quantities import amount
from ffdl_kubernetes.settings import REQUEST, KubernetesSettings, Profile

_WITHOUT_MEANING = (
    "partition", "account", "qos", "constraint", "reservation", "priority", "preemptible", "requeue", "signal",
    "comment", "nodelist", "exclude", "output",
)  # fmt: skip
_INSTEAD = {
    "partition": "batch.profile says where pods go",
    "account": "the namespace is the tenant",
    "constraint": "batch.kubernetes.node_selector chooses nodes by their labels",
    "priority": "batch.kubernetes.priority_class names a PriorityClass",
}
"""What has a word of its own on Kubernetes."""
_REFUSED = ("dependency", "begin", "hold")
OWN_KEYS = ("node_selector", "priority_class", "runtime_class")
"""Of `batch.kubernetes`."""


def refuse(spec: JobSpec, settings: KubernetesSettings) -> None:
    """Refuse options that would change when or whether the job runs, but cannot here. Raises RequestRefused."""
    asked = [name for name in _REFUSED if getattr(spec.batch, name)]
    if asked:
        message = "a Job of Kubernetes starts as soon as there is room"
        raise RequestRefused([refusal(f"batch.{name}", message, "leave it out, or use Slurm") for name in asked])
    unknown = sorted(set(spec.batch.kubernetes) - set(OWN_KEYS))
    if unknown:
        message, cure = f"there is no {unknown[0]!r}", f"known are {', '.join(OWN_KEYS)}"
        raise RequestRefused([refusal(f"batch.kubernetes.{unknown[0]}", message, cure)])
    if settings.claim:
        return
    if starts_mpi(spec) and spec.resources.learners > 1:
        message = "mpirun starts processes in other pods by files that all pods see, and here each pod has its own"
        cure = "name a claim on a file system that pods share in [backend.kubernetes], or ask for one learner"
        raise RequestRefused([refusal("learners", message, cure)])
    if spec.batch.staging is Staging.AHEAD:
        message = "what is brought ahead goes with the pod that brought it"
        cure = "leave staging out, or name a claim in [backend.kubernetes]"
        raise RequestRefused([refusal("batch.staging", message, cure)])


def resources_of(spec: JobSpec, settings: KubernetesSettings) -> dict[str, int]:
    """Return the generic resources of each learner, by the nodes' names for them. Raises RequestRefused."""
    found: dict[str, int] = {}
    for name, count in spec.resources.gres.items():
        resource = settings.gpu_resources.get(name, name)
        if "/" not in resource or ":" in resource:
            message = f"nodes of Kubernetes have no resource {resource!r}: their names are like example.com/npu"
            cure = f"write its whole name, or say which it is: gpu_resources = {{{name} = ...}} in [backend.kubernetes]"
            raise RequestRefused([refusal("batch.gres", message, cure, "C104")])
        found[resource] = found.get(resource, 0) + count
    return found


def profile_of(spec: JobSpec, settings: KubernetesSettings) -> Profile:
    """Return the profile of the job. Raises RequestRefused if the settings do not have it."""
    name = spec.batch.profile
    if name and name not in settings.profiles:
        known = ", ".join(sorted(settings.profiles)) or "none is configured"
        cure = "name one of them, or make the table [backend.kubernetes.profiles.NAME]"
        raise RequestRefused([refusal("batch.profile", f"there is no profile {name!r}; known: {known}", cure)])
    return settings.profiles[name] if name else Profile()


def pairs(text: str) -> dict[str, str]:
    """Parse ``label=value,label=value``. Raises RequestRefused."""
    found = {}
    for pair in filter(None, (part.strip() for part in text.split(","))):
        label, equals, value = pair.partition("=")
        if not equals or not label:
            message = f"{pair!r} is not a label"
            raise RequestRefused([refusal("batch.kubernetes.node_selector", message, "write label=value,label=value")])
        found[label] = value
    return found


def hints(request: LaunchRequest, settings: KubernetesSettings, data: Data) -> Iterator[str]:
    """Yield a warning for each option that has no effect here."""
    spec = request.spec
    for name in _WITHOUT_MEANING:
        if getattr(spec.batch, name):
            instead = f"; {_INSTEAD[name]}" if name in _INSTEAD else ""
            yield f"batch.{name}: has no effect on Kubernetes{instead}"
    if spec.batch.slurm_args:
        yield "batch.slurm: this is Kubernetes; it changes nothing here"
    if spec.batch.mount is Mounting.ALWAYS:
        yield "batch.mount: pods mount no stores; the data are brought"
    if spec.batch.notify.mail_user or spec.batch.notify.events:
        yield "batch.notify: Kubernetes sends no mail; the daemon mails incidents if the configuration names a relay"
    if spec.batch.network is NetworkLevel.AUTO and request.facts.network_levels == {NetworkLevel.HOST}:
        yield from request.facts.warnings
    if spec.resources.learners > 1 and not settings.queue:
        yield (
            "there is no gang scheduling: the learners start one by one, and may wait for each other while they hold "
            "what others wait for; a queue of Kueue (queue in [backend.kubernetes]) starts them together"
        )
    if not settings.claim and takes_steps(spec):
        yield (
            "each learner runs the script, and its srun starts its own tasks: steps reach other pods by files that all "
            "see; name a claim in [backend.kubernetes]"
        )
    if not (settings.claim or data.uploads or data.stores.results):
        yield (
            "results and checkpoints are lost with the pod, and the next attempt starts from the beginning: name a "
            "data store for results, or a claim in [backend.kubernetes]"
        )


NO_FACTS = BackendFacts()
CONTROLLER_STORAGE_BYTES = 1 << 30
"""Of a controller in a namespace that demands an amount: its log, which kubelet keeps below that."""
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
    return learner, controller if given is None else float(given)


def _controller_storage(settings: KubernetesSettings, needed: float | None) -> int:
    """Return the ephemeral storage of a controller. `needed` is as in BackendFacts: a quota needs an amount."""
    if settings.controller_storage_bytes or needed is None:
        return settings.controller_storage_bytes
    return min(CONTROLLER_STORAGE_BYTES, int(needed) or CONTROLLER_STORAGE_BYTES)


def require_storage(spec: JobSpec, facts: BackendFacts) -> None:
    """Refuse learners without an amount of ephemeral storage if the namespace demands one. Raises RequestRefused."""
    if facts.default_storage_bytes == 0 and not spec.resources.storage_bytes:
        message = "a quota of the namespace demands an amount of ephemeral storage, and the manifest has none"
        cure = "write storage: 20GB, or another amount that its files, its volumes and its logs fit in"
        raise RequestRefused([refusal("storage", message, cure, "C104")])


def asked_shape(spec: JobSpec, settings: KubernetesSettings, facts: BackendFacts = NO_FACTS) -> PodShape:
    """Return the pods as the scheduler sees them, without attempt, image and mounts. Raises RequestRefused.

    `facts` have what the namespace demands.
    """
    if any(part.memory_bytes == WHOLE_NODE for part in parts_of(spec)):
        message = "Kubernetes gives no pod all memory of its node"
        raise RequestRefused([refusal("memory", message, "write an amount, as 64GiB")])
    gang = seats_of(spec)
    own, profile = spec.batch.kubernetes, profile_of(spec, settings)
    time_s = spec.batch.limit_s
    grace_s = spec.batch.checkpoint.grace_s + KILL_WAIT_S
    cpus = max(part.cpus for part in parts_of(spec))
    limits = _cpu_limits(cpus, profile.cpu_limit or settings.cpu_limit, settings, facts.cpu_limit)
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
        controller_storage_bytes=_controller_storage(settings, facts.default_storage_bytes),
    )
