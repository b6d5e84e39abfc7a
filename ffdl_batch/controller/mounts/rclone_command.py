"""How rclone mounts a store: its configuration, its argv, and its environment. Pure.

No credential is in rclone's argv or environment. It reads its configuration once.
"""

from __future__ import annotations

from typing import Callable, Dict, List, Mapping

from ffdl_batch.controller.mounts.rclone_remotes import NotMountable, Remote
from ffdl_batch.domain.data.mounts import Mounts
from ffdl_batch.domain.data.staging_protocol import Transfer

PROGRAM = "rclone"
_REMOTE = "store"
_KEPT = ("PATH", "http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
"""Of the environment. Not AWS_*: the manifest says how the store is spoken to, and nothing else does."""
TIMEOUT_S = 60


def config_text(remote: Remote, obscure: Callable[[str], str]) -> str:
    """The file. `obscure` gives the form in which rclone reads passwords. Raises NotMountable, and what it raises."""
    values = dict(remote.settings)
    for name, value in remote.obscured.items():
        values[name] = obscure(value)
    for name, value in values.items():
        # What the reader of that file would take for a reference, a quotation, or another line.
        if "%(" in value or value.strip("\"'` \t") != value or not value.isprintable():
            raise NotMountable(f"{name} cannot be written into rclone's configuration")
    return f"[{_REMOTE}]\n" + "".join(f"{name} = {value}\n" for name, value in values.items() if value)


def mount_argv(transfer: Transfer, mounts: Mounts, source: str, config: str, cache: str) -> List[str]:
    """What mounts it at `transfer.local`, in the foreground. `cache` is a directory for what was read ("" = none)."""
    options, container = transfer.store.options, transfer.store.container
    place = (
        f"{container.rstrip('/')}/{transfer.prefix}" if container and transfer.prefix else container + transfer.prefix
    )
    argv = [PROGRAM, "mount", f"{_REMOTE}:{place}", transfer.local, "--read-only", "--config", config]
    argv += ["--devname", source, "--file-perms", "0444", "--dir-perms", "0555", "--log-level", "ERROR"]
    argv += ["--buffer-size", "4M"]  # of each file that is open
    argv += ["--contimeout", f"{TIMEOUT_S}s", "--timeout", f"{options.get('timeout_s', TIMEOUT_S)}s"]
    if options.get("ca_file"):
        argv += ["--ca-cert", options["ca_file"]]
    if cache:
        argv += ["--vfs-cache-mode", "full", "--cache-dir", cache, "--vfs-cache-poll-interval", "10s"]
        argv += ["--vfs-cache-max-size", f"{mounts.cache_bytes}b"]
    return argv


def environment(environ: Mapping[str, str], home: str) -> Dict[str, str]:
    """Of the program; `home` is where nothing of the user's is."""
    return {**{name: environ[name] for name in _KEPT if name in environ}, "HOME": home, "LANG": "C"}
