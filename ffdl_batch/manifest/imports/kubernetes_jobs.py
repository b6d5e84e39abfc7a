"""Reads Jobs of Kubernetes, and PyTorchJobs, MPIJobs and TrainJobs of Kubeflow (entry point ``kubernetes-jobs`` of
``ffdl_batch.converters``)."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping as Mappings

from ffdl_batch.domain.conversion import CannotConvert, Conversion, Fate, Judged, KeyFate, Origin, Source
from ffdl_batch.domain.quantity import format_time_limit
from ffdl_batch.manifest.document.tree import Mapping, Place, Scalar, Unreadable
from ffdl_batch.manifest.imports.foreign_file import QUIET, ForeignFile, lost, mapped, mappings_of, near, read_documents
from ffdl_batch.manifest.imports.kubernetes_pod import Pod, read_container, read_pod, without_defaults
from ffdl_batch.manifest.imports.learner_parts import Variables, conversion_of, framework_of

_WAITS = "sleep infinity"
_LEFT_OUT = frozenset({"spec", "template", "pytorchReplicaSpecs", "mpiReplicaSpecs"})
_QUEUE = "queue in [backend.kubernetes] names the queue of Kueue"
_GIVEN = frozenset({
    "MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "PET_MASTER_ADDR", "PET_MASTER_PORT", "PET_NNODES",
    "PET_NODE_RANK", "PET_NPROC_PER_NODE", "JOB_COMPLETION_INDEX",
})  # fmt: skip
_FILE = {
    "apiVersion": QUIET, "kind": QUIET, "metadata.name": mapped("name"), "metadata.generateName": mapped("name"),
    "metadata.namespace": lost("the namespace is that of the backend"),
    "metadata.labels": lost(f"no job has labels; {_QUEUE}"),
    "metadata.annotations": lost("no job has annotations: see batch.comment"),
    "status": QUIET,
}  # fmt: skip
_TIME = near("batch.time", "it limits each attempt, and not all of them together")
_RETRIES = near("batch.retry.failures", "it counts attempts of the whole job, and not pods")
_TTL = lost("the platform keeps the record and the results of a job")
_OF_JOB = {
    "spec.backoffLimit": _RETRIES, "spec.activeDeadlineSeconds": _TIME, "spec.ttlSecondsAfterFinished": _TTL,
    "spec.suspend": mapped("batch.hold"), "spec.completionMode": mapped("learners"),
    "spec.podFailurePolicy": lost("batch.retry says after which failures another attempt follows"),
    "spec.successPolicy": lost("a job succeeds when all its learners do"),
    "spec.backoffLimitPerIndex": lost("batch.retry counts attempts of the whole job"),
    "spec.maxFailedIndexes": lost("batch.retry counts attempts of the whole job"),
    "spec.podReplacementPolicy": lost("an attempt follows when the one before it has ended"),
    "spec.selector": QUIET, "spec.manualSelector": QUIET, "spec.managedBy": lost("the daemon manages the job"),
}  # fmt: skip
_OF_POLICY = {
    "cleanPodPolicy": mapped("", "learners end with their job"), "ttlSecondsAfterFinished": _TTL,
    "activeDeadlineSeconds": _TIME, "backoffLimit": _RETRIES, "suspend": mapped("batch.hold"),
    "managedBy": lost("the daemon manages the job"), "schedulingPolicy.queue": lost(_QUEUE),
    "schedulingPolicy.priorityClass": mapped("batch.kubernetes.priority_class", "it counts on Kubernetes only"),
    "schedulingPolicy.minAvailable": mapped("learners", "all learners start together"),
    "schedulingPolicy.minResources": mapped("", "it follows from the learners"),
    "schedulingPolicy.scheduleTimeoutSeconds": lost("a job waits until it starts"),
}  # fmt: skip
_OF_KUBEFLOW = {f"spec.runPolicy.{path}": fate for path, fate in _OF_POLICY.items()}
_ELASTIC = lost("write batch.elastic, which needs the sizes of batches")
_OF_TRAINER = {
    "spec.suspend": mapped("batch.hold"), "spec.activeDeadlineSeconds": _TIME,
    "spec.managedBy": lost("the daemon manages the job"),
    "spec.initializer": lost("name data and models under data_stores"),
    "spec.trainer.image": mapped("framework.version"), "spec.trainer.command": mapped("framework.command"),
    "spec.trainer.args": mapped("framework.command"), "spec.trainer.numNodes": mapped("learners"),
    **{f"spec.{name}": lost("it changes the runtime's pods, which are not read")
       for name in ("runtimePatches", "podTemplateOverrides", "podSpecOverrides", "labels", "annotations")},
}  # fmt: skip


class KubernetesJobReader:
    """Reads the objects of one job."""

    def recognises(self, text: str) -> bool:
        """Return whether a document is an object of Kubernetes."""
        return any({"apiVersion", "kind"} <= root.entries.keys() for root in mappings_of(text))

    def convert(self, source: Source) -> Conversion:
        """Return the manifest of the first job, and what became of each field. Raises CannotConvert."""
        try:
            roots = read_documents(source.text)
        except Unreadable as error:
            raise CannotConvert(error.message, error.cure, error.mark.line if error.mark else 0) from None
        jobs = [root for root in roots if _kind(root) in _READERS]
        if not jobs:
            kinds = ", ".join(sorted({_kind(root) or "unknown" for root in roots}))
            known = f"known are {', '.join(sorted(_READERS))}"
            raise CannotConvert(f"there is no reader for the kind {kinds}", known, 1)
        read, fates = _READERS[_kind(jobs[0])]
        file = ForeignFile(jobs[0], {**_FILE, **fates}, _LEFT_OUT)
        made = conversion_of(file, read(file), source.image)
        others = [_other(root) for root in roots if root is not jobs[0]]
        return Conversion(made.manifest, tuple(sorted((*made.judged, *others), key=lambda one: one.line)))

    def differences(self, source: Source, script: str) -> tuple[str, ...]:  # noqa: ARG002 - the port's signature
        """There is no way back to these objects."""
        raise CannotConvert("--check compares scripts of sbatch", "use --to kubernetes for objects of the manifest")


def create() -> KubernetesJobReader:
    """For the entry point."""
    return KubernetesJobReader()


def _kind(root: Mapping) -> str:
    node = root.get("kind")
    return node.text if isinstance(node, Scalar) else ""


def _other(root: Mapping) -> Judged:
    why = "a file has one job: convert each by itself" if _kind(root) in _READERS else "a manifest is one job"
    return Judged(Origin.SCRIPT, root.origin.mark.line, f"kind: {_kind(root)}", Fate.DROPPED, "", why)


def _manifest(file: ForeignFile, pod: Pod, learners: int, batch: Mappings[str, object]) -> dict[str, object]:
    """Return the manifest of a job whose learners are as `pod`."""
    if not pod.command:
        raise file.error("no command is named, and what the image starts is not known", "write command: into the file")
    name = file.text("metadata", "name") or file.text("metadata", "generateName").rstrip("-") or "converted"
    gres = {"gres": pod.gres} if pod.gres else {}
    return {
        "name": name,
        "learners": learners,
        **without_defaults(pod),
        "framework": framework_of(pod.image, pod.command),
        "batch": {**pod.batch, **gres, **batch},
    }


def _limits(file: ForeignFile, place: Place) -> dict[str, object]:
    """Return the keys of `batch:` for the fields that all jobs have."""
    found: dict[str, object] = {}
    deadline, retries = file.count(*place, "activeDeadlineSeconds"), file.count(*place, "backoffLimit")
    if deadline:
        found["time"] = format_time_limit(deadline)
    if retries is not None:
        found["retry"] = {"failures": retries}
    if file.is_true(*place, "suspend"):
        found["hold"] = True
    return found


def _read_job(file: ForeignFile) -> dict[str, object]:
    variables = Variables()
    pod = read_pod(file, ("spec", "template"), "", variables, _GIVEN)
    wanted, at_once = file.count("spec", "completions"), file.count("spec", "parallelism")
    count = wanted or at_once or 1
    together = min(count, 1 if at_once is None else at_once)
    batch = {**_limits(file, ("spec",)), **variables.keys()}
    indexed = file.text("spec", "completionMode") == "Indexed"
    if together < count:
        why = "each completion is an element of an array"
        fate = near("batch.array", f"{why}; it has its index as SLURM_ARRAY_TASK_ID")
        batch["array"] = f"0-{count - 1}%{max(1, together)}"
        index, learners = "$FFDL_ARRAY_INDEX", 1
    else:
        together_as = near("learners", "all pods are learners of one job, and start together")
        fate = together_as if count > 1 else mapped("learners")
        index, learners = "$RANK", count
    for name in ("completions", "parallelism"):
        file.judge(("spec", name), fate)
    if indexed and pod.command:
        pod.command = f"export JOB_COMPLETION_INDEX={index}; {pod.command}"
    return _manifest(file, pod, learners, batch)


def _read_pytorch_job(file: ForeignFile) -> dict[str, object]:
    variables = Variables()
    replicas: dict[str, tuple[int, Pod]] = {}
    for name in ("Master", "Worker"):
        place = ("spec", "pytorchReplicaSpecs", name)
        if file.node(*place) is not None:
            replicas[name] = _read_replicas(file, place, "pytorch", variables)
    if not replicas:
        raise file.error("spec.pytorchReplicaSpecs names neither Master nor Worker", "write one of them", ("spec",))
    batch = {**_limits(file, ("spec", "runPolicy")), **variables.keys()}
    pods = [pod for _, pod in replicas.values()]
    total = sum(count for count, _ in replicas.values())
    if len(pods) == 2 and (pods[0].command, pods[0].resources) != (pods[1].command, pods[1].resources):
        batch["roles"] = {
            name.lower(): {"learners": count, **_of_role(pod, pods[0])} for name, (count, pod) in replicas.items()
        }
    _check_images(file, replicas)
    file.set_fates((), {"spec.elasticPolicy": _ELASTIC})
    _processes(file, ("spec", "nprocPerNode"), pods[0], batch)
    return _manifest(file, pods[0], total, batch | _priority(file, pods[0]))


def _read_replicas(file: ForeignFile, place: Place, main: str, variables: Variables) -> tuple[int, Pod]:
    """Read one kind of replicas of Kubeflow: their number, and their pod."""
    pod = read_pod(file, (*place, "template"), main, variables, _GIVEN)
    file.judge((*place, "replicas"), mapped("learners"))
    policy = file.text(*place, "restartPolicy")
    if policy in ("OnFailure", "Always", "ExitCode"):
        pod.batch["restart"] = "learner"
    never = mapped("batch.restart")
    failed = near("batch.restart", "a learner that failed starts again as often as batch.retry.failures says")
    file.judge((*place, "restartPolicy"), never if policy == "Never" else failed)
    count = file.count(*place, "replicas")
    return (1 if count is None else count), pod


def _of_role(pod: Pod, first: Pod) -> dict[str, object]:
    """Return the keys of a role, without those that are the job's."""
    keys = {name: value for name, value in without_defaults(pod).items() if name in ("cpus", "gpus", "memory")}
    if "gpus" in first.resources:
        keys.setdefault("gpus", 0)
    return {**keys, "command": pod.command}


