"""Warn about keys that are unknown, written twice, or without effect in this release.

FfDL ignores such keys silently. The models know the keys. If a job would be wrong without such a field, the backend
refuses the job when it is submitted.
"""

from __future__ import annotations

import difflib
import typing
from collections.abc import Iterator

from pydantic import BaseModel

from ffdl_batch.domain.findings import Severity
from ffdl_batch.domain.job.elastic import DEFAULT_POOL
from ffdl_batch.domain.terminal_text import quoted
from ffdl_batch.manifest.contract import Defaults
from ffdl_batch.manifest.document.tree import Mapping, Node, Place, Sequence, walk
from ffdl_batch.manifest.finding_log import FindingLog
from ffdl_batch.manifest.models.batch import BatchBlock, ManifestBlock
from ffdl_batch.manifest.models.ffdl import EvaluationMetricsBlock

_MAX_KEY = 60


def fields_of(model: type[BaseModel]) -> dict[str, object]:
    """The keys of a model as manifests spell them → the fields' annotations."""
    return {field.alias or name: field.annotation for name, field in model.model_fields.items()}


def check_keys(root: Mapping, log: FindingLog, strict: bool) -> None:
    """Report every unknown key and every key that is written twice."""
    severity = Severity.ERROR if strict else Severity.WARNING
    for mapping, model, place in _blocks(root, ManifestBlock, ()):
        known = fields_of(model)
        for key, entry in mapping.entries.items():
            if key in known or entry.merged or (not place and key.startswith(("x-", "."))):
                continue
            cure = _advice(key, known, place)
            log.add(severity, (*place, key), "this key is not known and is ignored", cure, entry.key.origin)
    for node, place in walk(root):
        for entry in node.shadowed if isinstance(node, Mapping) else ():
            last = node.entries[entry.key.text] if isinstance(node, Mapping) else entry
            message = (
                f"this key is written twice, on lines {entry.key.origin.mark.line} and {last.key.origin.mark.line}"
            )
            log.add(
                Severity.WARNING,
                (*place, entry.key.text),
                f"{message}; the last one counts",
                "delete one",
                last.key.origin,
            )


def _blocks(
    node: Node | None, model: type[BaseModel], place: Place
) -> Iterator[tuple[Mapping, type[BaseModel], Place]]:
    """Yield every mapping that a model describes."""
    if not isinstance(node, Mapping):
        return
    yield node, model, place
    for key, annotation in fields_of(model).items():
        child = node.get(key)
        inner = _model_in(annotation)
        if child is None or inner is None:
            continue
        if isinstance(child, Sequence):
            for i, item in enumerate(child.items):
                yield from _blocks(item, inner, (*place, key, i))
        elif isinstance(child, Mapping) and _is_dict(annotation):
            for name, entry in child.entries.items():
                yield from _blocks(entry.value, inner, (*place, key, name))
        else:
            yield from _blocks(child, inner, (*place, key))


def _is_dict(annotation: object) -> bool:
    return typing.get_origin(annotation) is dict


def _model_in(annotation: object) -> type[BaseModel] | None:
    """Return the model in `annotation`: itself, optional, in a list or in a dict."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in typing.get_args(annotation):
        found = _model_in(argument)
        if found is not None:
            return found
    return None


def _advice(key: str, known: dict[str, object], place: Place) -> str:
    folded = {_fold(name): name for name in known}
    near = difflib.get_close_matches(_fold(key), folded, n=1, cutoff=0.7) if len(key) <= _MAX_KEY else []
    if near:
        return f"did you mean {folded[near[0]]}?"
    home = _homes().get(key)
    if home is not None and home != place:
        return f"it belongs under {'.'.join(str(step) for step in home)}" if home else "it belongs to the top level"
    return f"known here are {', '.join(known)}" if len(known) <= 8 else "delete it, or see the output of `ffdl schema`"


def _fold(key: str) -> str:
    return key.lower().replace("-", "_")


def _homes() -> dict[str, Place]:
    """Return keys with one obvious place, for messages about keys in another place."""
    batch = _model_in(fields_of(ManifestBlock)["batch"])
    framework = _model_in(fields_of(ManifestBlock)["framework"])
    homes: dict[str, Place] = {}
    if batch is not None and framework is not None:
        homes |= dict.fromkeys(fields_of(batch), ("batch",))
        homes |= dict.fromkeys(("command", "image_tag", "image_location"), ("framework",))
    homes |= dict.fromkeys(("gpus", "cpus", "gpu_type", "learners", "memory", "storage", "data_stores"), ())
    return homes


def note_unsupported(manifest: ManifestBlock, defaults: Defaults, log: FindingLog) -> None:
    """Warn about keys without effect; keys for another backend, or that were only ever stored, get a note."""
    batch = manifest.batch or BatchBlock.model_validate({})
    _note_backend_keys(batch, defaults.own_keys, log)
    if batch.elastic is not None and (batch.elastic.pool or DEFAULT_POOL) not in defaults.pools:
        _note_pool(batch.elastic.pool, defaults.pools, log)
    _note_metrics(manifest.evaluation_metrics, log)
    location = manifest.framework.image_location
    if location is not None and location.email:
        log.note(("framework", "image_location", "email"), "this is recorded only")


def _note_pool(pool: str | None, configured: frozenset[str], log: FindingLog) -> None:
    message = "the job keeps its size until you resume it with --learners or --batch"
    if pool is None:
        log.note(("batch", "elastic"), message)
    else:
        cause = f"pool {quoted(pool)} is not configured here"
        pools = f"configured pools: {', '.join(sorted(configured)) or 'none'}"
        log.note(("batch", "elastic", "pool"), f"{cause}; {message}", pools)


def _note_metrics(block: EvaluationMetricsBlock | None, log: FindingLog) -> None:
    """Note keys that FfDL's collectors, which are images, read; ours are programs of the platform."""
    given = {"image_tag": block.image_tag, "in": block.in_, "eventTypes": block.event_types} if block else {}
    for key, value in given.items():
        if value:
            log.note(("evaluation_metrics", key), "no collector reads this; it is recorded only")


def _note_backend_keys(batch: BatchBlock, words: frozenset[str] | None, log: FindingLog) -> None:
    """Warn about keys that the backend does not use. An unknown backend may use them."""
    if batch.profile and words is None:
        log.note(("batch", "profile"), "profiles are those of the site, and Kubernetes alone has them: see ffdl config")
    elif batch.profile and "profile" not in (words or ()):
        message = "this backend has no profiles: this changes nothing"
        log.warning(("batch", "profile"), message, "write what it stands for, as partition and account")
    if batch.kubernetes and "kubernetes" not in (words or ()):
        log.note(("batch", "kubernetes"), "this is for Kubernetes; other backends leave it alone")
