"""Reads task configurations of dstack (entry point ``dstack`` of ``ffdl_batch.converters``)."""

from __future__ import annotations

import re
import shlex

from ffdl_batch.domain.conversion import CannotConvert, Conversion, Source
from ffdl_batch.domain.quantity import UNLIMITED_S, format_time_limit, parse_requested_time
from ffdl_batch.manifest.credentials import secret_name
from ffdl_batch.manifest.document.tree import Mapping, Place, Unreadable
from ffdl_batch.manifest.imports.foreign_file import QUIET, ForeignFile, lost, mapped, mappings_of, near, read_documents
from ffdl_batch.manifest.imports.learner_parts import (
    NODE_NAMES,
    Variables,
    conversion_of,
    exports_for,
    framework_of,
    memory_text,
)

_TYPES = frozenset({"task", "service", "dev-environment", "fleet", "volume", "gateway"})
_PLACES = lost("the backend and its partitions or profiles say where a job runs")
_IMAGE = lost("name an image that has it as framework.version")
_MODEL = lost("put the files into the model: ffdl-submit MANIFEST DIRECTORY")
_FATES = {
    "type": QUIET,
    "name": mapped("name"),
    "commands": mapped("framework.command"),
    "nodes": mapped("learners"),
    "image": mapped("framework.version"),
    "shell": near("framework.command", "bash runs the commands"),
    "working_dir": near("framework.command", "the commands begin there; the image has to have it"),
    "resources.shm_size": lost("learners have the shared memory of their node"),
    "resources.disk": lost("learners write to the directory of the job; storage: asks for room on Kubernetes"),
    "python": _IMAGE, "nvcc": _IMAGE, "docker": _IMAGE,
    "entrypoint": lost("a learner starts the command, and not what its image starts"),
    "user": lost("learners run as the user who submits the job"),
    "privileged": lost("learners have no privileges"),
    "home_dir": QUIET,
    "setup": QUIET,
    "dstack": lost("there is no server of dstack"),
    "registry_auth": lost("the site's configuration has the credentials of registries"),
    "repos": _MODEL, "files": _MODEL, "single_branch": _MODEL,
    "volumes": lost("name data under data_stores"),
    "ports": lost("ports of learners are not open to others"),
    "priority": lost("see batch.priority and batch.qos"),
    "spot_policy": mapped("batch.preemptible"),
    "stop_duration": lost("batch.checkpoint.grace_s is the time for a checkpoint"),
    "retry": near("batch.retry", "another attempt follows a preemption or the failure of a node; see batch.retry"),
    "max_price": lost("no price decides where a job runs; batch.retry.gpu_hours limits a job"),
    "schedule": lost("batch.begin starts a job once; use cron for more"),
    "utilization_policy": lost("it needs a percentage and a time; write batch.idle"),
    "startup_order": mapped("", "all learners start together"),
    "stop_criteria": near("batch.roles", "a job ends when all its learners have; see service of batch.roles"),
    "tags": lost("no job has labels: see batch.comment"),
    **dict.fromkeys(("backends", "regions", "availability_zones", "instance_types", "instances", "fleets"), _PLACES),
    **dict.fromkeys(("reservation", "creation_policy", "idle_duration", "backend_options"), _PLACES),
    **dict.fromkeys(("termination_policy", "termination_idle_time"), _PLACES),
}  # fmt: skip
_SECRET = re.compile(r"\$\{\{\s*secrets\.([\w-]+)\s*\}\}", re.ASCII)
_AMOUNT = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)(mb|gb|tb|)", re.ASCII)
_GIB = {"mb": 1024**-1, "gb": 1, "": 1, "tb": 1024}
"""Factors to GiB; dstack's GB are 1024 MB."""
_VENDORS = frozenset({"nvidia", "amd", "intel"})


