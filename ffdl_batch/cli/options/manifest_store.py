"""A data store of a manifest, as the place of a transfer: what a job reads, or where its results go."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ffdl_batch.cli.exit_handling import Stop, complain
from ffdl_batch.domain.data.staging_protocol import StoreAddress, StoreKind
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.findings import Severity
from ffdl_batch.domain.job.data_stores import REMOTE, StoreRefused, place_in
from ffdl_batch.domain.job.secret_references import without_line_end

if TYPE_CHECKING:
    from ffdl_batch.client.stores.credentials import Access
    from ffdl_batch.client.stores.user_secrets import Keys
    from ffdl_batch.client.submissions.manifest_references import AllowedReferences
    from ffdl_batch.client.submissions.manifest_source import ManifestText
    from ffdl_batch.domain.job.spec import DataStore
    from ffdl_batch.manifest import Parsed


@dataclass(frozen=True, slots=True)
class StoreOf:
    """Which store of which manifest: the only one with data, or that with this id; `results`: its other container."""

    manifest: str
    allowed: AllowedReferences
    store: str = ""
    results: bool = False

    @property
    def field(self) -> str:
        """What the manifest calls the container."""
        return "training_results" if self.results else "training_data"


def place_of_manifest(which: StoreOf, below: str, keys: Keys) -> tuple[Access, str]:
    """Return the store with its connection, and the prefix: that of the container, joined with `below`.

    Raises Stop if the manifest is wrong, and ClientError if a value is missing or not allowed.
    """
    from ffdl_batch.client.stores.credentials import of_references
    from ffdl_batch.client.submissions.manifest_references import find_references
    from ffdl_batch.client.submissions.manifest_source import read_manifest

    parts = [part for part in below.split("/") if part not in ("", ".")]
    if ".." in parts or "://" in below:
        raise click.UsageError(f"{below[:80]!r} is no path below the container that the manifest names")
    manifest = read_manifest(Path(which.manifest))
    parsed = _parse(manifest)
    store = _choose(parsed, which)
    container = store.training_results if which.results else store.training_data
    if store.effective_type not in REMOTE:
        return of_references(_directory(store, container, which), {}, keys), "/".join(parts)
    try:
        address, prefix = place_in(store, container)
    except StoreRefused as refused:
        cure = f" ({refused.cure})" if refused.cure else ""
        raise Stop(ExitCode.BAD_MANIFEST, f"{which.manifest}: {store.id}: {refused.message}{cure}") from None
    found = find_references(manifest, os.environ, which.allowed)
    given = {name: without_line_end(value) for name, value in found.items()} | dict(parsed.inline_secrets)
    access = of_references(address, given, keys)
    return access, "/".join(part for part in (prefix, *parts) if part)


def _parse(manifest: ManifestText) -> Parsed:
    from ffdl_batch.manifest import ManifestSource, parse_manifest

    parsed = parse_manifest(ManifestSource(manifest.text, manifest.name, manifest.origin.base_dir))
    if parsed.spec is None:
        for finding in parsed.findings:
            if finding.severity is Severity.ERROR:
                complain(str(finding))
        raise Stop(ExitCode.BAD_MANIFEST, f"{manifest.name} is in error")
    return parsed


def _choose(parsed: Parsed, which: StoreOf) -> DataStore:
    stores = parsed.spec.data_stores if parsed.spec is not None else ()
    found = [store for store in stores if store.training_results or not which.results]
    found = [store for store in found if store.training_data or which.results]
    if which.store:
        found = [store for store in found if store.id == which.store]
    if len(found) == 1:
        return found[0]
    ids = ", ".join(store.id for store in found)
    called = f"a data store {which.store!r}" if which.store else "a data store"
    why = (
        f"several have {which.field} ({ids}); choose with --store"
        if found
        else f"it has not {called} with {which.field}"
    )
    raise Stop(ExitCode.BAD_MANIFEST, f"{which.manifest}: {why}")


def _directory(store: DataStore, container: str, which: StoreOf) -> StoreAddress:
    base = store.connection.get("path", "")
    if not base:
        raise Stop(ExitCode.BAD_MANIFEST, f"{which.manifest}: {store.id} names no directory (connection.path)")
    parts = [part for part in container.split("/") if part not in ("", ".")]
    return replace(StoreAddress(StoreKind.FILE), container=str(Path(base, *parts)))
