"""Converts manifests of Watson Machine Learning to FfDL's (entry point ``wml`` of ``ffdl_batch.converters``).

Keys and sizes become those of FfDL's own converter (IBM/FfDL ``etc/converter/convert-to-FfDL.py``). That one drops
values silently; this one reports what became of every value, with its line. Credentials are removed from the text: the
manifest names secrets, and the report says how to set them. Their values are stored nowhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field

from ffdl_batch.domain.conversion import CannotConvert, Conversion, Fate, Judged, Origin, Source
from ffdl_batch.domain.job.secret_references import REFERENCE, reference
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.manifest.checks.templates import WML_KEYS
from ffdl_batch.manifest.credentials import is_secret, secret_name
from ffdl_batch.manifest.document.composer import compose
from ffdl_batch.manifest.document.source_text import read_text
from ffdl_batch.manifest.document.tree import Mapping, Node, Place, Scalar, Sequence, Unreadable, path_text

_MODEL, _DATA, _RESULTS = "model_definition", "training_data_reference", "training_results_reference"
_GIB_TEXT = "Gb"
SIZES = {
    "k80": (1, 4, 24), "k80x2": (2, 8, 48), "k80x4": (4, 16, 96), "p100": (1, 8, 24), "p100x2": (2, 16, 48),
    "v100": (1, 26, 24), "v100x2": (2, 52, 48),
}  # fmt: skip
"""Compute configuration → GPUs, CPUs and GB of each learner. Others are CPU, with 1 GB."""
_OTHER = (0, 1, 1)
_CONNECTION = {
    "endpoint_url": "auth_url", "access_key_id": "user_name", "secret_access_key": "password", "auth_url": "auth_url",
    "user_name": "user_name", "password": "password", "region": "region",
}  # fmt: skip
_S3 = frozenset({"s3", "s3_datastore", "cos", "mount_cos"})
_STORE = "mount_cos"
_SHOWN = 60
_DROPPED = {
    "runtimes": "the framework's image has its own Python; name another image as framework.version of `custom`",
    "author": "a job is its submitter's",
    "evaluation_metrics": "write evaluation_metrics of FfDL's form",
    "location": "the model is given to ffdl-submit, as a directory or a zip file",
}


@dataclass
class _Made:
    """What has been read so far."""

    text: dict[str, str] = field(default_factory=dict)
    """Where it goes in the manifest → value."""
    stores: dict[str, dict[str, str]] = field(default_factory=dict)
    """Of the input and of the results: id, container, and keys of the connection."""
    judged: list[Judged] = field(default_factory=list)
    secrets: dict[str, str] = field(default_factory=dict)
    """Name → value, to see which are the same."""


class WmlReader:
    """Reads manifests of Watson Machine Learning."""

    def recognises(self, text: str) -> bool:
        """By its keys."""
        if text.startswith("#!"):
            return False
        try:
            root = compose(read_text(text)).root
        except Unreadable:
            return False
        return isinstance(root, Mapping) and bool(WML_KEYS & root.entries.keys())

    def convert(self, source: Source) -> Conversion:
        """The manifest, and what became of each value. Raises CannotConvert."""
        try:
            root = compose(read_text(source.text)).root
        except Unreadable as error:
            raise CannotConvert(error.message, error.cure, error.mark.line if error.mark else 0) from None
        if not isinstance(root, Mapping):
            raise CannotConvert("a manifest is a mapping of keys to values")
        made = _Made()
        for place, node in _leaves(root):
            _take(place, node, made)
        needed = {"framework.name": "framework.name", "framework.command": "execution.command"}
        for there, key in needed.items():
            if not made.text.get(there):
                raise CannotConvert(f"{_MODEL}.{key} is missing", "no training runs without it", root.origin.mark.line)
        return Conversion(_manifest(made), tuple(sorted(made.judged, key=lambda one: one.line)))

    def differences(self, source: Source, script: str) -> tuple[str, ...]:  # noqa: ARG002 - the port's signature
        """There is no way back."""
        raise CannotConvert("no service accepts manifests of Watson Machine Learning any more", "leave --check out")


def create() -> WmlReader:
    """For the entry point."""
    return WmlReader()


def _leaves(node: Node, place: Place = ()) -> Iterator[tuple[Place, Scalar]]:
    """Every value, in the order of the text."""
    if isinstance(node, Mapping):
        for key, entry in node.entries.items():
            yield from _leaves(entry.value, (*place, key))
    elif isinstance(node, Sequence):
        for number, item in enumerate(node.items):
            yield from _leaves(item, (*place, number))
    else:
        yield place, node


def _take(place: Place, node: Scalar, made: _Made) -> None:
    path, value = path_text(place), "" if node.is_null else node.text
    head, rest = str(place[0]), path.partition(".")[2]
    if head == _MODEL:
        _of_model(rest, path, value, node, made)
    elif head == "execution":
        _of_model(path, path, value, node, made)
    elif head in (_DATA, _RESULTS) and len(place) > 1 and isinstance(place[1], int) and place[1] > 0:
        why = "a job has one input and one place for results: the first of the list"
        _record(made, node, path, value, Fate.DROPPED, "", why)
    elif head in (_DATA, _RESULTS):
        _of_store(head, rest, path, value, node, made)
    else:
        _record(made, node, path, value, Fate.DROPPED, "", "FfDL has no such key")


def _of_model(rest: str, path: str, value: str, node: Scalar, made: _Made) -> None:
    plain = {
        "framework.name": "framework.name", "framework.version": "framework.version", "name": "name",
        "description": "description", "execution.command": "framework.command",
    }  # fmt: skip
    if rest in plain:
        made.text[plain[rest]] = value
        _record(made, node, path, value, Fate.MAPPED, plain[rest])
    elif rest == "execution.compute_configuration.nodes":
        is_count = value.isascii() and value.isdigit() and int(value) > 0
        made.text["learners"] = str(int(value)) if is_count else "1"
        why = "" if is_count else "it is not a number of nodes; 1, as FfDL's converter has it"
        _record(made, node, path, value, Fate.MAPPED if is_count else Fate.APPROXIMATED, "learners", why)
    elif rest == "execution.compute_configuration.name":
        made.text["size"] = value
        gpus, cpus, memory = SIZES.get(value.lower(), _OTHER)
        why = f"each learner has {gpus} GPUs, {cpus} CPUs and {memory} GB; name the type of GPU as this site does"
        if value.lower() not in SIZES:
            why = f"no size of that name is known; {cpus} CPU and {memory} GB, as FfDL's converter has it"
        _record(made, node, path, value, Fate.APPROXIMATED, "gpus, cpus, memory", why)
    else:
        words = rest.replace("[", ".").split(".")
        why = next((_DROPPED[word] for word in words if word in _DROPPED), "FfDL has no such key")
        _record(made, node, path, value, Fate.DROPPED, "", why)


def _of_store(head: str, rest: str, path: str, value: str, node: Scalar, made: _Made) -> None:
    store = made.stores.setdefault(head, {})
    section, _, key = rest.partition(".")
    block = "training_data" if head == _DATA else "training_results"
    if rest == "name":
        store["id"] = value
        merged = "" if head == _DATA else "where input and results are in one place the store has the input's name"
        _record(made, node, path, value, Fate.APPROXIMATED if merged else Fate.MAPPED, "data_stores.id", merged)
    elif rest in ("source.bucket", "target.bucket"):
        store["container"] = value
        _record(made, node, path, value, Fate.MAPPED, f"data_stores.{block}.container")
    elif rest == "type":
        known = value.lower() in _S3
        why = "" if known else f"it is taken for {_STORE}, the only kind that this form has keys for"
        _record(made, node, path, value, Fate.MAPPED if known else Fate.APPROXIMATED, "data_stores.type", why)
    elif section == "connection" and key in _CONNECTION:
        _of_connection(head, key, path, value, node, made)
    else:
        _record(made, node, path, value, Fate.DROPPED, "", "no connection of this form has such a key")


def _of_connection(head: str, key: str, path: str, value: str, node: Scalar, made: _Made) -> None:
    ours = _CONNECTION[key]
    to = f"data_stores.connection.{ours}"
    store = made.stores[head]
    if not is_secret(key, value) and not is_secret(ours, value):
        store[ours] = value
        _record(made, node, path, value if REFERENCE.fullmatch(value) or ours in ("auth_url", "region") else "***",
              Fate.MAPPED, to)  # fmt: skip
        return
    name = _secret_of(head, ours, value, made)
    store[ours] = reference(name)
    why = f"a credential leaves the manifest; set it with: ffdl secret set {name}"
    _record(made, node, path, "***", Fate.MAPPED, to, why)


def _secret_of(head: str, ours: str, value: str, made: _Made) -> str:
    """One name for one value: the references of input and results mostly have the same credentials."""
    for name, known in made.secrets.items():
        if known == value and name.endswith(secret_name(ours)):
            return name
    name = secret_name("wml", "data" if head == _DATA else "results", ours)
    made.secrets[name] = value
    return name


def _record(made: _Made, node: Scalar, path: str, value: str, fate: Fate, to: str, reason: str = "") -> None:  # noqa: PLR0913, PLR0917
    shown = "***" if value and is_secret(path.rpartition(".")[2], value) else " ".join(value.split())
    shown = shown if len(shown) <= _SHOWN else f"{shown[: _SHOWN - 3]}..."
    made.judged.append(Judged(Origin.SCRIPT, node.origin.mark.line, f"{path}: {shown}", fate, to, reason))


def _manifest(made: _Made) -> dict[str, object]:
    found = made.text
    gpus, cpus, memory = SIZES.get(found.get("size", "").lower(), _OTHER)
    manifest: dict[str, object] = {
        "name": found.get("name") or "converted",
        **({"description": found["description"]} if found.get("description") else {}),
        "learners": int(found.get("learners", "1")),
        "gpus": gpus,
        "cpus": cpus,
        "memory": f"{memory}{_GIB_TEXT}",
    }
    stores = _stores(made.stores)
    if stores:
        manifest["data_stores"] = stores
    manifest["framework"] = {
        "name": found["framework.name"],
        "version": found.get("framework.version") or "latest",
        "command": found["framework.command"],
    }
    return manifest


def _stores(read: dict[str, dict[str, str]]) -> list[dict[str, object]]:
    """One where input and results lie in the same place, else two."""
    data, results = read.get(_DATA), read.get(_RESULTS)
    if data and results and (not _connection(results) or _connection(data) == _connection(results)):
        return [_store(data, "wml", training_data=data, training_results=results)]
    found = [_store(data, "wml-data", training_data=data)] if data else []
    if results:
        store = _store(results, "wml-results", training_results=results)
        store["id"] = f"{store['id']}-results" if data and store["id"] == data.get("id") else store["id"]
        found.append(store)
    return found


def _store(one: dict[str, str], name: str, **blocks: dict[str, str]) -> dict[str, object]:
    containers = {key: {"container": block["container"]} for key, block in blocks.items() if "container" in block}
    return {"id": one.get("id") or name, "type": _STORE, **containers, "connection": _connection(one)}


def _connection(store: dict[str, str]) -> dict[str, str]:
    return {key: value for key, value in store.items() if key not in ("id", "container")}