class DstackReader:
    """Reads one task."""

    def recognises(self, text: str) -> bool:
        """Return whether `type` is one of dstack's."""
        roots = mappings_of(text)
        if len(roots) != 1 or "framework" in roots[0].entries:
            return False
        return ForeignFile(roots[0], {}).text("type") in _TYPES

    def convert(self, source: Source) -> Conversion:
        """Return the manifest, and what became of each field. Raises CannotConvert."""
        try:
            file = ForeignFile(read_documents(source.text)[0], _FATES)
        except Unreadable as error:
            raise CannotConvert(error.message, error.cure, error.mark.line if error.mark else 0) from None
        kind = file.text("type")
        if kind != "task":
            raise file.error(f"a {kind} is not a job that ends", "convert configurations of type task", ("type",))
        if file.node("groups") is not None:
            cure = "write batch.roles of a manifest, which have commands and resources of their own"
            raise file.error("groups of nodes are not converted", cure, ("groups",))
        return _convert(file, source.image)

    def differences(self, source: Source, script: str) -> tuple[str, ...]:  # noqa: ARG002 - the port's signature
        """There is no way back to a configuration of dstack."""
        raise CannotConvert("--check compares scripts of sbatch", "leave it out")


def create() -> DstackReader:
    """For the entry point."""
    return DstackReader()


def _convert(file: ForeignFile, image: str) -> Conversion:
    commands = file.texts("commands")
    if not commands:
        raise file.error("the task has no commands, and what the image starts is not known", "write commands:")
    resources, learners = _resources(file), file.count("nodes") or 1
    batch: dict[str, object] = {}
    limit = _limit(file)
    if limit:
        batch["time"] = limit
    policy = file.text("spot_policy")
    if policy:
        batch["preemptible"] = policy == "spot"
        exact = mapped("batch.preemptible")
        file.judge(
            ("spot_policy",), near("batch.preemptible", "it may not be preempted") if policy == "auto" else exact
        )
    if file.node("retry") is not None and file.text("retry").lower() in ("false", "no", "off"):
        batch["retry"] = {"preemptions": 0, "node_failures": 0, "failures": 0}
        file.judge(("retry",), mapped("batch.retry"))
    idle = _idle(file, several=int(str(resources.get("gpus", 0))) > 1)
    if idle:
        batch["idle"] = idle
    variables = _variables(file)
    return conversion_of(
        file,
        {
            "name": file.text("name") or "converted",
            "learners": learners,
            **resources,
            "framework": framework_of(file.text("image"), _command(file, commands, resources, learners)),
            "batch": {**batch, **variables.keys()},
        },
        image,
    )


def _command(file: ForeignFile, commands: list[str], resources: dict[str, object], learners: int) -> str:
    """Return the commands as dstack joins them: the first one that fails is the last one."""
    gpus = int(str(resources.get("gpus", 0)))
    values = {
        "DSTACK_NODE_RANK": '"$RANK"',
        "DSTACK_NODES_NUM": '"$NUM_LEARNERS"',
        "DSTACK_MASTER_NODE_IP": '"$MASTER_ADDR"',
        "DSTACK_NODES_IPS": f'"{NODE_NAMES}"',
        "DSTACK_GPUS_PER_NODE": str(gpus),
        "DSTACK_GPUS_NUM": str(gpus * learners),
        "DSTACK_MPI_HOSTFILE": '"$JOB_STATE_DIR/.hostfile"',
        "DSTACK_RUN_NAME": '"$TRAINING_ID"',
        "DSTACK_WORKING_DIR": '"$PWD"',
        "DSTACK_REPO_DIR": '"$MODEL_DIR"',
    }
    stripped = [command.strip() for command in commands]
    joined = " &&\n".join(f"{{ {one} }}" if one.endswith("&") else one for one in stripped)
    directory = file.text("working_dir")
    place = f"cd {shlex.quote(directory)} &&\n" if directory else ""
    return exports_for(joined, values) + place + joined


def _variables(file: ForeignFile) -> Variables:
    """Read ``env``: a mapping, or a list of ``NAME=value`` and of names."""
    variables = Variables()
    pairs: list[tuple[Place, str, str]] = [(("env", name), name, file.text("env", name)) for name in file.keys("env")]
    for number in file.items("env"):
        name, equals, value = file.text("env", number).partition("=")
        pairs.append((("env", number), name, value if equals else ""))
    for place, name, value in pairs:
        secret = _SECRET.fullmatch(value)
        if secret is not None:
            variables.keep(file, place, name, secret_name(secret[1]))
        elif value:
            variables.put(file, place, name, value)
        else:
            variables.ask(file, place, name)
    return variables


