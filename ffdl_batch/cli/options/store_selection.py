"""Options that select a store: by URL, or one of the data stores of a manifest."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ffdl_batch.cli.connection import find_user_secrets
from ffdl_batch.cli.options.submission import allowed_references, reference_options
from ffdl_batch.domain.data.store_kinds import StoreAddress, StoreKind
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.findings import Severity
from ffdl_batch.domain.job.data_stores import REMOTE, StoreRefused, place_in
from ffdl_batch.domain.job.secret_references import without_line_end
from ffdl_batch.domain.terminal_text import quoted
from ffdl_batch.exit_handling import Stop, complain
from ffdl_batch.host.fast_dataclass import dataclass

if TYPE_CHECKING:
    from ffdl_batch.client.stores.credentials import Access
    from ffdl_batch.client.stores.user_secrets import UserSecrets
    from ffdl_batch.client.submissions.manifest_source import ManifestText
    from ffdl_batch.client.submissions.submit_options import AllowedReferences
    from ffdl_batch.domain.job.spec import DataStore
    from ffdl_batch.manifest import Parsed


@dataclass(frozen=True, slots=True)
class StoreOf:
    """A data store of a manifest."""

    manifest: str
    allowed: AllowedReferences
    store: str = ""
    """The id of the store; "" for the only one that has the container."""
    results: bool = False
    """Whether the container of results is meant, not that of data."""

    @property
    def field(self) -> str:
        """Return the manifest's key of the container."""
        return "training_results" if self.results else "training_data"


def place_of_manifest(which: StoreOf, below: str, keys: UserSecrets) -> tuple[Access, str]:
    """Return the store with its connection, and the prefix: that of the container, joined with `below`.

    Raises Stop if the manifest is wrong, and ClientError if a value is missing or not allowed.
    """
    from ffdl_batch.client.stores.credentials import of_references
    from ffdl_batch.client.submissions.manifest_source import find_references, read_manifest

    parts = [part for part in below.split("/") if part not in ("", ".")]
    if ".." in parts or "://" in below:
        raise click.UsageError(f"{quoted(below)} is not a path below the manifest's container")
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
        raise Stop(ExitCode.BAD_MANIFEST, f"{manifest.name} is invalid")
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
    named = f"data store {which.store!r}" if which.store else "data store"
    why = f"several data stores have {which.field} ({ids}); select one with --store"
    why = why if found else f"no {named} has {which.field}"
    raise Stop(ExitCode.BAD_MANIFEST, f"{which.manifest}: {why}")


def _directory(store: DataStore, container: str, which: StoreOf) -> StoreAddress:
    base = store.connection.get("path", "")
    if not base:
        raise Stop(ExitCode.BAD_MANIFEST, f"{which.manifest}: {store.id} names no directory (connection.path)")
    parts = [part for part in container.split("/") if part not in ("", ".")]
    return replace(StoreAddress(StoreKind.FILE), container=str(Path(base, *parts)))


@dataclass(frozen=True, slots=True)
class Chosen:
    """A store with its credentials, and a prefix in it."""

    access: Access
    prefix: str


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """The values of the options."""

    endpoint: str
    region: str
    secrets: Sequence[str]
    options: Sequence[str]
    of: StoreOf | None = None


_STORE_OPTIONS: tuple[Callable[[Callable[..., object]], Callable[..., object]], ...] = (
    click.option("--endpoint", metavar="URL", default="", help="Endpoint of the store, for s3://, gs:// and swift://."),
    click.option("--region", metavar="NAME", default="", help="Region of the store."),
    click.option(
        "--secret",
        "secrets",
        metavar="FIELD=NAME",
        multiple=True,
        help="Use the secret NAME as credential FIELD of the store (user_name, password, token ...).",
    ),
    click.option("--manifest", metavar="FILE", help="Use the data store of this manifest instead of a URL."),
    click.option("--store", metavar="ID", default="", help="Data store of the manifest, if it has several."),
    click.option("--results", is_flag=True, help="Use the container of results instead of that of data."),
    click.option(
        "--option", "options", metavar="NAME=VALUE", multiple=True, help="Set an option of the store, such as ca_file."
    ),
)


