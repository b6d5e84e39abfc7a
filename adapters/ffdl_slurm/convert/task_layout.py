"""Computes the tasks, CPUs, GPUs and memory of each node from the options of sbatch that count them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import field

from ffdl_batch.domain.conversion import CannotConvert, Origin
from ffdl_batch.domain.quantity import WHOLE_NODE, parse_gres_count, parse_slurm_memory
from ffdl_batch.domain.sbatch.option_table import ARGS
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_slurm.convert.directives import Given, Options, whole
from ffdl_slurm.convert.output_variables import OF_MEMORY, OPTION_OF
from ffdl_slurm.convert.whole_nodes import count_gpus, takes_whole_nodes, uses_gpus

_MIB = 1024**2
_ALONE = "the nodes are the job's alone; of their CPUs a learner has those that cpus: says"
_UNCOUNTED = (
    "sbatch gives it all GPUs of its nodes, and the script does not say how many: gpus is 0; write gpus: into the "
    "manifest, or convert with --options --gpus-per-node=N"
)
_RANKS = {Origin.COMMAND: 0, Origin.ENVIRONMENT: 1, Origin.SCRIPT: 2}
_GRES_NAME = re.compile(r"[A-Za-z_][\w.-]*(:\w[\w.-]*)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Layout:
    """The resources of each node; `memory_mib` is None if no option sets it."""

    nodes: int = 1
    tasks_per_node: int = 1
    ntasks: int = 1
    """All tasks of the job."""
    cpus: int = 1
    gpus: int = 0
    gpu_type: str = ""
    memory_mib: int | None = None
    gres: Mapping[str, int] = field(default_factory=dict)
    exported: Mapping[str, str] = field(default_factory=dict)
    """The variables of Slurm that sbatch sets because their options are given."""


def read_layout(options: Options, script: str = "") -> Layout:
    """Return the layout, and report what becomes of its options. `script` says how many GPUs whole nodes have. Raises
    CannotConvert."""
    wanted = _tres_per_task(options)
    nodes, ntasks = _nodes(options), options.count("ntasks")
    per_node = options.count("ntasks-per-node", "tasks-per-node")
    ntasks = ntasks or _tasks_of_gpus(options)
    if nodes is None:
        nodes = _nodes_of_gpus(options) or _nodes_of_tasks(options, ntasks, per_node)
    elif ntasks and ntasks < nodes:
        options.near("nodes", f"sbatch takes no more nodes than there are tasks: {ntasks}")
        nodes = ntasks
    gres = _gres(options)
    gpus, gpu_type = _gpus(options, nodes, gres.pop("gpu", 0), gres)
    if per_node is None:
        per_node = _tasks_by_gpus(options, gpus) or (math.ceil(ntasks / nodes) if ntasks else 1)
    gpus = gpus or _gpus_of_tasks(options, wanted, per_node)
    gpu_type = gpu_type or _type_in(options.text("gpus-per-task")) or str(wanted.get("type", ""))
    ntasks = ntasks or nodes * per_node
    per_task = options.count("cpus-per-task") or int(str(wanted.get("cpu", 0))) or None
    cpus = per_node * (per_task or 1)
    per_gpu = options.count("cpus-per-gpu")
    if per_gpu and gpus and per_task is None:
        cpus = max(per_gpu * gpus, per_node)
    if options.get("exclusive"):
        options.near("exclusive", _ALONE)
    if takes_whole_nodes(options) and not gpus:
        gpus = _gpus_of_whole_nodes(options, nodes, script)
    shares = sorted({"shard", "mps"} & {name.partition(":")[0] for name in gres}) if gpus else []
    if shares:
        options.near("gres", f"{shares[0]} is left out: a learner has whole GPUs or shares, not both")
        gres = {name: count for name, count in gres.items() if name.partition(":")[0] not in shares}
    memory_mib = _memory(options, cpus, gpus)
    return Layout(nodes, per_node, ntasks, cpus, gpus, gpu_type, memory_mib, gres, _exported(options, ntasks))


def _exported(options: Options, ntasks: int) -> Mapping[str, str]:
    """Return the variables of Slurm, with the values that sbatch sets."""
    found = {}
    for variable, name in OPTION_OF.items():
        text = options.text(name) or (options.text("tasks-per-node") if name == "ntasks-per-node" else "")
        if text:
            found[variable] = str(parse_slurm_memory(text) // _MIB) if name in OF_MEMORY else text
    if found.keys() & {"SLURM_NTASKS_PER_NODE", "SLURM_NTASKS_PER_GPU"} or _tasks_of_gpus(options):
        found["SLURM_NTASKS"] = str(ntasks)
    return found


def _nodes(options: Options) -> int | None:
    """Return the least number of ``N``, ``MIN-MAX`` or ``N,M``."""
    one = options.get("nodes")
    if one is None:
        return None
    text = one.value.strip()
    numbers = [_thousands(one, part) for part in re.split(r"[-,]", text.split(":")[0])]
    if not numbers or not numbers[0]:
        raise CannotConvert(f"{one.text.strip()!r}: a job needs a node", "write a number from 1 up", one.line)
    if len(set(numbers)) > 1:
        options.near("nodes", f"learners are a fixed number: {min(numbers)}, the least that was asked for")
    return min(numbers)


def _thousands(one: Given, text: str) -> int:
    factor = {"k": 1024, "m": 1024**2}.get(text[-1:].lower(), 1)
    return whole(one, text[:-1] if factor > 1 else text) * factor


def _count_of(options: Options, name: str) -> int:
    one = options.get(name)
    return sum(_typed_counts(one).values()) if one is not None else 0


def _tasks_of_gpus(options: Options) -> int | None:
    """Return the number of tasks that --gpus and --gpus-per-task mean together (sbatch(1), --gpus-per-task)."""
    total, each = _count_of(options, "gpus"), _count_of(options, "gpus-per-task")
    return total // each if total and each and options.get("ntasks") is None else None


def _nodes_of_gpus(options: Options) -> int:
    """Return the number of nodes that --gpus and --gpus-per-node mean together; 0 if Slurm chooses it."""
    total, each = _count_of(options, "gpus"), _count_of(options, "gpus-per-node")
    if total > 1 and not each and options.get("ntasks-per-node") is None and options.get("tasks-per-node") is None:
        options.near("gpus", "Slurm takes them of as many nodes as it likes; here all are of one")
    return math.ceil(total / each) if total and each else 0


def _nodes_of_tasks(options: Options, ntasks: int | None, per_node: int | None) -> int:
    if ntasks and per_node:
        return max(1, math.ceil(ntasks / per_node))
    if ntasks and ntasks > 1:
        options.near("ntasks", "Slurm lays the tasks over as many nodes as it likes; here all are on one")
    return 1


def _tasks_by_gpus(options: Options, gpus: int) -> int:
    one = options.get("ntasks-per-gpu")
    if one is not None:
        return gpus * whole(one, one.value)
    one = options.get("ntasks-per-tres")
    if one is not None:
        kind, _, count = one.value.replace("=", ":").rpartition(":")
        if kind.removeprefix("gres/") == "gpu" or not kind:
            return gpus * whole(one, count)
        options.drop("ntasks-per-tres", "tasks are counted by GPUs only")
    return 0


def _gpus(options: Options, nodes: int, of_gres: int, typed: dict[str, int]) -> tuple[int, str]:
    """Return the GPUs of each node, and their type."""
    kinds = {name.partition(":")[2]: typed.pop(name) for name in [*typed] if name.startswith("gpu:")}
    for name in ("gpus-per-node", "gpus-per-socket", "gpus"):
        one = options.get(name)
        if one is not None and not kinds and not of_gres:
            counts = _typed_counts(one)
            if len(counts) > 1:
                options.near(name, f"all learners have GPUs of one type: {next(iter(counts)) or 'any'}")
            gpu_type, count = next(iter(counts.items()))
            return _on_node(options, name, count, nodes), gpu_type
    if len(kinds) > 1:
        options.near("gres", f"all learners have GPUs of one type: {next(iter(kinds))}")
    if kinds:
        gpu_type, count = next(iter(kinds.items()))
        return count + of_gres, gpu_type
    return of_gres, ""


def _on_node(options: Options, name: str, count: int, nodes: int) -> int:
    if name == "gpus-per-socket":
        sockets = options.count("sockets-per-node") or 1
        options.near(name, f"counted for {sockets} {'socket' if sockets == 1 else 'sockets'} of each node", "gpus")
        return count * sockets
    if name == "gpus" and count % nodes:
        options.near(name, f"each of {nodes} nodes has as many as the fullest: {math.ceil(count / nodes)}")
    return math.ceil(count / nodes) if name == "gpus" else count


def _typed_counts(one: Given) -> dict[str, int]:
    """Read ``a100:2,v100:1`` or ``2`` as counts by type; the type is "" if none is given."""
    counts: dict[str, int] = {}
    for item in filter(None, one.value.split(",")):
        kind, _, count = item.strip().replace("=", ":").rpartition(":")
        counts[kind] = counts.get(kind, 0) + whole(one, count)
    if not counts:
        raise CannotConvert(f"{one.text.strip()!r} names no number of GPUs", "write [type:]number", one.line)
    return counts


def _gpus_of_tasks(options: Options, wanted: Mapping[str, object], per_node: int) -> int:
    one = options.get("gpus-per-task")
    count = sum(_typed_counts(one).values()) if one is not None else int(str(wanted.get("gpu", 0)))
    return count * per_node


def _gpus_of_whole_nodes(options: Options, nodes: int, script: str) -> int:
    """Return the GPUs of each node by what the script runs; sbatch gives the job all of them."""
    found = count_gpus(script, nodes)
    if found is None and uses_gpus(script):
        options.lose("exclusive", _UNCOUNTED)
    elif found is None:
        options.near("exclusive", f"{_ALONE}, and no GPUs: write gpus: into the manifest if it needs them")
    else:
        options.near(
            "exclusive", f"{_ALONE}; each node has {found} GPUs by the commands of the script", f"{ARGS}, gpus"
        )
    return found or 0


def _type_in(text: str) -> str:
    return text.split(",", maxsplit=1)[0].replace("=", ":").rpartition(":")[0]


def _tres_per_task(options: Options) -> dict[str, object]:
    """Read ``cpu=4,gres/gpu:a100=1`` as cpu, gpu and type."""
    one = options.get("tres-per-task")
    wanted: dict[str, object] = {}
    for item in filter(None, one.value.split(",")) if one is not None else ():
        kind, _, count = item.strip().replace("=", ":").rpartition(":")
        name, _, gpu_type = kind.removeprefix("gres/").partition(":")
        if one is None or name not in ("cpu", "gpu"):
            by = "--mem" if name == "mem" else "--gres"
            options.near("tres-per-task", f"{name or item} is not counted by task; ask for it by {by}")
        else:
            wanted[name] = whole(one, count)
            wanted.update({"type": gpu_type} if gpu_type else {})
    return wanted


def _gres(options: Options) -> dict[str, int]:
    """Read ``gpu:a100:2,nvme`` as counts by ``name`` or ``name:type``, without what a manifest cannot express."""
    one = options.get("gres")
    found: dict[str, int] = {}
    left: list[str] = []
    for item in re.split(r",(?![^()]*\))", one.value) if one is not None else ():
        text = re.sub(r"\(.*\)$", "", item.strip()).removeprefix("gres/").removeprefix("gres:").replace("=", ":")
        if text in ("", "none"):
            continue
        name, count = _gres_count(text)
        if not _GRES_NAME.fullmatch(name):
            left.append(item)
        elif count:
            found[name] = found.get(name, 0) + count
    if left:
        options.near("gres", f"{', '.join(left)} cannot be asked for, and is left out")
    return found


def _gres_count(text: str) -> tuple[str, int]:
    """Return name and count; the count is what stands after the last colon, if it is a number or an amount."""
    name, colon, last = text.rpartition(":")
    count = parse_gres_count(last) if colon else None
    return (text, 1) if count is None else (name, count)


def _memory(options: Options, cpus: int, gpus: int) -> int | None:
    """Return the MiB of each node, WHOLE_NODE for all of them. The option of the highest rank wins; sbatch refuses two
    of one source."""
    ways = {"mem": 1, "mem-per-cpu": cpus, "mem-per-gpu": gpus}
    given = [one for one in map(options.get, ways) if one is not None]
    sizes = {one.option.name: _size(one) for one in given}
    ranked = sorted(given, key=lambda one: _RANKS[one.origin])
    for other in ranked[1:]:
        options.drop(other.option.name, f"{ranked[0].text.strip()} counts")
    if not ranked:
        return None
    name = ranked[0].option.name
    size = sizes[name] * ways[name]
    if size:
        return max(1, math.ceil(size / _MIB))
    if name == "mem":
        return WHOLE_NODE
    what = "it is nothing" if ways[name] else "there are no GPUs"
    options.drop(name, f"{what}: write memory: of a learner into the manifest, or the site's default counts")
    return None


def _size(one: Given) -> int:
    """Return the bytes of a memory option. Raises CannotConvert."""
    try:
        return parse_slurm_memory(one.value)
    except ValueError as error:
        raise CannotConvert(f"{one.text.strip()!r}: {error}", "", one.line) from None
