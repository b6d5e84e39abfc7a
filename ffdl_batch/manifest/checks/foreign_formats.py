"""Other products' documents that people hand in as manifests: named in one line instead of key by key."""

from __future__ import annotations

from ffdl_batch.manifest.document.tree import Mapping, find
from ffdl_batch.manifest.finding_log import FindingLog

WML_KEYS = frozenset({"model_definition", "training_data_reference", "training_results_reference"})
_INIT = "`ffdl init` writes one to start from"


def refuse_foreign(root: Mapping, log: FindingLog) -> bool:
    """Whether this is no manifest of FfDL's; then the log says whose it is.

    FfDL ignores keys that it does not know, so all but Watson Machine Learning's are refused only where there is no
    command either.
    """
    keys = root.entries.keys()
    if WML_KEYS & keys:
        key = min(WML_KEYS & keys, key=lambda k: root.entries[k].key.origin.mark.index)
        log.error((key,), "this is a manifest of Watson Machine Learning, not of FfDL", "convert it: ffdl convert")
        return True
    if find(root, ("framework", "command")) is not None:
        return False
    if {"apiVersion", "kind"} <= keys:
        log.error(("apiVersion",), "this is an object of Kubernetes, not a manifest of a training job", _INIT)
        return True
    if "model_identifier" in keys and {"train", "serve"} & keys:
        log.error(
            ("model_identifier",),
            "this describes a model for a catalogue (MAX, Machine Learning Exchange), not a training job",
            "`ffdl init` writes a manifest; train.execution.command becomes framework.command",
        )
        return True
    return False