def store_options(command: Callable[..., object]) -> Callable[..., object]:
    """Add the options that select a store and its connection. The command gets them as `options`."""

    @functools.wraps(command)
    def wrapped(  # noqa: PLR0913  (one parameter per option)
        *,
        endpoint: str,
        region: str,
        secrets: Sequence[str],
        options: Sequence[str],
        manifest: str | None,
        store: str,
        results: bool,
        allow_files: Sequence[str],
        allow_references: bool,
        **rest: object,
    ) -> None:
        of = None
        if manifest:
            allowed = allowed_references({"allow_files": allow_files, "allow_references": allow_references})
            of = StoreOf(manifest, allowed, store, results)
        elif store or results or allow_files or allow_references:
            raise click.UsageError("--store, --results, --allow-file and --allow-references need --manifest")
        if of is not None and (endpoint or region or secrets or options):
            raise click.UsageError(
                "--endpoint, --region, --secret and --option cannot be combined with --manifest, which has these values"
            )
        command(options=StoreOptions(endpoint, region, secrets, options, of), **rest)

    made: Callable[..., object] = wrapped
    for option in reversed((*_STORE_OPTIONS, *reference_options())):
        made = option(made)
    return made


def choose_store(url: str | None, options: StoreOptions) -> Chosen:
    """Return the store of a URL, or of a manifest; `url` is then a path below the container.

    Raises click.UsageError, and ClientError for a manifest or secret that cannot be read.
    """
    keys = find_user_secrets()
    if options.of is not None:
        return Chosen(*place_of_manifest(options.of, url or "", keys))
    if url is None:
        raise click.UsageError("name a store by URL, or a manifest with --manifest")
    return Chosen(*_by_url(url, options, keys))


def _by_url(url: str, given: StoreOptions, keys: UserSecrets) -> tuple[Access, str]:
    from ffdl_batch.client.stores.credentials import access, with_environment
    from ffdl_batch.domain.data.store_kinds import KINDS, why_no_endpoint
    from ffdl_batch.domain.data.store_urls import StoreOptions, StoreUrlError, read_store_url

    options, secrets = _pairs("--option NAME=VALUE", given.options), _pairs("--secret FIELD=NAME", given.secrets)
    try:
        found = read_store_url(url, StoreOptions(given.endpoint, given.region, options, secrets))
    except StoreUrlError as error:
        raise click.UsageError(str(error)) from None
    address = with_environment(found.address, os.environ)
    if address.kind is StoreKind.SWIFT and not address.endpoint:
        raise click.UsageError("swift:// needs an endpoint: use --endpoint URL, or set OS_AUTH_URL")
    if address.endpoint and KINDS[address.kind].has_buckets and (why := why_no_endpoint(address.endpoint)):
        raise click.UsageError(
            f"{why}; set AWS_ENDPOINT_URL, AWS_ENDPOINT_URL_S3 or OS_AUTH_URL to https://HOST[:PORT]"
        )
    made = access(address, found.user, secrets, os.environ, keys)
    return made, found.prefix


def as_source(chosen: Chosen) -> Chosen:
    """Return a store to read. If it is a file of this machine, it becomes a prefix in the file's directory."""
    address = chosen.access.address
    path = Path(address.container, chosen.prefix)
    try:
        is_file = address.kind is StoreKind.FILE and path.is_file()
    except PermissionError:  # the transfer reports it
        is_file = False
    if not is_file:
        return chosen
    return Chosen(replace(chosen.access, address=replace(address, container=str(path.parent))), path.name)


def _pairs(form: str, texts: Sequence[str]) -> Mapping[str, str]:
    """Return the names and values of a repeated option of the form `form`. Raises click.UsageError."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise click.UsageError(f"{form.partition(' ')[0]} {quoted(name)}: write {form}")
        if name in found:
            raise click.UsageError(f"{form.partition(' ')[0]} {name[:60]} is given twice")
        found[name] = value
    return found
