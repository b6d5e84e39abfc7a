"""sbatch-like options laid over the manifest's tree, so that one set of checks reads both.

An option's value becomes a node whose origin names the option; whatever is wrong with it is then reported by that
name instead of a line. Command-line options win over the manifest, environment ones only fill what it leaves out.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from collections.abc import Mapping as Mappings

from pydantic_core import PydanticCustomError

from ffdl_batch.domain.findings import Severity
from ffdl_batch.domain.quantity import parse_slurm_memory
from ffdl_batch.manifest.document.tree import Entry, Mapping, Mark, Node, Origin, Place, Scalar, Sequence, find
from ffdl_batch.manifest.finding_log import FindingLog
from ffdl_batch.manifest.models.sbatch_values import OWN_WORDS, split_gres
from ffdl_batch.manifest.models.scalars import refusal

# sbatch(1), "INPUT ENVIRONMENT VARIABLES", and FFDL_* for what sbatch has no variable for
VARIABLES = {
    "account": "SBATCH_ACCOUNT", "array": "SBATCH_ARRAY_INX", "constraint": "SBATCH_CONSTRAINT",
    "export": "SBATCH_EXPORT", "gpus": "SBATCH_GPUS", "gres": "SBATCH_GRES", "job-name": "SBATCH_JOB_NAME",
    "mem": "SBATCH_MEM_PER_NODE", "no-requeue": "SBATCH_NO_REQUEUE", "output": "SBATCH_OUTPUT",
    "partition": "SBATCH_PARTITION", "qos": "SBATCH_QOS", "requeue": "SBATCH_REQUEUE",
    "reservation": "SBATCH_RESERVATION", "signal": "SBATCH_SIGNAL", "time": "SBATCH_TIMELIMIT",
}  # fmt: skip
_PLACES: Mappings[str, Place] = {
    "job-name": ("name",), "learners": ("learners",), "cpus": ("cpus",), "cpus-per-task": ("cpus",),
    "time": ("batch", "time"), "partition": ("batch", "partition"), "account": ("batch", "account"),
    "qos": ("batch", "qos"), "constraint": ("batch", "constraint"), "reservation": ("batch", "reservation"),
    "nodelist": ("batch", "nodelist"), "exclude": ("batch", "exclude"), "dependency": ("batch", "dependency"),
    "array": ("batch", "array"), "begin": ("batch", "begin"), "signal": ("batch", "signal"),
    "comment": ("batch", "comment"), "output": ("batch", "output"), "mail-user": ("batch", "notify", "mail"),
    "mail-type": ("batch", "notify", "events"), "priority": ("batch", "priority"),
}  # fmt: skip
_NUMBERS = frozenset({"learners", "cpus", "cpus-per-task"})


class Overlay:
    """Writes the values of one layer of options into the tree. `wins`: over the manifest, or only into gaps."""

    def __init__(self, root: Mapping, wins: bool) -> None:
        self.root = root
        self.wins = wins

    def put(self, place: Place, value: Node) -> None:
        """Set `place`; mappings on the way are copied, since aliases may share them."""
        node = self.root
        for step in place[:-1]:
            child = node.get(str(step))
            if isinstance(child, (Sequence, Scalar)) and not (isinstance(child, Scalar) and child.is_null):
                return  # not a mapping: reported as such by the checks
            fresh = Mapping(dict(child.entries), child.origin, child.shadowed) if isinstance(child, Mapping) else None
            fresh = fresh or Mapping({}, value.origin)
            key = node.entries[str(step)].key if str(step) in node.entries else Scalar(str(step), value.origin)
            node.entries[str(step)] = Entry(key, fresh)
            node = fresh
        last = str(place[-1])
        if self.wins or not self.has(place):
            node.entries[last] = Entry(Scalar(last, value.origin), value)

    def has(self, place: Place) -> bool:
        """Whether the manifest says something at `place`."""
        node = find(self.root, place)
        return node is not None and not (isinstance(node, Scalar) and node.is_null)


def apply_options(
    root: Mapping, options: Mappings[str, str], environment: Mappings[str, str], log: FindingLog
) -> dict[str, str]:
    """Lay both layers over `root`; returns the sources of what has no place in the tree (``export``)."""
    recorded: dict[str, str] = {}
    for key, text in environment.items():
        name, label = _environment_name(key)
        _apply(Overlay(root, wins=False), name, text, Origin(Mark(1, 1), label, f"environment {label}"), log)
        recorded |= {"export": f"environment {label}"} if name == "export" else {}
    if "gres" in options and "gpus" in options:
        _check_gpus_agree(options, log)
    for key, text in sorted(options.items(), key=lambda option: option[0] == "gpus"):
        _apply(Overlay(root, wins=True), key, text, Origin(Mark(1, 1), f"--{key}", "command line"), log)
        recorded |= {"export": "command line"} if key == "export" else {}
    return recorded


def _environment_name(key: str) -> tuple[str, str]:
    """Option name and variable of an environment option, which callers may key by either."""
    for option, variable in VARIABLES.items():
        if key == variable:
            return option, variable
    if key.startswith(("SBATCH_", "FFDL_")):
        return key.partition("_")[2].lower().replace("_", "-"), key
    return key, VARIABLES.get(key, f"FFDL_{key.upper().replace('-', '_')}")


def _apply(overlay: Overlay, name: str, text: str, origin: Origin, log: FindingLog) -> None:
    special = _SPECIAL.get(name)
    try:
        if special is not None:
            special(overlay, text, origin)
        elif name in _PLACES:
            if name in _NUMBERS and not text.strip():
                raise refusal("a number is needed", f"write {origin.option}=1")
            overlay.put(_PLACES[name], Scalar(text, origin))
        elif name != "export":
            _refuse_unknown(name, origin, log)
    except PydanticCustomError as error:
        context = error.context or {}
        log.option(Severity.ERROR, origin.option, str(context.get("message", error)), str(context.get("cure", "")))


def _refuse_unknown(name: str, origin: Origin, log: FindingLog) -> None:
    if not origin.option.startswith("--"):
        log.option(Severity.WARNING, origin.option, "this variable sets nothing here and is ignored", "unset it")
        return
    if name in OWN_WORDS:
        cure = f"set {OWN_WORDS[name]} in the manifest"
    else:
        near = difflib.get_close_matches(name, [*_PLACES, *_SPECIAL], n=1, cutoff=0.7)
        cure = f"did you mean --{near[0]}?" if near else "allow-listed sbatch options go to batch.slurm.args"
    log.option(Severity.ERROR, origin.option, "this option is not taken", cure)


def _set_memory(overlay: Overlay, text: str, origin: Origin) -> None:
    try:
        size = parse_slurm_memory(text)
    except ValueError as error:
        message, _, cure = str(error).partition("; ")
        raise refusal(message, cure) from None
    if size == 0:
        raise refusal("0 means all memory of a node to sbatch; a job needs a size here", "write for example 8G")
    overlay.put(("memory",), Scalar(f"{size}B", origin))


def _set_gres(overlay: Overlay, text: str, origin: Origin) -> None:
    resources = split_gres(text)
    gpus = {name: count for name, count in resources.items() if name.split(":")[0] == "gpu"}
    if len(gpus) > 1:
        raise refusal("a job has GPUs of one type", "name one type, as gpu:v100:2")
    if not gpus and text.strip() == "none":
        overlay.put(("gpus",), Scalar("0", origin))
    for name, count in gpus.items():
        _set_gpu_count(overlay, name.partition(":")[2], str(count), origin)
    others = {name: count for name, count in resources.items() if name not in gpus and count}
    if others or overlay.wins:
        entries = {name: Entry(Scalar(name, origin), Scalar(str(count), origin)) for name, count in others.items()}
        overlay.put(("batch", "gres"), Mapping(entries, origin))


def _set_gpus(overlay: Overlay, text: str, origin: Origin) -> None:
    """``[type:]number`` of GPUs for each learner."""
    kind, colon, count = text.strip().rpartition(":")
    if not count or (colon and not kind):
        raise refusal(f"{text!r} is not a number of GPUs", "write [type:]number, as v100:2")
    _set_gpu_count(overlay, kind, count, origin)


def _set_gpu_count(overlay: Overlay, kind: str, count: str, origin: Origin) -> None:
    if not overlay.wins and overlay.has(("gpus",)):
        return  # the manifest's count and type belong together
    overlay.put(("gpus",), Scalar(count, origin))
    if kind:
        overlay.put(("gpu_type",), Scalar(kind, origin))


def _check_gpus_agree(options: Mappings[str, str], log: FindingLog) -> None:
    try:
        gpus = {n: c for n, c in split_gres(options["gres"]).items() if n.split(":")[0] == "gpu"}
    except PydanticCustomError:
        return  # reported when --gres is applied
    count = options["gpus"].strip().rpartition(":")[2]
    if gpus and count not in {str(c) for c in gpus.values()}:
        log.option(
            Severity.ERROR, "--gpus", f"--gpus={options['gpus']} and --gres={options['gres']} differ", "give one"
        )


def _set_network(overlay: Overlay, text: str, origin: Origin) -> None:
    """A level, or ``egress:host:port,host:port``."""
    level, _, allowed = text.strip().partition(":")
    entries = {"level": Entry(Scalar("level", origin), Scalar(level, origin))}
    items: list[Node] = [Scalar(item, origin) for item in allowed.split(",") if item]
    if items:
        entries["allow"] = Entry(Scalar("allow", origin), Sequence(items, origin))
    overlay.put(("batch", "network"), Mapping(entries, origin) if items else Scalar(level, origin))


def _flag(key: str, value: str) -> Callable[[Overlay, str, Origin], None]:
    def put(overlay: Overlay, text: str, origin: Origin) -> None:  # noqa: ARG001 - the name alone is the value
        overlay.put(("batch", key), Scalar(value, origin))

    return put


_SPECIAL: Mappings[str, Callable[[Overlay, str, Origin], None]] = {
    "mem": _set_memory,
    "gres": _set_gres,
    "gpus": _set_gpus,
    "network": _set_network,
    "hold": _flag("hold", "true"),
    "requeue": _flag("requeue", "true"),
    "no-requeue": _flag("requeue", "false"),
}