def _check_images(file: ForeignFile, replicas: Mappings[str, tuple[int, Pod]]) -> None:
    pods = [pod for _, pod in replicas.values()]
    if len({pod.image for pod in pods}) > 1:
        place = ("spec", "pytorchReplicaSpecs", "Worker", "template", "spec", "containers", 0, "image")
        file.judge(place, lost(f"a job has one image: {pods[0].image}"))


def _priority(file: ForeignFile, pod: Pod) -> dict[str, object]:
    name = file.text("spec", "runPolicy", "schedulingPolicy", "priorityClass")
    known = pod.batch.get("kubernetes")
    return {"kubernetes": {**(known if isinstance(known, dict) else {}), "priority_class": name}} if name else {}


def _processes(file: ForeignFile, place: Place, pod: Pod, batch: dict[str, object]) -> None:
    """Convert the processes of a node, which torchrun reads; the platform's number is that of the GPUs."""
    text = file.text(*place)
    gpus = pod.resources.get("gpus") or 0
    if not text.isdigit() or int(text) == (gpus or 1):
        file.judge(place, mapped("gpus", "torchrun starts a process for each GPU"))
        return
    env = batch.get("env")
    batch["env"] = {**(env if isinstance(env, dict) else {}), "PET_NPROC_PER_NODE": text}
    file.judge(place, mapped("batch.env"))


