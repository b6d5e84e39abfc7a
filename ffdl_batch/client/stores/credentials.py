"""Credentials of stores for commands: from the environment and the user's secrets.

The command's own process reads the values, and passes them only to the staging program. From then on it leaves no core
dump. The daemon is not asked for values, and no value is an argument.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import field, replace
from pathlib import Path

from ffdl_batch.client.errors import InputUnusable
from ffdl_batch.client.stores.user_secrets import UserSecrets
from ffdl_batch.domain.data.store_kinds import StoreAddress, StoreKind
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.job.secret_references import ENV, FILE, UNREAD, why_no_name
from ffdl_batch.domain.terminal_text import quoted
from ffdl_batch.host.core_dumps import forbid_core_dumps
from ffdl_batch.host.fast_dataclass import dataclass

_OF_STORE = {
    StoreKind.S3: "or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    StoreKind.SWIFT: "or set OS_USERNAME and OS_PASSWORD",
    StoreKind.GCS: "or set GOOGLE_APPLICATION_CREDENTIALS",
}
_NEAR = "or use the directory of an attempt: --attempt N"


@dataclass(frozen=True, slots=True)
class Access:
    """A store and its credentials."""

    address: StoreAddress
    """The address, which names secrets."""
    values: Mapping[str, str] = field(repr=False)
    """The values of the secrets, which are not shown by repr."""


def access(
    address: StoreAddress, user: str, named: Mapping[str, str], environ: Mapping[str, str], keys: UserSecrets
) -> Access:
    """Return a store with credentials. `named` maps fields to secrets; if it is empty, the environment is used.

    Raises InputUnusable.
    """
    forbid_core_dumps()
    fields = {name: read_own_secret(keys, secret) for name, secret in named.items()}
    if not fields:
        fields = from_environment(address.kind, environ)
    if user:
        fields = {"user_name": user, **fields}
    return Access(replace(address, credentials={name: name for name in fields}), fields)


def of_job(
    address: StoreAddress, secrets_file: Path, keys: UserSecrets, environ: Mapping[str, str], *, near: bool = False
) -> Access:
    """Return a store of a job. Its secrets are in the job's file if they come from the manifest; the others are the
    user's. If they cannot be read, the environment is used. `near`: attempts also have directories of their own. Raises
    InputUnusable.
    """
    forbid_core_dumps()
    try:
        kept = json.loads(keys.file(secrets_file))
    except (OSError, ValueError):
        kept = {}
    try:
        return of_references(address, kept if isinstance(kept, dict) else {}, keys)
    except InputUnusable as unusable:
        found = from_environment(address.kind, environ)
        if not found and not kept and keys.sees_jobs:  # they are removed when the job ends
            problem, own = unusable.problem, _NEAR if near else ""
            raise InputUnusable(
                f"{problem.message}, and the secrets of the submission were removed when the job ended",
                cure="; ".join(part for part in (problem.cure, _OF_STORE.get(address.kind, ""), own) if part),
                code=problem.code,
                exit_code=problem.exit_code,
            ) from None
        if not found:
            raise
        return Access(replace(address, credentials={name: name for name in found}), found)


def of_references(address: StoreAddress, given: Mapping[str, str], keys: UserSecrets) -> Access:
    """Return a store of a manifest. `given` has the secret values of the manifest, and those of its ``env:NAME`` and
    ``file:PATH``. Other names are the user's secrets. Raises InputUnusable."""
    forbid_core_dumps()
    return Access(
        address, {name: given.get(name) or _value(name, given, keys) for name in address.credentials.values()}
    )


def _value(name: str, given: Mapping[str, str], keys: UserSecrets) -> str:
    kind, _, rest = name.partition(":")
    if unread := given.get(f"{UNREAD}:{name}"):
        why, _, cure = unread.partition("; ")
        what = "variable" if kind == ENV else "file"
        raise InputUnusable(
            f"the manifest names the {what} {quoted(rest)}, which cannot be read: {why}", code="C103", cure=cure
        )
    if kind == ENV:
        raise InputUnusable(f"the manifest names the variable {rest}, which is not set", code="C103")
    if kind == FILE:
        why = "which cannot be read, or is not a regular file of at most 64 KiB of UTF-8 text"
        raise InputUnusable(f"the manifest names the file {quoted(rest)}, {why}", code="C103")
    return read_own_secret(keys, name)


def with_environment(address: StoreAddress, environ: Mapping[str, str]) -> StoreAddress:
    """Return the address with endpoint, region and project of the environment, if it has none."""
    if address.kind is StoreKind.S3:
        endpoint = address.endpoint or _first(environ, "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
        region = address.region or _first(environ, "AWS_REGION", "AWS_DEFAULT_REGION")
        return replace(address, endpoint=endpoint, region=region)
    if address.kind is StoreKind.SWIFT:
        found = {
            "domain_name": _first(environ, "OS_USER_DOMAIN_NAME", "OS_USER_DOMAIN_ID"),
            "project_id": _first(environ, "OS_PROJECT_ID", "OS_TENANT_ID"),
        }
        options = {**{name: value for name, value in found.items() if value}, **address.options}
        return replace(address, endpoint=address.endpoint or environ.get("OS_AUTH_URL", ""), options=options)
    return address


def from_environment(kind: StoreKind, environ: Mapping[str, str]) -> dict[str, str]:
    """Return credentials by field, from the variables of the stores' own programs. Raises InputUnusable."""
    if kind is StoreKind.S3 and environ.get("AWS_ACCESS_KEY_ID") and environ.get("AWS_SECRET_ACCESS_KEY"):
        found = {"user_name": environ["AWS_ACCESS_KEY_ID"], "password": environ["AWS_SECRET_ACCESS_KEY"]}
        token = environ.get("AWS_SESSION_TOKEN", "")
        return found | ({"session_token": token} if token else {})
    if kind is StoreKind.SWIFT and environ.get("OS_USERNAME") and environ.get("OS_PASSWORD"):
        return {"user_name": environ["OS_USERNAME"], "password": environ["OS_PASSWORD"]}
    if kind is StoreKind.GCS and environ.get("GOOGLE_APPLICATION_CREDENTIALS"):
        return {
            "service_account": _read(Path(environ["GOOGLE_APPLICATION_CREDENTIALS"]), "GOOGLE_APPLICATION_CREDENTIALS")
        }
    if kind is StoreKind.GCS and environ.get("CLOUDSDK_AUTH_ACCESS_TOKEN"):
        return {"token": environ["CLOUDSDK_AUTH_ACCESS_TOKEN"]}
    return {}


def read_own_secret(keys: UserSecrets, name: str) -> str:
    """Return the value of one of the user's secrets. Raises InputUnusable."""
    if wrong := why_no_name(name):
        raise InputUnusable(wrong, code="C103")
    try:
        return keys.own(name).decode("utf-8")
    except FileNotFoundError:
        raise InputUnusable(
            f"there is no secret {name}",
            cure=f"set it: ffdl secret set {name}",
            code="C103",
            exit_code=ExitCode.NOT_ALLOWED,
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise InputUnusable(f"the secret {name} cannot be read: {why}", code="C103") from None


def _read(path: Path, why_it: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise InputUnusable(f"{path} ({why_it}) cannot be read: {why}", code="C103") from None


def _first(environ: Mapping[str, str], *names: str) -> str:
    return next((environ[name] for name in names if environ.get(name)), "")
