"""Parses a manifest: text → tree → options applied → models → checks across fields → the domain's values."""

from __future__ import annotations

from collections.abc import Mapping as Mappings
from dataclasses import replace
from types import MappingProxyType

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from ffdl_batch.domain.findings import Severity
from ffdl_batch.domain.job.spec import JobSpec
from ffdl_batch.manifest.assembly import assemble, move_secrets, name_lines, name_sources
from ffdl_batch.manifest.checks.ffdl_differences import check_framework, note_credentials, note_differences
from ffdl_batch.manifest.checks.job import check_job
from ffdl_batch.manifest.checks.keys import check_keys, note_unsupported
from ffdl_batch.manifest.checks.templates import note_placeholders, note_references, refuse_foreign
from ffdl_batch.manifest.contract import Defaults, ManifestSource, Parsed
from ffdl_batch.manifest.credentials import named_in, redact
from ffdl_batch.manifest.document.composer import Document, compose
from ffdl_batch.manifest.document.source_text import read_text
from ffdl_batch.manifest.document.tree import Mapping, Origin, Place, Scalar, Unreadable, locate, to_raw
from ffdl_batch.manifest.environment_variables import note_variables
from ffdl_batch.manifest.finding_log import FindingLog
from ffdl_batch.manifest.models.batch import ManifestBlock
from ffdl_batch.manifest.models.scalars import kind_of
from ffdl_batch.manifest.models.sweep import check_array, read_sweep
from ffdl_batch.manifest.options import apply_options
from ffdl_batch.manifest.stores import read_stores

_NO_OPTIONS: Mappings[str, str] = MappingProxyType({})
_SITE = Defaults()


def parse_manifest(
    source: ManifestSource,
    *,
    options: Mappings[str, str] = _NO_OPTIONS,
    environment_options: Mappings[str, str] = _NO_OPTIONS,
    defaults: Defaults = _SITE,
    strict: bool = False,
) -> Parsed:
    """Read one manifest. Never raises for bad input: `spec` is None exactly when an error was found.

    `options` are long sbatch-like option names without dashes → their text; they win over the manifest, which
    wins over `environment_options` (keyed alike, or by variable), which win over `defaults`. With `strict`,
    unknown keys are errors.
    """
    log = FindingLog(source.name)
    try:
        text = read_text(source.text)
        document = compose(text)
        root = _root_of(document, log)
    except Unreadable as error:
        log.unreadable(error)
        return Parsed(None, log.findings, {}, "")
    redacted = redact(text[: document.end], root)
    log.root = root
    if refuse_foreign(root, log):
        return Parsed(None, log.findings, {}, redacted)
    check_keys(root, log, strict)
    note_placeholders(root, log)
    note_references(root, log)
    recorded = apply_options(root, options, environment_options, log)
    taken = named_in(text[: document.end])
    spec, secrets = _read_job(root, source.base_dir, defaults, taken, log)
    if log.has_errors or spec is None:
        return Parsed(None, log.findings, {}, redacted)
    spec = replace(spec, sources={**spec.sources, **recorded})
    return Parsed(spec, log.findings, secrets, redacted, name_lines(root))


def _root_of(document: Document, log: FindingLog) -> Mapping:
    root = document.root
    if root is None or (isinstance(root, Scalar) and root.is_null):
        raise Unreadable("the manifest is empty", "`ffdl init` writes one to start from")
    if not isinstance(root, Mapping):
        kind = "one text" if isinstance(root, Scalar) else "a list"
        raise Unreadable(f"a manifest is a mapping of keys to values; this is {kind}", "", root.origin.mark)
    if document.more is not None:
        message = "a second document starts here; only the first one is read"
        log.add(Severity.WARNING, (), message, "put each manifest into a file of its own", Origin(document.more))
    return root


