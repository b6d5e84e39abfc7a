"""What a manifest may hold and this release does nothing with: said at its line, so that nobody counts on it.

A job that would be wrong without such a field is refused by the backends, when it is submitted.
"""

from __future__ import annotations

from ffdl_batch.manifest.batch_models import BatchBlock, ManifestBlock
from ffdl_batch.manifest.log import FindingLog

_TAKEN = "not supported yet, and no job is taken with it"
_LEAVE = "leave it out"
_FROM_A_FILE = "have the training read the values from a file of yours"


def note_unsupported(manifest: ManifestBlock, log: FindingLog) -> None:
    """Warn about what changes nothing; what is meant for another backend, or was never more than kept, is a note."""
    batch = manifest.batch or BatchBlock.model_validate({})
    if batch.profile:
        message = "profiles are not supported yet: this changes nothing"
        log.warning(("batch", "profile"), message, "write what it stands for, as partition and account")
    if batch.secrets:
        log.warning(("batch", "secrets"), f"{_TAKEN}: no learner would get these variables", _FROM_A_FILE)
    if batch.elastic:
        log.warning(("batch", "elastic"), _TAKEN, _LEAVE)
    if batch.notify is not None and batch.notify.webhook:
        log.warning(("batch", "notify", "webhook"), _TAKEN, _LEAVE)
    if batch.kubernetes:
        log.note(("batch", "kubernetes"), "this is for Kubernetes, which is not supported yet; it changes nothing here")
    if manifest.evaluation_metrics is not None and manifest.evaluation_metrics.type not in ("", "none"):
        log.note(("evaluation_metrics",), "metrics are not collected yet; this is kept with the job")
    location = manifest.framework.image_location
    if location is not None and location.email:
        log.note(("framework", "image_location", "email"), "this is recorded only")
