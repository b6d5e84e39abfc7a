"""What rclone is told of each kind of store: its settings by kind (rclone's documentation of its backends). Pure.

What cannot be said without loss is not said: then the store is not mounted, and its data are brought.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Callable, Dict, Mapping, Tuple

from ffdl_batch.domain.data.mounts import why_brought
from ffdl_batch.domain.data.staging_protocol import StoreAddress, StoreKind

GOOGLE = "https://storage.googleapis.com"
KNOWN_HOSTS = "known_hosts"
"""A file in the directory that the program works in, made of :attr:`Remote.known_hosts`."""
SYSTEM_HOSTS = ("/etc/ssh/ssh_known_hosts", "~/.ssh/known_hosts")
_NEVER = "2999-01-01T00:00:00Z"
_KEYS = {"user_name": "access_key_id", "password": "secret_access_key", "session_token": "session_token"}


class NotMountable(ValueError):
    """Why rclone is not asked for this store."""


@dataclass(frozen=True)
class Remote:
    """The `settings` of one store, by name; an empty one is left out. `obscured`: those of a secret that rclone reads
    in a form of its own. `hidden`: what none may read that `settings` have in another form than the file of secrets.

    `needs`: settings that this rclone has to know, or it would do less than it is told. `known_hosts`: files whose
    lines, those that are there, are the hosts it may speak to (none = it speaks to no host by SSH). `own_key`: it
    proves who it is by a key of the user's own.
    """

    settings: Mapping[str, str]
    obscured: Mapping[str, str] = field(default_factory=dict)
    hidden: Tuple[str, ...] = ()
    needs: Tuple[str, ...] = ()
    known_hosts: Tuple[str, ...] = ()
    own_key: bool = False


def remote_of(store: StoreAddress, secrets: Mapping[str, str]) -> Remote:
    """Raises NotMountable."""
    why = why_brought(store)
    if why:
        raise NotMountable(why)
    given = {}
    for key, name in store.credentials.items():
        if name not in secrets:
            raise NotMountable(f"the attempt has no secret {name}")
        given[key] = secrets[name]
    return _MAKERS[store.kind](store, given)


def _s3(store: StoreAddress, given: Mapping[str, str]) -> Remote:
    settings = {
        "type": "s3",
        "provider": "Other" if store.endpoint else "AWS",
        "env_auth": "false",
        "endpoint": store.endpoint,
        "region": store.region or "us-east-1",
        "force_path_style": store.options.get("path_style", "true" if store.endpoint else "false"),
        "no_check_bucket": "true",
    }
    return Remote({**settings, **{name: given[key] for key, name in _KEYS.items() if key in given}})


def _gcs(store: StoreAddress, given: Mapping[str, str]) -> Remote:
    """Keys sign as in S3; a token or a service account needs Google's own interface, which lies beside that one."""
    settings = {"type": "google cloud storage"}
    if "service_account" in given:
        try:
            text = json.dumps(json.loads(given["service_account"]))
        except ValueError:
            raise NotMountable("its service account is not the text of a key file") from None
        settings["service_account_credentials"], hidden = text, text
    elif "token" in given:
        hidden = given["token"]
        settings["token"] = json.dumps({"access_token": hidden, "token_type": "Bearer", "expiry": _NEVER})
    else:
        endpoint = store.endpoint or GOOGLE
        as_s3 = StoreAddress(StoreKind.S3, endpoint, store.region or "auto", store.container, store.options)
        # What Google's servers add to that header spoils the signature (rclone issue 6670).
        return Remote({**_s3(as_s3, given).settings, "use_accept_encoding_gzip": "false"})
    if not store.endpoint or store.endpoint.rstrip("/") == GOOGLE:
        return Remote(settings, hidden=(hidden,))
    settings["endpoint"] = f"{store.endpoint.rstrip('/')}/storage/v1/"
    return Remote(settings, hidden=(hidden,), needs=("endpoint",))


def _swift(store: StoreAddress, given: Mapping[str, str]) -> Remote:
    if "user_name" not in given:
        raise NotMountable("it names no user, as whom it is mounted")
    endpoint, options = store.endpoint.rstrip("/"), store.options
    settings = {"type": "swift", "env_auth": "false", "key": given.get("password", ""), "region": store.region}
    if endpoint.endswith(("/v1.0", "/v1")):
        return Remote({**settings, "auth": endpoint, "auth_version": "1", "user": given["user_name"]})
    user = "user" if options.get("domain_name") else "user_id"
    settings = {**settings, "auth": endpoint if endpoint.endswith("/v3") else f"{endpoint}/v3", "auth_version": "3"}
    settings = {**settings, user: given["user_name"], "domain": options.get("domain_name", "")}
    return Remote({**settings, "tenant_id": options.get("project_id", "")})


def _sftp(store: StoreAddress, given: Mapping[str, str]) -> Remote:
    """No command runs on the server. Links are left out, as the staging program does."""
    host, _, port = store.endpoint.partition(":")
    settings = {"type": "sftp", "host": host, "port": port or "22", "user": given.get("user_name", "")}
    settings.update({"known_hosts_file": KNOWN_HOSTS, "shell_type": "none", "disable_hashcheck": "true"})
    settings["skip_links"] = "true"
    obscured, key_file = {}, store.options.get("key_file", "")
    if "private_key" in given:
        settings["key_pem"] = given["private_key"].replace("\r\n", "\n").replace("\n", "\\n")
        obscured = {"key_file_pass": given["password"]} if "password" in given else {}
    elif key_file:
        if "$" in key_file or "{" in key_file:
            raise NotMountable("rclone reads the name of its key_file as that of another file")
        settings["key_file"] = key_file
        obscured = {"key_file_pass": given["password"]} if "password" in given else {}
    elif "password" in given:
        obscured = {"pass": given["password"]}
    files = (store.options["known_hosts"],) if store.options.get("known_hosts") else SYSTEM_HOSTS
    hidden = tuple(filter(None, (settings.get("key_pem"),)))
    own = not ({"password", "private_key"} & set(given) or key_file)
    return Remote(settings, obscured, hidden, ("known_hosts_file", "skip_links"), files, own)


_MAKERS: Dict[StoreKind, Callable[[StoreAddress, Mapping[str, str]], Remote]] = {
    StoreKind.S3: _s3,
    StoreKind.GCS: _gcs,
    StoreKind.SWIFT: _swift,
    StoreKind.FSSPEC: _sftp,
}