def _read_mpi_job(file: ForeignFile) -> dict[str, object]:
    variables = Variables()
    place = ("spec", "mpiReplicaSpecs")
    if file.node(*place, "Launcher") is None:
        raise file.error("spec.mpiReplicaSpecs names no Launcher", "write the one that calls mpirun", ("spec",))
    _, launcher = _read_replicas(file, (*place, "Launcher"), "", variables)
    workers, pod = 1, launcher
    if file.node(*place, "Worker") is not None:
        workers, pod = _read_replicas(file, (*place, "Worker"), "", variables)
        _judge_launcher(file, (*place, "Launcher", "template", "spec", "containers", 0))
    learners = max(1, workers + file.is_true("spec", "runLauncherAsWorker"))
    pod.command = launcher.command.replace("/etc/mpi/hostfile", '"$JOB_STATE_DIR/.hostfile"')
    batch = {**_limits(file, ("spec", "runPolicy")), **variables.keys(), **_priority(file, pod)}
    if learners > 1:
        batch["roles"] = {
            "launcher": {"learners": 1},
            "worker": {"learners": learners - 1, "service": True, "command": _WAITS},
        }
    slots, gpus = file.count("spec", "slotsPerWorker") or 1, pod.resources.get("gpus") or 1
    few = f"the host file has {gpus} for each learner, as many as GPUs; mpirun --oversubscribe starts more"
    file.judge(("spec", "slotsPerWorker"), mapped("gpus") if slots == gpus else near("gpus", few))
    return _manifest(file, pod, learners, batch)


