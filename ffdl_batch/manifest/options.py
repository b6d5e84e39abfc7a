"""Writes options into the manifest's tree, so that one set of checks reads both.

The value of an option becomes a node whose origin names the option; errors name it instead of a line. Options of the
command line win over the manifest, options of the environment only fill what it leaves out.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from collections.abc import Mapping as Mappings

from pydantic_core import PydanticCustomError

from ffdl_batch.domain.findings import Severity
from ffdl_batch.domain.quantity import WHOLE_NODE, parse_slurm_memory
from ffdl_batch.domain.sbatch.option_table import ARGS, BY_NAME, BY_VARIABLE, TABLE
from ffdl_batch.manifest.document.tree import Entry, Mapping, Mark, Node, Origin, Place, Scalar, Sequence, find
from ffdl_batch.manifest.finding_log import FindingLog
from ffdl_batch.manifest.models.sbatch_values import split_gres
from ffdl_batch.manifest.models.scalars import refusal

_VARIABLES = {row.name: row.variables[0] for row in TABLE if row.variables and not row.refusal}
_FLAGS = {row.name: row for row in TABLE if row.help and not row.metavar}
_PLACES: Mappings[str, Place] = {
    "learners": ("learners",),
    "cpus": ("cpus",),
    **{row.name: tuple(row.key.split(".")) for row in TABLE if row.help and not row.is_passed},
}
_PASSED = frozenset(row.name for row in TABLE if row.help and row.is_passed)
_ARGS: Place = tuple(ARGS.split("."))


class Overlay:
    """Writes the values of one layer of options into the tree. `wins`: they replace values of the manifest."""

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
        """Return whether the manifest has a value at `place`."""
        node = find(self.root, place)
        return node is not None and not (isinstance(node, Scalar) and node.is_null)


def apply_options(
    root: Mapping, options: Mappings[str, str], environment: Mappings[str, str], log: FindingLog
) -> dict[str, str]:
    """Write both layers into `root`. Return the sources of options that have no place in the tree (``export``)."""
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
    """Return the name and the variable of an option of the environment; `key` is either of them."""
    if key in BY_VARIABLE:
        return BY_VARIABLE[key].name, key
    if key.startswith(("SBATCH_", "FFDL_")):
        return key.partition("_")[2].lower().replace("_", "-"), key
    return key, _VARIABLES.get(key, f"FFDL_{key.upper().replace('-', '_')}")


def _apply(overlay: Overlay, name: str, text: str, origin: Origin, log: FindingLog) -> None:
    special = _SPECIAL.get(name)
    try:
        if special is not None:
            special(overlay, text, origin)
        elif name in _PASSED:
            _pass(overlay, name, text, origin)
        elif name in _FLAGS:
            overlay.put(_PLACES[name], Scalar(str(_FLAGS[name].flag).lower(), origin))
        elif name in _PLACES:
            if _PLACES[name] in (("learners",), ("cpus",)) and not text.strip():
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
    row = BY_NAME.get(name)
    if row is not None and row.key and not row.is_passed:
        cure = f"set {row.key} in the manifest"
    elif row is not None and row.refusal:
        cure = row.refusal
    elif row is not None:
        cure = "it is an option of ffdl-submit"
    else:
        near = difflib.get_close_matches(name, [*_PLACES, *_SPECIAL, *_PASSED], n=1, cutoff=0.7)
        cure = f"did you mean --{near[0]}?" if near else "see sbatch --help"
    log.option(Severity.ERROR, origin.option, "this option is not taken", cure)


def _pass(overlay: Overlay, name: str, text: str, origin: Origin) -> None:
    """Add an option to `batch.slurm.args`. It replaces one of the same name, or gives way to it."""
    given = find(overlay.root, _ARGS)
    if given is not None and not isinstance(given, Sequence) and not (isinstance(given, Scalar) and given.is_null):
        return  # not a list: reported as such by the checks
    items = given.items if isinstance(given, Sequence) else []
    others = [one for one in items if not isinstance(one, Scalar) or one.text.strip().partition("=")[0] != f"--{name}"]
    if overlay.wins or len(others) == len(items):
        item = Scalar(f"--{name}={text}" if text else f"--{name}", origin)
        whole = Sequence([*others, item], given.origin if isinstance(given, Sequence) else origin)
        Overlay(overlay.root, wins=True).put(_ARGS, whole)


def _set_requeue(overlay: Overlay, text: str, origin: Origin) -> None:
    overlay.put(_PLACES["requeue"], Scalar(text or "true", origin))


def _set_memory(overlay: Overlay, text: str, origin: Origin) -> None:
    try:
        size = parse_slurm_memory(text)
    except ValueError as error:
        message, _, cure = str(error).partition("; ")
        raise refusal(message, cure) from None
    overlay.put(("memory",), Scalar("all" if size == WHOLE_NODE else f"{size}B", origin))


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
    """Set the GPUs of each learner from ``[type:]number``."""
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
    """Set the network from a level, or from ``egress:host:port,host:port``."""
    level, _, allowed = text.strip().partition(":")
    entries = {"level": Entry(Scalar("level", origin), Scalar(level, origin))}
    items: list[Node] = [Scalar(item, origin) for item in allowed.split(",") if item]
    if items:
        entries["allow"] = Entry(Scalar("allow", origin), Sequence(items, origin))
    overlay.put(("batch", "network"), Mapping(entries, origin) if items else Scalar(level, origin))


_SPECIAL: Mappings[str, Callable[[Overlay, str, Origin], None]] = {
    "mem": _set_memory,
    "requeue": _set_requeue,
    "gres": _set_gres,
    "gpus": _set_gpus,
    "network": _set_network,
}