def _read_job(
    root: Mapping, base_dir: str, defaults: Defaults, taken: frozenset[str], log: FindingLog
) -> tuple[JobSpec | None, dict[str, str]]:
    try:
        manifest = ManifestBlock.model_validate(to_raw(root))
    except ValidationError as error:
        _report_invalid(error, log)
        _check_stores_alone(root, base_dir, log)
        return None, {}
    check_framework(manifest, defaults, log)
    stores = read_stores(manifest.data_stores, base_dir, log, taken)
    secrets = dict(stores.secrets)
    job = assemble(manifest, stores.stores, defaults, base_dir)
    job = replace(job, batch=replace(job.batch, sweep=read_sweep(root, log)))
    check_array(job.batch, log)
    check_job(job, log)
    job = move_secrets(job, manifest, secrets, taken, log)
    note_differences(root, manifest, defaults, log)
    note_unsupported(manifest, defaults, log)
    note_credentials(job.batch, log)
    note_variables(job, log)
    return replace(job, sources=name_sources(root, manifest)), secrets


def _check_stores_alone(root: Mapping, base_dir: str, log: FindingLog) -> None:
    """Another field is wrong already: still say what is wrong with the stores, so that one run shows everything."""
    alone = {"name": "x", "framework": {"name": "x", "version": "x", "command": "x"}}
    stores = root.get("data_stores")
    if stores is None:
        return
    try:
        manifest = ManifestBlock.model_validate({**alone, "data_stores": to_raw(stores)})
    except ValidationError:
        return  # reported with the whole manifest
    read_stores(manifest.data_stores, base_dir, log)


_ELASTIC: Place = ("batch", "elastic")
# FfDL's trainer, validateRequest: the same sentences, so that what people look up still finds it
_NOT_SET: dict[Place, tuple[str, str]] = {
    ("name",): ("Model definition name is not set", "write `name: ` and a name for the job"),
    ("framework",): ("Framework is not set", "write framework: with name, version and command"),
    ("framework", "name"): ("Framework name is not set", "write `name: ` under framework, as tensorflow or custom"),
    ("framework", "version"): ("Framework version is not set", "write `version: ` under framework"),
    ("framework", "command"): ("Training command is not set", "write `command: ` under framework"),
    (*_ELASTIC, "max_learners"): ("this is not set", "write the maximum number of learners that the job can use"),
    (*_ELASTIC, "batch"): ("this is not set", "write batch: {min: 32, max: 512, per_gpu_max: 64}, for example"),
    (*_ELASTIC, "batch", "min"): ("this is not set", "write the minimum batch of all GPUs together"),
    (*_ELASTIC, "batch", "max"): ("this is not set", "write the maximum batch of all GPUs together"),
    (*_ELASTIC, "batch", "per_gpu_max"): (
        "this is not set",
        "write the largest batch that fits into the memory of one GPU",
    ),
}


def _report_invalid(error: ValidationError, log: FindingLog) -> None:
    """Report one finding for each error, at its place in the tree."""
    for details in error.errors(include_url=False):
        place: Place = tuple(step for step in details["loc"] if step != "[key]")
        place = _existing_part(place, log, missing=details["type"] == "missing")
        message, cure = _sentence(details, place)
        log.error(place, message, cure)


def _existing_part(place: Place, log: FindingLog, missing: bool) -> Place:
    """Return `place` without steps that only the models know (the level in `network: job`)."""
    _, depth = locate(log.root, place)
    return place if missing else place[:depth]


def _sentence(details: ErrorDetails, place: Place) -> tuple[str, str]:
    context = details.get("ctx", {})
    if (
        details["type"] == "missing"
        or context.get("message") == "not set"
        or (place in _NOT_SET and not details["input"])
    ):
        return _NOT_SET.get(place, ("this is not set", ""))
    if details["type"] == "refused":
        return str(context["message"]), str(context["cure"])
    if details["type"] in ("model_type", "dict_type", "model_attributes_type"):
        return f"a mapping is needed here, not {kind_of(details['input'])}", "write `key: value` lines below, indented"
    if details["type"] in ("list_type", "tuple_type"):
        return f"a list is needed here, not {kind_of(details['input'])}", "begin each item with '- '"
    return details["msg"], ""
