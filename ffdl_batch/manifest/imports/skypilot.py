"""Reads task files of SkyPilot (entry point ``skypilot`` of ``ffdl_batch.converters``)."""

from __future__ import annotations

import re

from ffdl_batch.domain.conversion import CannotConvert, Conversion, Source
from ffdl_batch.manifest.credentials import secret_name
from ffdl_batch.manifest.document.tree import Mapping, Place, Sequence, Unreadable
from ffdl_batch.manifest.imports.foreign_file import ForeignFile, lost, mapped, mappings_of, near, read_documents
from ffdl_batch.manifest.imports.learner_parts import (
    NODE_NAMES,
    Variables,
    conversion_of,
    exports_for,
    framework_of,
    memory_text,
)

_TELLING = frozenset({"run", "setup", "num_nodes", "file_mounts", "workdir", "envs"})
_OTHERS = frozenset({"framework", "learners", "type", "apiVersion", "kind", "commands", "model_definition"})
"""Keys of FfDL's manifests, and of other formats."""
_PLACES = "the backend and its partitions or profiles say where a job runs"
_CANDIDATES = lost("a job has one request: the fields beside it; write one candidate there")
_DISKS = lost("learners write to the directory of the job; storage: asks for room on Kubernetes")
_IDLE = lost("no machine is left behind when a job ends")
_FATES = {
    "name": mapped("name"),
    "run": mapped("framework.command"),
    "setup": near("framework.command", "each learner runs it before the command, in every attempt"),
    "num_nodes": mapped("learners"),
    "workdir": near("", "give this directory as the model: ffdl-submit MANIFEST DIRECTORY"),
    "file_mounts": lost("name data under data_stores, and put files into the model"),
    "volumes": lost("name data under data_stores"),
    "config": lost("the site's configuration has such settings"),
    "experimental": lost("the site's configuration has such settings"),
    "event_callback": lost("batch.notify.webhook gets notices"),
    "inputs": lost("name data under data_stores"),
    "outputs": lost("name data under data_stores"),
    "resources.accelerator_args": lost("TPUs cannot be asked for"),
    "resources.any_of": _CANDIDATES,
    "resources.ordered": _CANDIDATES,
    "resources.instance_type": lost("types of machines are not known here: write cpus:, memory: and gpus:"),
    "resources.disk_size": _DISKS,
    "resources.disk_tier": _DISKS,
    "resources.local_disk": _DISKS,
    "resources.network_tier": lost("the site's nodes have the network that they have"),
    "resources.max_hourly_cost": lost("no price decides where a job runs; batch.retry.gpu_hours limits a job"),
    "resources.ports": lost("ports of learners are not open to others"),
    "resources.labels": lost("no job has labels: see batch.comment"),
    "resources.autostop": _IDLE,
    "resources.autodown": _IDLE,
    "resources.use_spot": mapped("batch.preemptible"),
    "resources.spot_recovery": lost("batch.retry.preemptions says how often a preempted job continues"),
    "resources.job_recovery": lost("batch.retry says after which failures another attempt follows"),
    "resources.job_recovery.strategy": lost("batch.retry.preemptions says how often a preempted job continues"),
    "resources.job_recovery.max_restarts_on_errors": mapped("batch.retry.failures"),
    "resources.priority": lost("see batch.priority and batch.qos"),
    **{f"resources.{name}": lost(_PLACES) for name in ("infra", "cloud", "region", "zone")},
}
_ACCELERATOR = re.compile(r"(?P<name>[A-Za-z][\w.-]*)(?::(?P<count>\d{1,4}(?:\.\d{1,3})?))?", re.ASCII)
_AMOUNT = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)\s*([kmgtp]?)(?:i?b)?(\+?)", re.ASCII | re.IGNORECASE)
_GIB = {"k": 1024**-2, "m": 1024**-1, "": 1, "g": 1, "t": 1024, "p": 1024**2}
"""Factors to GiB; SkyPilot's GB are 2³⁰ bytes."""
_REGISTRY = ("SKYPILOT_DOCKER_USERNAME", "SKYPILOT_DOCKER_PASSWORD", "SKYPILOT_DOCKER_SERVER")


class SkyPilotReader:
    """Reads one task."""

    def recognises(self, text: str) -> bool:
        """Return whether the keys are those of a task."""
        roots = mappings_of(text)
        keys = {key for root in roots for key in root.entries}
        return bool(keys & _TELLING) and not keys & _OTHERS

    def convert(self, source: Source) -> Conversion:
        """Return the manifest, and what became of each field. Raises CannotConvert."""
        try:
            roots = read_documents(source.text)
        except Unreadable as error:
            raise CannotConvert(error.message, error.cure, error.mark.line if error.mark else 0) from None
        tasks = [root for root in roots if root.entries.keys() - {"name", "execution"}]
        if len(tasks) != 1:
            cure = "convert each by itself; --dependency makes a job wait for another"
            raise CannotConvert(f"the file has {len(tasks)} tasks, and a manifest is one job", cure, 1)
        return _convert(ForeignFile(tasks[0], _FATES), source.image)

    def differences(self, source: Source, script: str) -> tuple[str, ...]:  # noqa: ARG002 - the port's signature
        """There is no way back to a task."""
        raise CannotConvert("--check compares scripts of sbatch", "leave it out")


