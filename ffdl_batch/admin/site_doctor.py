"""Find what is wrong with the service of site mode on this host, for ``ffdl-admin doctor``."""

from __future__ import annotations

import grp
import http.client
import os
import pwd
import shutil
import socket
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from ffdl_batch.domain.examination import Item, Verdict

SITE_FILE = Path("/etc/ffdl/site.toml")
RUN_DIR, HUB_SOCKET, HUB_USER = "/run/ffdl", "/run/ffdl-hub/hub.sock", "ffdl"
SANDBOXES = tuple(
    Path(place, "systemd/system/ffdl-tenant-.service.d") for place in ("/etc", "/run", "/usr/lib", "/lib")
)
SOON = timedelta(days=14)
"""Report a certificate this long before it expires."""
_PATIENCE_S = 10.0


def examine_site(site_file: Path = SITE_FILE) -> Iterator[Item]:
    """Yield the checks of the site file, the spawner and the hub; nothing on a host without a site file that has one of
    their tables."""
    try:
        with site_file.open("rb") as file:
            status = os.fstat(file.fileno())
            site = tomllib.load(file)
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        yield Item("site", Verdict.WRONG, f"{site_file} cannot be read: {error}")
        return
    spawner, hub = (site[name] if isinstance(site.get(name), dict) else None for name in ("spawner", "hub"))
    if spawner is None and hub is None:
        return
    is_safe = status.st_uid == 0 and not status.st_mode & 0o022
    about = (
        f"{site_file} must be owned by root and writable only by root: chown root {site_file}; chmod 644 {site_file}"
    )
    yield Item("site", *((Verdict.OK, str(site_file)) if is_safe else (Verdict.WRONG, about)))
    yield _spawner_item(Path(str((spawner or {}).get("run_dir", RUN_DIR)), "spawner.sock"))
    if spawner and spawner.get("tenants"):
        yield _sandbox_item()
    if hub is not None:
        yield from _hub_items(hub, str((spawner or {}).get("hub_user", HUB_USER)))


def _spawner_item(place: Path) -> Item:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(_PATIENCE_S)
        try:
            connection.connect(str(place))
        except OSError as error:
            text = f"no answer at {place}: {error.strerror}; see systemctl status ffdl-spawner"
            return Item("spawner", Verdict.WRONG, text)
    return Item("spawner", Verdict.OK, f"listens at {place}")


def _sandbox_item() -> Item:
    if any(any(place.glob("*.conf")) for place in SANDBOXES):
        return Item("tenants", Verdict.OK, "the units of their daemons have a sandbox")
    text = f"units of tenants' daemons have no sandbox drop-in: install slurm-configs/systemd/{SANDBOXES[0].name}"
    return Item("tenants", Verdict.WRONG, text)


def _hub_items(hub: Mapping[str, Any], user: str) -> Iterator[Item]:
    place = str(hub.get("socket", HUB_SOCKET))
    try:
        if (status := _ask(place)) == http.client.OK:
            yield Item("hub", Verdict.OK, f"answers at {place}")
        else:
            yield Item("hub", Verdict.WRONG, f"HTTP status {status} from {place}: is another program listening there?")
    except (OSError, http.client.HTTPException) as error:
        yield Item("hub", Verdict.WRONG, f"no answer at {place}: {error}; see systemctl status ffdl-hub")
    names = [str(name) for key in ("operators", "auditors") for name in hub.get(key) or ()]
    if missing := ", ".join(name for name in names if not _exists(name)):
        yield Item("roles", Verdict.WRONG, f"operators and auditors name no account or group here: {missing}")
    if certificate := hub.get("certificate"):
        yield _certificate_item(str(certificate))
    yield _listing_item(user)


def _exists(name: str) -> bool:
    """Return whether this host has an account of the name, or a group of the name behind ``@``."""
    try:
        grp.getgrnam(name[1:]) if name.startswith("@") else pwd.getpwnam(name)
    except KeyError:
        return False
    return True


def _ask(place: str) -> int:
    """Return the status of a request to the hub's socket. Raises OSError, HTTPException."""
    connection = http.client.HTTPConnection("hub", timeout=_PATIENCE_S)
    with socket.socket(socket.AF_UNIX) as connection.sock:
        connection.sock.settimeout(_PATIENCE_S)
        connection.sock.connect(place)
        connection.request("GET", "/health")
        return connection.getresponse().status


def _certificate_item(path: str) -> Item:
    program = shutil.which("openssl")
    if program is None:
        return Item(
            "certificate", Verdict.NOTE, "openssl is not installed, so the expiry was not checked", examined=False
        )
    done = _run([program, "x509", "-noout", "-enddate", "-in", path])
    try:
        ends = datetime.strptime(done.stdout.strip(), "notAfter=%b %d %H:%M:%S %Y GMT").replace(tzinfo=UTC)
    except ValueError:
        return Item("certificate", Verdict.WRONG, f"{path} cannot be read: {done.stderr.strip()[-200:]}")
    now = datetime.now(UTC)
    verdict = Verdict.WRONG if ends <= now else Verdict.NOTE if ends - now < SOON else Verdict.OK
    said = "expired" if verdict is Verdict.WRONG else "expires"
    cure = "" if verdict is Verdict.OK else "; renew it, and run systemctl reload ffdl-hub"
    return Item("certificate", verdict, f"{path} {said} on {ends:%Y-%m-%d}{cure}")


def _listing_item(user: str) -> Item:
    """Return whether the hub's account sees the jobs of all users, which only root can find out for it."""
    program = Path(sys.executable).with_name("ffdl-hub")
    if os.geteuid() != 0:
        text = f"run doctor as root to check what the account {user} sees in Slurm"
        return Item("listing", Verdict.NOTE, text, examined=False)
    done = _run(["runuser", "-u", user, "--", str(program), "--check"])
    text = done.stderr.strip().removeprefix("ffdl-hub: ")[-500:]
    return Item("listing", Verdict.OK if done.returncode == 0 else Verdict.WRONG, text)


def _run(argv: list[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(argv, 1, "", str(error))
