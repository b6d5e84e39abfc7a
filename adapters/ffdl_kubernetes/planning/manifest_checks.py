"""What of a manifest a cluster cannot do is refused before anything is made; what means nothing there is said. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from ffdl_batch.domain.data.mounts import Mounting
from ffdl_batch.domain.job.learner_layout import starts_mpi
from ffdl_batch.domain.job.spec import JobSpec, NetworkLevel, Staging
from ffdl_batch.runtimes.data import Data
from ffdl_batch.runtimes.launch_request import LaunchRequest
from ffdl_batch.runtimes.learner_start import RequestRefused, refusal
from ffdl_batch.runtimes.slurm_steps import takes_steps
from ffdl_kubernetes.settings import KubernetesSettings, Profile

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
            message = f"{pair!r} is no label"
            raise RequestRefused([refusal("batch.kubernetes.node_selector", message, "write label=value,label=value")])
        found[label] = value
    return found


def hints(request: LaunchRequest, settings: KubernetesSettings, data: Data) -> Iterator[str]:
    """Yield a warning for each option that has no effect here."""
    spec = request.spec
    for name in _WITHOUT_MEANING:
        if getattr(spec.batch, name):
            instead = f"; {_INSTEAD[name]}" if name in _INSTEAD else ""
            yield f"batch.{name}: means nothing on Kubernetes{instead}"
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