def create() -> SkyPilotReader:
    """For the entry point."""
    return SkyPilotReader()


def _convert(file: ForeignFile, image: str) -> Conversion:
    if file.node("service") is not None:
        raise file.error("a service answers requests for ever, and a job ends", "convert tasks", ("service",))
    run = file.text("run")
    if not run:
        raise file.error("the task has no run, so there is nothing to do", "write run:")
    resources = _resources(file)
    batch: dict[str, object] = {}
    restarts = file.count("resources", "job_recovery", "max_restarts_on_errors")
    if restarts is not None:
        batch["retry"] = {"failures": restarts}
    if file.is_true("resources", "use_spot"):
        batch["preemptible"] = True
    command = _command(file, run, resources)
    return conversion_of(
        file,
        {
            "name": file.text("name") or "converted",
            "learners": file.count("num_nodes") or 1,
            **resources,
            "framework": framework_of(_image(file), command),
            "batch": {**batch, **_variables(file).keys()},
        },
        image,
    )


def _command(file: ForeignFile, run: str, resources: dict[str, object]) -> str:
    setup = file.text("setup")
    values = {
        "SKYPILOT_NODE_RANK": '"$RANK"',
        "SKYPILOT_NUM_NODES": '"$NUM_LEARNERS"',
        "SKYPILOT_NUM_GPUS_PER_NODE": f"{resources.get('gpus', 0)}",
        "SKYPILOT_NODE_IPS": f'"{NODE_NAMES}"',
        "SKYPILOT_SETUP_NODE_RANK": '"$RANK"',
        "SKYPILOT_SETUP_NODE_IPS": f'"{NODE_NAMES}"',
        "SKYPILOT_SETUP_NUM_GPUS_PER_NODE": f"{resources.get('gpus', 0)}",
        "SKYPILOT_TASK_ID": '"$TRAINING_ID"',
    }
    before = f"(\n{setup}\n) || exit\n" if setup else ""
    return exports_for(f"{setup}\n{run}", values) + before + run


def _image(file: ForeignFile) -> str:
    image = file.text("resources", "image_id")
    if image.startswith("docker:"):
        file.judge(("resources", "image_id"), mapped("framework.version"))
        return image.removeprefix("docker:")
    why = "a machine's image is none that learners can run in: name one as framework.version"
    file.judge(("resources", "image_id"), lost(why))
    return ""


def _variables(file: ForeignFile) -> Variables:
    variables = Variables()
    for name in file.keys("envs"):
        place: Place = ("envs", name)
        node = file.node(*place)
        if name in _REGISTRY:
            file.hide(place)
            file.judge(place, lost("the site's configuration has the credentials of registries"))
        elif node is None or not file.text(*place):
            variables.ask(file, place, name)
        else:
            variables.put(file, place, name, file.text(*place))
    for name in file.keys("secrets"):
        variables.keep(file, ("secrets", name), name, secret_name(name))
    return variables


def _resources(file: ForeignFile) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, unit in (("cpus", ""), ("memory", "g")):
        place = ("resources", name)
        match = _AMOUNT.fullmatch(file.text(*place))
        if match is None or (not unit and match[2]):
            file.judge(place, lost("it is not an amount of a learner: write one into the manifest"))
            continue
        amount = float(match[1])
        found[name] = memory_text(amount * _GIB[match[2].lower()]) if unit else int(amount) or amount
        file.judge(place, near(name, "a learner gets the least that is asked for") if match[3] else mapped(name))
    return found | _accelerators(file)


def _accelerators(file: ForeignFile) -> dict[str, object]:
    place = ("resources", "accelerators")
    node = file.node(*place)
    if node is None:
        return {}
    wanted = file.texts(*place)
    if isinstance(node, Mapping):
        wanted = [f"{name}:{file.text(*place, name)}".rstrip(":") for name in node.entries]
    first = _ACCELERATOR.fullmatch(wanted[0].strip()) if wanted else None
    if first is None or first["name"].lower().startswith("tpu"):
        file.judge(place, lost("it names no GPU"))
        return {}
    count = float(first["count"] or 1)
    why = "name the type as this site does"
    if len(wanted) > 1 or isinstance(node, Sequence):
        why = f"the first of the list; {why}"
    file.judge(place, near("gpus, gpu_type", why))
    return {"gpus": int(count) if count.is_integer() else count, "gpu_type": first["name"]}
