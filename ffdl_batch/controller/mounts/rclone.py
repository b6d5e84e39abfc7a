"""Prepare rclone's configuration, argv, environment, known hosts and keys for each kind of store.

No credential is in rclone's argv or environment; rclone reads its configuration once. A store whose settings rclone
cannot express is not mounted: its data are copied instead. Sources: rclone's documentation of its backends.
"""

from __future__ import annotations

import json
import os
import pwd
import subprocess
from dataclasses import field, replace
from typing import Callable, Dict, List, Mapping, Sequence, Tuple

from ffdl_batch.domain.data.mounts import Mounts, why_brought
from ffdl_batch.domain.data.staging_protocol import Transfer
from ffdl_batch.domain.data.store_kinds import StoreAddress, StoreKind
from ffdl_batch.host.fast_dataclass import dataclass

GOOGLE = "https://storage.googleapis.com"
KNOWN_HOSTS = "known_hosts"
"""File in rclone's working directory, made from :attr:`Remote.known_hosts`."""
SYSTEM_HOSTS = ("/etc/ssh/ssh_known_hosts", "~/.ssh/known_hosts")
_NEVER = "2999-01-01T00:00:00Z"
_KEYS = {"user_name": "access_key_id", "password": "secret_access_key", "session_token": "session_token"}


class NotMountable(ValueError):
    """The store cannot be mounted; the message says why."""


@dataclass(frozen=True)
class Remote:
    """rclone's configuration of one store."""

    settings: Mapping[str, str]
    """By name. Empty ones are left out."""
    obscured: Mapping[str, str] = field(default_factory=dict)
    """Passwords, which rclone reads in a form of its own."""
    hidden: Tuple[str, ...] = ()
    """Secret texts in `settings` that differ from the values in the file of secrets."""
    needs: Tuple[str, ...] = ()
    """Settings that the node's rclone must know, because it ignores unknown ones."""
    known_hosts: Tuple[str, ...] = ()
    """Files with the hosts that rclone may connect to by SSH. Missing files are skipped."""
    own_key: bool = False
    """Whether rclone logs in with a key of the user's own."""


def remote_of(store: StoreAddress, secrets: Mapping[str, str]) -> Remote:
    """Return the configuration of a store. Raises NotMountable."""
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
    """Return the configuration for Google: its S3 interface for keys, its own one for a token or a service account."""
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
        # Google's servers change that header, which invalidates the signature (rclone issue 6670).
        return Remote({**_s3(as_s3, given).settings, "use_accept_encoding_gzip": "false"})
    if not store.endpoint or store.endpoint.rstrip("/") == GOOGLE:
        return Remote(settings, hidden=(hidden,))
    settings["endpoint"] = f"{store.endpoint.rstrip('/')}/storage/v1/"
    return Remote(settings, hidden=(hidden,), needs=("endpoint",))


def _swift(store: StoreAddress, given: Mapping[str, str]) -> Remote:
    if "user_name" not in given:
        raise NotMountable("it names no user")
    endpoint, options = store.endpoint.rstrip("/"), store.options
    settings = {"type": "swift", "env_auth": "false", "key": given.get("password", ""), "region": store.region}
    if endpoint.endswith(("/v1.0", "/v1")):
        return Remote({**settings, "auth": endpoint, "auth_version": "1", "user": given["user_name"]})
    user = "user" if options.get("domain_name") else "user_id"
    settings = {**settings, "auth": endpoint if endpoint.endswith("/v3") else f"{endpoint}/v3", "auth_version": "3"}
    settings = {**settings, user: given["user_name"], "domain": options.get("domain_name", "")}
    return Remote({**settings, "tenant_id": options.get("project_id", "")})


def _sftp(store: StoreAddress, given: Mapping[str, str]) -> Remote:
    """Return the configuration for SFTP. No command runs on the server, and links are left out as in staging."""
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