def _limit(file: ForeignFile) -> str:
    text = file.text("max_duration").lower()
    try:
        seconds = (
            int(text) if text.isdigit() else UNLIMITED_S if text in ("off", "-1") else parse_requested_time(text or "1")
        )
    except ValueError:
        file.judge(("max_duration",), lost("it is not a duration: write batch.time"))
        return ""
    file.judge(("max_duration",), mapped("batch.time"))
    return format_time_limit(seconds) if text and seconds else ""


def _idle(file: ForeignFile, *, several: bool) -> dict[str, object]:
    """Read ``utilization_policy``. dstack ends a job if the use of any GPU of a node was too low in the whole time."""
    place = ("utilization_policy",)
    share, text = file.text(*place, "min_gpu_utilization"), file.text(*place, "time_window")
    if share == "0":
        file.judge(place, mapped("", "no use is below 0 %, so it ends no job"))
        return {}
    try:
        seconds = int(text) if text.isdigit() else parse_requested_time(text)
    except ValueError:
        return {}
    if not share.isdigit() or int(share) > 100 or not 0 < seconds < UNLIMITED_S:
        return {}
    why = "a job ends when all GPUs of a node are idle; dstack ends it when one is" if several else ""
    file.judge(place, near("batch.idle", why) if why else mapped("batch.idle"))
    return {"gpu_below": f"{share}%", "for": format_time_limit(seconds)}


def _resources(file: ForeignFile) -> dict[str, object]:
    found: dict[str, object] = {}
    cpu = file.text("resources", "cpu") or file.text("resources", "cpu", "count")
    count = next((_least(token) for token in cpu.split(":") if _least(token)), "")
    if count.isdigit():
        found["cpus"] = int(count)
    _judge_least(file, ("resources", "cpu"), cpu, "cpus", is_read=bool(count))
    memory = _least(file.text("resources", "memory") or file.text("resources", "memory", "min"))
    match = _AMOUNT.fullmatch(memory.lower().replace(" ", ""))
    if match is not None:
        found["memory"] = memory_text(float(match[1]) * _GIB[match[2]])
    _judge_least(file, ("resources", "memory"), file.text("resources", "memory"), "memory", is_read=match is not None)
    return found | _gpus(file)


def _least(text: str) -> str:
    """Return the lower end of a range ``4..8``, or the amount; "" for what begins with no digit."""
    least, _, _ = text.replace(" ", "").partition("..")
    return least if least[:1].isdigit() else ""


def _judge_least(file: ForeignFile, place: Place, text: str, to: str, *, is_read: bool) -> None:
    if not is_read:
        file.judge(place, lost(f"it is not an amount of a learner: write {to}: into the manifest"))
    else:
        file.judge(place, near(to, "a learner gets the least that is asked for") if ".." in text else mapped(to))


def _gpus(file: ForeignFile) -> dict[str, object]:
    """Read ``A100:80GB:8``, or its parts by name. The number is 1 if there is none."""
    place = ("resources", "gpu")
    node = file.node(*place)
    if node is None:
        return {}
    tokens = file.text(*place).split(":")
    if isinstance(node, Mapping):
        tokens = [file.text(*place, "count"), *file.texts(*place, "name")[:1], *file.texts(*place, "memory")]
    tokens = [token.strip() for token in tokens if token.strip()]
    kinds = [one for one in tokens if one[0].isalpha() and one.lower() not in _VENDORS]
    counts = [least for one in tokens if (least := _least(one)).isdigit()]
    sizes = [one for one in tokens if one[0].isdigit() and not _least(one).isdigit()]
    if any(one.lower() in ("google", "tpu", "tenstorrent", "tt") for one in tokens):
        file.judge(place, lost("it names no GPU"))
        return {}
    names = kinds[0].split(",") if kinds else []
    why = ["name the type as this site does"] if names else []
    why += ["the first type of the list"] if len(names) > 1 else []
    why += [f"memory of a GPU ({sizes[0]}) is not asked for: name a type that has it"] if sizes else []
    why += ["the least number of the range"] if any(".." in one for one in tokens) else []
    file.judge(place, near("gpus, gpu_type", "; ".join(why)) if why else mapped("gpus"))
    return {"gpus": int(counts[0]) if counts else 1, **({"gpu_type": names[0]} if names else {})}