def _judge_launcher(file: ForeignFile, container: Place) -> None:
    """The launcher runs in the first learner, which is as the workers are."""
    first = "it runs in the first learner, with the resources of a worker"
    file.judge((*container, "resources"), near("batch.roles", first))
    file.judge((*container, "image"), near("framework.version", "the image is the workers'"))
    worker = ("spec", "mpiReplicaSpecs", "Worker", "template", "spec", "containers", 0)
    for name in ("command", "args"):
        file.judge((*worker, name), mapped("batch.roles", "workers wait; mpirun starts its daemons without ssh"))


_OF_MPI: dict[str, KeyFate] = {
    "spec.sshAuthMountPath": mapped("", "mpirun needs no ssh here"),
    "spec.mpiImplementation": mapped("", "learners have the variables of all of them"),
    "spec.launcherCreationPolicy": mapped("", "all learners start together"),
    "spec.runLauncherAsWorker": mapped("learners"),
}


def _read_train_job(file: ForeignFile) -> dict[str, object]:
    variables, place = Variables(), ("spec", "trainer")
    pod = read_container(file, place, variables, _GIVEN, "resourcesPerNode")
    batch = {**_limits(file, ("spec",)), **variables.keys()}
    _processes(file, (*place, "numProcPerNode"), pod, batch)
    runtime = file.text("spec", "runtimeRef", "name")
    why = f"its runtime {runtime} is not read: image, command, numNodes and resources are those of this file"
    file.judge(("spec", "runtimeRef"), near("framework", why))
    return _manifest(file, pod, file.count(*place, "numNodes") or 1, batch)


_READERS: Mappings[str, tuple[Callable[[ForeignFile], dict[str, object]], Mappings[str, KeyFate]]] = {
    "Job": (_read_job, _OF_JOB),
    "PyTorchJob": (_read_pytorch_job, _OF_KUBEFLOW),
    "MPIJob": (_read_mpi_job, {**_OF_KUBEFLOW, **_OF_MPI}),
    "TrainJob": (_read_train_job, _OF_TRAINER),
}