PROGRAM = "rclone"
_REMOTE = "store"
_KEPT = ("PATH", "http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
"""Variables that rclone gets. AWS_* are not among them: only the manifest configures the store."""
TIMEOUT_S = 60


def config_text(remote: Remote, obscure: Callable[[str], str]) -> str:
    """Return the text of the configuration file.

    `obscure` encodes passwords. Raises NotMountable, and what it raises.
    """
    values = dict(remote.settings)
    for name, value in remote.obscured.items():
        values[name] = obscure(value)
    for name, value in values.items():
        # rclone would read it as a reference, a quotation or several lines.
        if "%(" in value or value.strip("\"'` \t") != value or not value.isprintable():
            raise NotMountable(f"{name} cannot be written into rclone's configuration")
    return f"[{_REMOTE}]\n" + "".join(f"{name} = {value}\n" for name, value in values.items() if value)


def mount_argv(transfer: Transfer, mounts: Mounts, source: str, config: str, cache: str) -> List[str]:
    """Return the argv that mounts the store at `transfer.local`, in the foreground. `cache` is a directory, or ""."""
    options, container = transfer.store.options, transfer.store.container
    place = (
        f"{container.rstrip('/')}/{transfer.prefix}" if container and transfer.prefix else container + transfer.prefix
    )
    argv = [PROGRAM, "mount", f"{_REMOTE}:{place}", transfer.local, "--read-only", "--config", config]
    argv += ["--devname", source, "--file-perms", "0444", "--dir-perms", "0555", "--log-level", "ERROR"]
    argv += ["--buffer-size", "4M"]  # for each open file
    argv += ["--contimeout", f"{TIMEOUT_S}s", "--timeout", f"{options.get('timeout_s', TIMEOUT_S)}s"]
    if options.get("ca_file"):
        argv += ["--ca-cert", options["ca_file"]]
    if cache:
        argv += ["--vfs-cache-mode", "full", "--cache-dir", cache, "--vfs-cache-poll-interval", "10s"]
        argv += ["--vfs-cache-max-size", f"{mounts.cache_bytes}b"]
    return argv


def environment(environ: Mapping[str, str], home: str) -> Dict[str, str]:
    """Return rclone's environment. `home` is a directory without files of the user."""
    return {**{name: environ[name] for name in _KEPT if name in environ}, "HOME": home, "LANG": "C"}


ASK_S = 20.0
OWN_KEYS = ("~/.ssh/id_ed25519", "~/.ssh/id_ecdsa", "~/.ssh/id_rsa")


def made_ready(remote: Remote, directory: str, environ: Mapping[str, str]) -> Remote:
    """Return the configuration completed with the user's name and key, and write the known hosts into the directory.

    `environ` is rclone's. Raises NotMountable, OSError.
    """
    if remote.needs:
        text = _ask(["help", "backend", remote.settings["type"]], environ)
        lacks = [name for name in remote.needs if f"- Config:      {name}\n" not in text]
        if lacks:
            raise NotMountable(f"the node's rclone is too old (it has no {lacks[0]})")
    settings = dict(remote.settings)
    if remote.known_hosts:
        _write_known_hosts(remote.known_hosts, os.path.join(directory, KNOWN_HOSTS))
        settings["user"] = settings.get("user") or pwd.getpwuid(os.getuid()).pw_name
    if remote.own_key:
        found = [path for path in map(os.path.expanduser, OWN_KEYS) if os.access(path, os.R_OK)]
        if not found:
            raise NotMountable("you have no key in ~/.ssh with which the node could log in")
        settings["key_file"] = found[0]
    return replace(remote, settings=settings)


def obscured(text: str, environ: Mapping[str, str]) -> str:
    """Return a password as rclone encodes it. rclone gets it on standard input. Raises NotMountable, OSError."""
    if not text.isprintable():
        raise NotMountable("its password cannot be written into rclone's configuration")
    return _ask(["obscure", "-"], environ, text + "\n").strip()


def _write_known_hosts(files: Sequence[str], target: str) -> None:
    found: List[bytes] = []
    for path in files:
        try:
            with open(os.path.expanduser(path), "rb") as file:
                found.append(file.read())
        except OSError:  # reported below if none can be read
            continue
    if not found:
        raise NotMountable(f"no file says which hosts are known: {' and '.join(files)}")
    with open(target, "wb") as out:
        out.write(b"\n".join(found))


def _ask(words: List[str], environ: Mapping[str, str], text: str = "") -> str:
    """Return what rclone prints for an input. Raises NotMountable, OSError."""
    try:
        done = subprocess.run(
            [PROGRAM, *words, "--config", os.devnull],
            input=text.encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=dict(environ),
            timeout=ASK_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise NotMountable(f"{PROGRAM} {words[0]} did not end within {ASK_S:.0f} s") from None
    if done.returncode != 0:
        raise NotMountable(f"{PROGRAM} {words[0]} exited with status {done.returncode}")
    return done.stdout.decode("utf-8", "replace")
