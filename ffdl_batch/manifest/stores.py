"""Data stores: what each type needs, paths made absolute, credentials moved out."""

from __future__ import annotations

import difflib
import json
import posixpath
import re
from collections.abc import Collection, Mapping

from ffdl_batch.domain.data.store_kinds import FSSPEC_PROTOCOLS, KINDS, StoreKind, is_version_1
from ffdl_batch.domain.job.data_stores import REMOTE, StoreRefused, address_of, kind_of
from ffdl_batch.domain.job.secret_references import MOVED, REFERENCE
from ffdl_batch.domain.job.spec import DataStore, StoreType
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.manifest.checks.templates import is_placeholder
from ffdl_batch.manifest.contract import NO_JOB
from ffdl_batch.manifest.credentials import (
    READ_IN,
    find_written,
    is_credential_key,
    is_secret,
    keep_apart,
    secret_name,
    why_no_reference,
)
from ffdl_batch.manifest.document.tree import Place
from ffdl_batch.manifest.finding_log import FindingLog
from ffdl_batch.manifest.models.ffdl import STORE_TYPES, ContainerBlock, DataStoreBlock

_FFDL_KEYS = (
    "auth_url", "user_name", "password", "region", "domain_name", "project_id", "type", "path", "name", "mode", "host",
)  # fmt: skip
_OUR_KEYS = (
    *(key for traits in KINDS.values() for key in traits.options),
    *(key for traits in KINDS.values() for key in traits.credentials),
)
CONNECTION_KEYS = tuple(dict.fromkeys((*_FFDL_KEYS, *_OUR_KEYS)))
_DIRECTORIES = frozenset({StoreType.HOST_MOUNT, StoreType.DIRECTORY})
_BUCKETS = frozenset(StoreType) - _DIRECTORIES - {StoreType.MOUNT_VOLUME, StoreType.INMEM_DATASTORE}
_REFUSED = f"{NO_JOB} this"
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_ACCOUNT_KEYS = ("client_email", "private_key", "token_uri")
"""Fields without which Google's library takes no service account (google.oauth2.service_account)."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_PLACE_KEYS = frozenset({"type", "name", "mode", "host", "path", "protocol"})
"""Keys of an fsspec store that are no options of its library. References in options are read."""
_UNREAD = f"{{!r}} is not read here; references are read in {READ_IN}"
_HERE = "."
"""The container of a block that names none: the store's own directory ("" would mean that there is no block)."""


@dataclass(frozen=True, slots=True)
class Stores:
    """The stores and the credentials that stood in them, by secret name."""

    stores: tuple[DataStore, ...]
    secrets: Mapping[str, str]


def read_stores(blocks: list[DataStoreBlock], base_dir: str, log: FindingLog, taken: Collection[str] = ()) -> Stores:
    """Check each store and turn it into a value; findings go to `log`. `taken` are secrets that the manifest names."""
    stores: list[DataStore] = []
    secrets: dict[str, str] = {}
    ids: dict[str, int] = {}
    for i, block in enumerate(blocks):
        place: Place = ("data_stores", i)
        store_id = block.id or f"store-{i + 1}"
        earlier = ids.setdefault(store_id, i)
        if earlier != i:
            log.error((*place, "id"), f"{store_id!r} is also the id of data_stores[{earlier}]", "give each its own id")
        store = _read_store(block, store_id, place, log)
        if store is None:
            continue
        _check_blocks(block, store, place, log, is_alone=len(blocks) == 1)
        kind = _kind(store)
        is_clear = _check_unread(block.connection or {}, kind, (*place, "connection"), log)
        if not is_clear:
            continue
        connection = _place_path(store, base_dir, place, log)
        for key in connection:
            _check_spelling(key, kind, (*place, "connection", key), log)
        store = _with_connection(store, _move_secrets(store_id, connection, secrets, taken, place, log))
        if block.connection is not None:
            _check_remote(store, place, log)
        stores.append(store)
    return Stores(tuple(stores), secrets)


def _check_unread(connection: Mapping[str, str], kind: StoreKind, place: Place, log: FindingLog) -> bool:
    """Report references in fields that are no credentials, where none is read. Return whether there are none."""
    unread = {
        key: find_written(value)[0]
        for key, value in connection.items()
        if not is_credential_key(key) and (kind is not StoreKind.FSSPEC or key in _PLACE_KEYS)
    }
    for key, written in unread.items():
        if written:
            log.error((*place, key), _UNREAD.format(written), "write the value")
    return not any(unread.values())


