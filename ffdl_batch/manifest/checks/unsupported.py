"""What a manifest may hold and this release does nothing with: said at its line, so that nobody counts on it.

A job that would be wrong without such a field is refused by the backends, when it is submitted.
"""

from __future__ import annotations

from ffdl_batch.manifest.contract import NO_JOB, Defaults
from ffdl_batch.manifest.finding_log import FindingLog
from ffdl_batch.manifest.models.batch import BatchBlock, ManifestBlock
from ffdl_batch.manifest.models.ffdl import EvaluationMetricsBlock

_TAKEN = f"not supported yet, and {NO_JOB} it"
_LEAVE = "leave it out"


def note_unsupported(manifest: ManifestBlock, defaults: Defaults, log: FindingLog) -> None:
    """Warn about what changes nothing; what is meant for another backend, or was never more than kept, is a note."""
    batch = manifest.batch or BatchBlock.model_validate({})
    _note_words_of_some(batch, defaults.own_words, log)
    if batch.elastic:
        log.warning(("batch", "elastic"), _TAKEN, _LEAVE)
    _note_metrics(manifest.evaluation_metrics, log)
    location = manifest.framework.image_location
    if location is not None and location.email:
        log.note(("framework", "image_location", "email"), "this is recorded only")


def _note_metrics(block: EvaluationMetricsBlock | None, log: FindingLog) -> None:
    """FfDL's collectors are images that read these; ours are programs of the platform."""
    given = {"image_tag": block.image_tag, "in": block.in_, "eventTypes": block.event_types} if block else {}
    for key, value in given.items():
        if value:
            log.note(("evaluation_metrics", key), "no collector reads this; it is recorded only")


def _note_words_of_some(batch: BatchBlock, words: frozenset[str] | None, log: FindingLog) -> None:
    """What not every backend has a use for. Where no backend is known it may be one that has."""
    if batch.profile and words is None:
        log.note(("batch", "profile"), "profiles are those of the site, and Kubernetes alone has them: see ffdl config")
    elif batch.profile and "profile" not in (words or ()):
        message = "this backend has no profiles: this changes nothing"
        log.warning(("batch", "profile"), message, "write what it stands for, as partition and account")
    if batch.kubernetes and "kubernetes" not in (words or ()):
        log.note(("batch", "kubernetes"), "this is for Kubernetes; other backends leave it alone")
