"""Runs build steps inside a root file system that is not running yet.

Mounts live in a mount namespace of the step, so an interrupted build leaves none behind.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .command import bare_environment, proxy_environment, run, run_logged

BUILD_S = 2700.0
"""How long a step of a build may take, also on a busy machine."""


@dataclass(frozen=True, slots=True)
class Chroot:
    """A root file system, directories of the host bound into it (host path by path inside), and the build's log."""

    root: Path
    log: Path
    binds: tuple[tuple[Path, str], ...] = ()

    def run(self, script: str, *, env: Mapping[str, str] | None = None, timeout_s: float = BUILD_S) -> None:
        """Run a shell script (`sh -eu`) inside, with the network of the host; output goes to the log."""
        full_env = bare_environment(**proxy_environment(), DEBIAN_FRONTEND="noninteractive", **(env or {}))
        run_logged(self._argv(script), self.log, env=full_env, timeout_s=timeout_s)

    def output(self, script: str) -> str:
        """Standard output of a short script inside; "" when it fails."""
        return run(self._argv(script), env=bare_environment(), check=False).stdout.strip()

    def _argv(self, script: str) -> Sequence[str]:
        root = shlex.quote(str(self.root))
        lines = ["set -eu", "mount --make-rprivate /", f"mount -t proc proc {root}/proc"]
        lines += [f"mount -t tmpfs -o mode=1777 tmp {root}/tmp", f"touch {root}/etc/resolv.conf"]
        lines.append(f"[ ! -e /etc/resolv.conf ] || mount --bind /etc/resolv.conf {root}/etc/resolv.conf")
        for device in ("null", "zero", "urandom"):
            lines.append(f"[ -c {root}/dev/{device} ] || mknod -m 666 {root}/dev/{device} c 1 {_MINOR[device]}")
        for source, target in self.binds:
            inside = shlex.quote(f"{self.root}{target}")
            lines += [f"mkdir -p {inside}", f"mount --bind {shlex.quote(str(source))} {inside}"]
        lines.append(f"exec chroot {root} /bin/sh -eu -c {shlex.quote(script)}")
        return ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", "\n".join(lines)]


_MINOR = {"null": 3, "zero": 5, "urandom": 9}