def _read_store(block: DataStoreBlock, store_id: str, place: Place, log: FindingLog) -> DataStore | None:
    connection = dict(block.connection or {})
    override = connection.get("type", "").strip()
    if override and override not in STORE_TYPES:
        message = f"{override[:60]!r} is not a type of data store"
        log.error((*place, "connection", "type"), message, f"write one of {', '.join(STORE_TYPES)}")
        return None
    if not block.type and not override:
        log.error((*place, "type"), "Data store type is not set", f"write one of {', '.join(STORE_TYPES)}")
        return None
    declared = StoreType(block.type or override)
    effective = StoreType(override or block.type)
    if override and effective not in (declared, StoreType.HOST_MOUNT):
        message = f"connection.type {override} wins over type {block.type}, as in FfDL"
        log.warning((*place, "connection", "type"), message, "make them agree, or delete connection.type")
    return DataStore(
        id=store_id,
        type=declared,
        effective_type=effective,
        training_data=_container(block.training_data, effective, (*place, "training_data"), log),
        training_results=_container(block.training_results, effective, (*place, "training_results"), log),
        connection=connection,
    )


def _container(block: ContainerBlock | None, kind: StoreType, place: Place, log: FindingLog) -> str:
    if block is None:
        return ""
    name = block.container
    at = (*place, "container")
    if not name:
        cure = "write `container: ` and the name of the bucket"
        if kind is StoreType.MOUNT_COS:
            log.error(at, "Data store bucket is not set", cure)
        elif kind in _BUCKETS:
            log.warning(at, "Data store bucket is not set; FfDL lets this pass and fails later", cure)
        return _HERE if kind in _DIRECTORIES else ""
    if kind in REMOTE and (scheme := _SCHEME.match(name)):
        cure = f"write container: {name[scheme.end() :][:60]}"
        log.error(at, f"{name[:60]!r} is a URL, and a container is a name without a scheme", cure)
    if written := find_written(name)[0]:
        log.error(at, _UNREAD.format(written), "write the name")
    if name.startswith("/") or ".." in name.split("/"):
        log.error(at, f"{name[:60]!r} leads out of the store", "name a bucket, or a directory below connection.path")
    return name


def _check_blocks(block: DataStoreBlock, store: DataStore, place: Place, log: FindingLog, *, is_alone: bool) -> None:
    ours = store.effective_type is StoreType.DIRECTORY
    if block.training_data is None and block.training_results is None:
        log.error(
            (*place, "training_data"),
            "Training input data is not set",
            "write training_data or training_results: {container: NAME}, or delete the whole store",
        )
    elif block.training_results is None and is_alone:
        log.note((*place, "training_results"), "no place for results is named; they stay in the job's directory")
    if block.connection is None and store.effective_type in _BUCKETS:
        log.error((*place, "connection"), "Data store connection info not set", "write connection: {auth_url: …, …}")
    if ours and store.is_copied and block.training_data is None:
        log.warning(
            (*place, "connection", "mode"),
            "mode copy is for training_data, and there is none: nothing is copied",
            "write training_data: {container: NAME}, or leave the mode out",
        )
    if store.effective_type is StoreType.MOUNT_VOLUME:
        log.warning(
            (*place, "type"),
            "FfDL mounts nothing for mount_volume alone, and neither does this",
            "write connection: {type: host_mount, path: /a/directory}",
        )


def _check_remote(store: DataStore, place: Place, log: FindingLog) -> None:
    """What no store can be reached by."""
    if store.effective_type not in REMOTE:
        return
    try:
        address_of(store)
    except StoreRefused as refused:
        log.warning((*place, *refused.path.split(".")), f"{_REFUSED}: {refused.message}", refused.cure)
    _check_v1(store, place, log)
    _check_protocol(store, place, log)
    if store.effective_type is StoreType.HTTP_DATASTORE and store.training_results:
        message = "results cannot be stored on a web server"
        log.error((*place, "training_results"), message, "name a store of another type for them")


def _check_v1(store: DataStore, place: Place, log: FindingLog) -> None:
    """Warn about options of Keystone beside an address that gives tokens of the first version."""
    if _kind(store) is not StoreKind.SWIFT or not is_version_1(store.connection.get("auth_url", "").strip()):
        return
    for key in ("project_id", "domain_name"):
        if store.connection.get(key):
            message = f"{key} has no effect with an auth_url that ends with /v1 or /v1.0"
            log.warning((*place, "connection", key), message, "delete it, or write the auth_url that ends with /v3")


def _check_protocol(store: DataStore, place: Place, log: FindingLog) -> None:
    """Warn about a protocol that fsspec does not have. Libraries on the nodes may add it."""
    protocol = store.connection.get("protocol", "").strip()
    if store.effective_type is not StoreType.FSSPEC_DATASTORE or not protocol or protocol in FSSPEC_PROTOCOLS:
        return
    near = difflib.get_close_matches(protocol, sorted(FSSPEC_PROTOCOLS), n=1, cutoff=0.6)
    cure = f"did you mean {near[0]}?" if near else "install a library for it where jobs run, or correct the name"
    log.warning((*place, "connection", "protocol"), f"{protocol[:60]!r} is not a protocol of fsspec", cure)


