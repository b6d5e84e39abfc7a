"""What has to be there before rclone mounts by SSH, or at all: what it knows, its form of passwords, hosts, a key."""

from __future__ import annotations

import os
import pwd
import subprocess
from dataclasses import replace
from typing import List, Mapping, Sequence

from ffdl_batch.controller.mounts.rclone_command import PROGRAM
from ffdl_batch.controller.mounts.rclone_remotes import KNOWN_HOSTS, NotMountable, Remote

ASK_S = 20.0
OWN_KEYS = ("~/.ssh/id_ed25519", "~/.ssh/id_ecdsa", "~/.ssh/id_rsa")


def made_ready(remote: Remote, directory: str, environ: Mapping[str, str]) -> Remote:
    """The remote with what this node and user have for it; hosts that are known are written into the directory.
    `environ` is rclone's. Raises NotMountable, OSError."""
    if remote.needs:
        said = _ask(["help", "backend", remote.settings["type"]], environ)
        lacks = [name for name in remote.needs if f"- Config:      {name}\n" not in said]
        if lacks:
            raise NotMountable(f"the node's rclone is too old for it (it has no {lacks[0]})")
    settings = dict(remote.settings)
    if remote.known_hosts:
        _write_known_hosts(remote.known_hosts, os.path.join(directory, KNOWN_HOSTS))
        settings["user"] = settings.get("user") or pwd.getpwuid(os.getuid()).pw_name
    if remote.own_key:
        found = [path for path in map(os.path.expanduser, OWN_KEYS) if os.access(path, os.R_OK)]
        if not found:
            raise NotMountable("you have no key in ~/.ssh by which the node could log in")
        settings["key_file"] = found[0]
    return replace(remote, settings=settings)


def obscured(text: str, environ: Mapping[str, str]) -> str:
    """A password as rclone's configuration has it; it is told on standard input. Raises NotMountable, OSError."""
    if not text.isprintable():
        raise NotMountable("its password cannot be written into rclone's configuration")
    return _ask(["obscure", "-"], environ, text + "\n").strip()


def _write_known_hosts(files: Sequence[str], target: str) -> None:
    found: List[bytes] = []
    for path in files:
        try:
            with open(os.path.expanduser(path), "rb") as file:
                found.append(file.read())
        except OSError:  # said below, where it is all of them
            continue
    if not found:
        raise NotMountable(f"no file says which hosts are known: {' and '.join(files)}")
    with open(target, "wb") as out:
        out.write(b"\n".join(found))


def _ask(words: List[str], environ: Mapping[str, str], told: str = "") -> str:
    """What rclone answers. Raises NotMountable, OSError."""
    try:
        done = subprocess.run(
            [PROGRAM, *words, "--config", os.devnull],
            input=told.encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=dict(environ),
            timeout=ASK_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise NotMountable(f"{PROGRAM} {words[0]} did not end within {ASK_S:.0f} s") from None
    if done.returncode != 0:
        raise NotMountable(f"{PROGRAM} {words[0]} ended with status {done.returncode}")
    return done.stdout.decode("utf-8", "replace")
