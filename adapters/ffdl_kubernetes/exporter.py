"""A manifest's job as objects of a cluster, for users who apply them by hand (entry point ``kubernetes`` of
``ffdl_batch.converters``).

They are what the backend sends, without what only its daemon can do: no process removes a finalizer, resumes a
suspended Job, follows its output, or starts a further attempt. The model and the values of secrets are named, never in
the text.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import yaml

from ffdl_batch.attempt.layout import Root
from ffdl_batch.domain.backend_facts import BackendFacts, PartitionShape
from ffdl_batch.domain.conversion import CannotConvert, ExportedJob, ExportRequest, Fate, KeyFate, judge_keys
from ffdl_batch.domain.job.array import ArrayId, expand, is_array
from ffdl_batch.domain.job.job import JobId, attempt_token
from ffdl_batch.domain.job.spec import JobSpec, NetworkLevel, Staging
from ffdl_batch.domain.scheduler_errors import InvalidRequest
from ffdl_batch.runtimes.launch_request import LaunchRequest
from ffdl_batch.runtimes.learner_start import staging_arguments
from ffdl_kubernetes.lifecycle.submission import OBJECTS
from ffdl_kubernetes.planning.launch_plan import make_plan
from ffdl_kubernetes.settings import KubernetesSettings, read_settings, settle

_MOST = 1000
"""Elements of an array that are written out: an object of each kind for every one."""
_USER = 1000
_CONTROLLER = ("-I", "-m", "ffdl_batch.controller")
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
_SLURM = KeyFate(Fate.DROPPED, "", "it is Slurm's")
_DAEMON = "it needs the daemon"
KEY_FATES = {
    "name": KeyFate(Fate.APPROXIMATED, "metadata.annotations", "names of objects are ids"),
    "learners": KeyFate(Fate.MAPPED, "spec.completions"),
    "cpus": KeyFate(Fate.MAPPED, "resources.requests"),
    "gpus": KeyFate(Fate.MAPPED, "resources.limits"),
    "gpu_type": KeyFate(Fate.MAPPED, "nodeSelector, or the resource's name"),
    "memory": KeyFate(Fate.MAPPED, "resources.limits"),
    "storage": KeyFate(Fate.MAPPED, "the size of the volume"),
    "framework": KeyFate(Fate.MAPPED, "image, and TRAINING_COMMAND"),
    "data_stores": KeyFate(Fate.APPROXIMATED, "the controller's container", "results are stored while the pod runs"),
    "data_stores.connection.user_name": KeyFate(Fate.APPROXIMATED, "Secret", "put the value in place of (not shown)"),
    "data_stores.connection.password": KeyFate(Fate.APPROXIMATED, "Secret", "put the value in place of (not shown)"),
    "evaluation_metrics": KeyFate(Fate.DROPPED, "", f"no process stores them: {_DAEMON}"),
    "batch.time": KeyFate(Fate.MAPPED, "activeDeadlineSeconds"),
    "batch.profile": KeyFate(Fate.MAPPED, "nodeSelector, tolerations"),
    "batch.kubernetes": KeyFate(Fate.MAPPED, "the pod's template"),
    "batch.env": KeyFate(Fate.MAPPED, "Secret"),
    "batch.secrets": KeyFate(Fate.APPROXIMATED, "Secret", "put the value in place of (not shown)"),
    "batch.placement": KeyFate(Fate.MAPPED, "affinity"),
    "batch.roles": KeyFate(Fate.MAPPED, "the launch file"),
    "batch.network": KeyFate(Fate.MAPPED, "NetworkPolicy"),
    "batch.gres": KeyFate(Fate.MAPPED, "resources.limits"),
    "batch.checkpoint": KeyFate(Fate.APPROXIMATED, "terminationGracePeriodSeconds", "only the pod's end asks for one"),
    "batch.slurm_environment": KeyFate(Fate.MAPPED, "the launch file"),
    "batch.array": KeyFate(Fate.APPROXIMATED, "a Job for each element", "all start at once"),
    "batch.sweep": KeyFate(Fate.APPROXIMATED, "a Job for each element", "all start at once"),
    "batch.health": KeyFate(Fate.MAPPED, "the launch file"),
    "batch.idle": KeyFate(Fate.MAPPED, "the launch file"),
    "batch.retry": KeyFate(Fate.DROPPED, "", f"no further attempt is started: {_DAEMON}"),
    "batch.restart": KeyFate(Fate.MAPPED, "the launch file"),
    "batch.dependency": KeyFate(Fate.DROPPED, "", f"it does not wait for other jobs: {_DAEMON}"),
    "batch.begin": KeyFate(Fate.DROPPED, "", f"the Job starts when it is applied: {_DAEMON}"),
    "batch.hold": KeyFate(Fate.DROPPED, "", f"the Job starts when it is applied: {_DAEMON}"),
    "batch.notify": KeyFate(Fate.DROPPED, "", f"no notice is sent: {_DAEMON}"),
    "batch.staging": KeyFate(Fate.DROPPED, "", f"data come when the pods run: {_DAEMON}"),
    "batch.mount": KeyFate(Fate.DROPPED, "", "pods bring what they cannot mount"),
    "batch.elastic": KeyFate(Fate.DROPPED, "", "the number of pods stays"),
    "batch.output": KeyFate(Fate.DROPPED, "", "kubectl logs has the output"),
    "batch.preemptible": KeyFate(Fate.DROPPED, "", "name a priority class under batch.kubernetes"),
    "batch.priority": KeyFate(Fate.DROPPED, "", "name a priority class under batch.kubernetes"),
    "description": KeyFate(Fate.DROPPED, "", "no object has room for it"),
    "version": KeyFate(Fate.DROPPED, "", "FfDL stores it nowhere either"),
    **{f"batch.{name}": _SLURM for name in (
        "partition", "account", "qos", "constraint", "reservation", "nodelist", "exclude", "requeue", "signal",
        "comment", "slurm",
    )},
}  # fmt: skip


class _Dumper(yaml.SafeDumper):
    """One value in two places is written twice."""

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002 - of any value
        return True


class KubernetesExporter:
    """Writes objects."""

    pulls_images = True

    def export(self, request: ExportRequest) -> ExportedJob:
        """See :class:`ffdl_batch.ports.conversion.ExportsJobs`."""
        settings = settle(read_settings(request.settings), "user", _USER)
        try:
            documents = [one for spec in _jobs(request.spec) for one in _objects(spec, request, settings)]
        except InvalidRequest as error:
            raise CannotConvert(str(error)) from None
        text = yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, width=10**9, allow_unicode=True)
        head = "".join(f"# {line}\n" for line in _remarks(request, documents))
        return ExportedJob(f"{head}---\n{text}", judge_keys(request.spec, KEY_FATES))


def create() -> KubernetesExporter:
    """Create the exporter for the entry point."""
    return KubernetesExporter()


def _jobs(spec: JobSpec) -> list[JobSpec]:
    """Each element of an array, or the job, without what the backend refuses and the report lists as dropped."""
    spec = replace(
        spec, batch=replace(spec.batch, hold=False, begin="", dependency="", slurm_args=(), staging=Staging.INLINE)
    )
    if not is_array(spec):
        return [spec]
    found = expand(spec, ArrayId(f"array-{_drawn(spec.name)}"))
    if len(found) > _MOST:
        raise CannotConvert(f"an array of {len(found)} elements would be as many Jobs", f"{_MOST} at most are written")
    return found


def _objects(spec: JobSpec, exported: ExportRequest, settings: KubernetesSettings) -> Iterator[dict[str, Any]]:
    job_id = JobId(f"training-{_drawn(exported.file, spec.name, spec.manifest_text)}")
    directory = Root("/ffdl").job(job_id)
    facts = BackendFacts(
        partitions=(PartitionShape(settings.namespace, is_default=True),) if settings.namespace else (),
        network_levels=frozenset(NetworkLevel) - {NetworkLevel.AUTO},
        version="none",
        python=settings.python,
        controller=_CONTROLLER,
        staging=staging_arguments(settings.python),
        pulls_images=True,
    )
    request = LaunchRequest(
        job_id=job_id, attempt=1, token=attempt_token(job_id, 1), spec=spec, job_dir=directory,
        attempt_dir=directory.attempt(1), doorbell="/ffdl/doorbell", facts=facts, image=exported.image,
        user_env=dict(spec.batch.env),
    )  # fmt: skip
    plan = make_plan(request, settings)
    planned = next(file.text for file in plan.files if file.name == OBJECTS)
    for one in json.loads(planned):
        yield _alone(one, request)


def _alone(one: dict[str, Any], request: LaunchRequest) -> dict[str, Any]:
    """Return the object in the form in which any user can apply it."""
    if one["kind"] == "Job":
        spec = one["spec"]
        spec["suspend"] = False
        spec["template"]["metadata"].pop("finalizers", None)
        for volume in spec["template"]["spec"]["volumes"]:
            if volume["name"] == "model":
                for source in volume["projected"]["sources"]:
                    source["configMap"]["name"] = _model(request.token)
    elif one["kind"] == "Secret" and "environment.json" in one.get("stringData", {}):
        known = json.dumps(dict(request.user_env), sort_keys=True, ensure_ascii=False)
        one["stringData"]["environment.json"] = known
    return one


def _model(token: str) -> str:
    return f"{token}-model"


def _remarks(request: ExportRequest, documents: list[dict[str, Any]]) -> Iterator[str]:
    yield f"Made of {' '.join(request.file.split())} by ffdl convert, without a daemon or a cluster."
    yield "The controller's image is ffdl_batch's; kubectl logs has what learners print."
    for one in documents:
        name = one["metadata"]["name"]
        if one["kind"] == "Job":
            yield "Before you apply this, in the directory of the model:"
            yield (
                f"zip -qr /tmp/model.zip . && kubectl create configmap {_model(name)} "
                "--from-file=model.zip.000=/tmp/model.zip"
            )
        elif one["kind"] == "Secret":
            yield f"Secret {name}: where it says (not shown) put the value."


def _drawn(*words: str) -> str:
    """Nine letters or digits that follow from `words`: the same manifest has the same names."""
    number = zlib.crc32("\0".join(words).encode()) | zlib.adler32("\0".join(words).encode()) << 32
    text = ""
    for _ in range(9):
        number, digit = divmod(number, len(_DIGITS))
        text += _DIGITS[digit]
    return text