def _place_path(store: DataStore, base_dir: str, place: Place, log: FindingLog) -> dict[str, str]:
    """The connection with an absolute `path`, for stores that are directories."""
    connection = dict(store.connection)
    if store.effective_type not in _DIRECTORIES:
        return connection
    at = (*place, "connection", "path")
    path = connection.get("path", "").rstrip("\r\n")
    if not path.strip():
        log.error(at, f"a {store.effective_type} store needs a path", "write connection: {path: /a/directory}")
        return connection
    if not path.isprintable():
        log.error(at, "the path contains a control character", "write it as one line of plain text")
    if path.startswith("~"):
        log.error(at, "~ means nothing here: it depends on who reads it", "write the directory's absolute path")
    elif not path.startswith("/") and not base_dir:
        log.error(at, f"{path[:60]!r} is relative to a directory that is not known", "write an absolute path")
    mode = connection.get("mode", "mount")
    if store.effective_type is StoreType.DIRECTORY and mode not in ("mount", "copy"):
        log.error((*place, "connection", "mode"), f"{mode[:60]!r} is not a mode", "write mount or copy")
    connection["path"] = posixpath.normpath(posixpath.join(base_dir or "/", path))
    return connection


def _move_secrets(
    store_id: str,
    connection: dict[str, str],
    secrets: dict[str, str],
    taken: Collection[str],
    place: Place,
    log: FindingLog,
) -> dict[str, str]:
    """The connection with credentials replaced by references; their values go to `secrets`."""
    kept: dict[str, str] = {}
    moved: list[str] = []
    for key, value in connection.items():
        if why := why_no_reference(value):
            log.error((*place, "connection", key), why, "write ${secret:NAME}, ${env:NAME} or ${file:PATH}")
        _check_person(key, value, (*place, "connection", key), log)
        if key == "service_account" and not REFERENCE.fullmatch(value) and (why := _why_no_account(value)):
            log.error((*place, "connection", key), why, "write ${file:PATH} and allow the key file of the account")
        if not is_secret(key, value):
            kept[key] = value
            continue
        name = keep_apart(secret_name(store_id, key), value, secrets, taken)
        if not is_placeholder(value):
            moved.append(key)
        kept[key] = f"${{secret:{name}}}"
    if moved:
        log.warning(
            (*place, "connection"),
            f"credentials stand in the manifest ({', '.join(sorted(moved))}); they are {MOVED}",
            "write ${secret:NAME} and keep the value out of the manifest",
        )
    return kept


def _check_person(key: str, value: str, place: Place, log: FindingLog) -> None:
    """A user name or a password that no store can know."""
    if key not in ("user_name", "password"):
        return
    if not value.strip():
        log.warning(place, f"{key} is empty, so it is not sent to the store", "write a value, or delete the line")
    elif _CONTROL.search(value):
        message = f"{key} contains a line break or another control character, which most stores reject"
        log.warning(place, message, "write it on one line, without a line break at its end")


def _why_no_account(text: str) -> str:
    """Return why this is not the text of a Google service account's key file, without quoting it; "" = it is."""
    if not text or is_placeholder(text):
        return ""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return "service_account is not JSON: it must be the whole text of the account's key file"
    keys = found if isinstance(found, dict) else {}
    missing = [key for key in _ACCOUNT_KEYS if not isinstance(keys.get(key), str) or not keys[key]]
    return f"service_account is not the text of a key file: it has no {', '.join(missing)}" if missing else ""


def _kind(store: DataStore) -> StoreKind:
    """How the store is spoken to; a directory is one of no keys of its own."""
    try:
        return kind_of(store) if store.effective_type in REMOTE else StoreKind.FILE
    except StoreRefused:
        return StoreKind.FILE


def _check_spelling(key: str, kind: StoreKind, place: Place, log: FindingLog) -> None:
    """What a library of fsspec takes is not known here."""
    by_library = kind is StoreKind.FSSPEC
    if key in CONNECTION_KEYS or len(key) > 60:
        ours = (*KINDS[kind].options, *KINDS[kind].credentials)
        if not by_library and key not in (*_FFDL_KEYS, *ours):
            log.warning(
                place,
                "this key is for another kind of data store and has no effect here",
                f"use one of {', '.join(ours) or 'path'}",
            )
        return
    near = difflib.get_close_matches(key.lower(), CONNECTION_KEYS, n=1, cutoff=0.8)
    if near:
        log.warning(place, "this key is not known to any data store", f"did you mean {near[0]}?")
    elif not by_library and not is_credential_key(key):
        log.note(place, "this key is passed on as it is; FfDL's data stores do not read it")


def _with_connection(store: DataStore, connection: Mapping[str, str]) -> DataStore:
    return DataStore(
        store.id, store.type, store.effective_type, store.training_data, store.training_results, connection
    )
