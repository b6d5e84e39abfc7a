"""A user of the cluster with a daemon of their own beside their usual one: separate state, socket and configuration.

So a proof or a benchmark neither meets nor disturbs what else the user runs on a kept cluster.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.cluster.rig import Cluster
from tests.cluster.rig.access import USER_PATH
from tests.cluster.rig.rootfs import USERS

LOGIN_NODE = "ctl"
VENV_PYTHON = "/opt/ffdl/venv/bin/python"
SOURCE = "/opt/ffdl/src"
Completed = subprocess.CompletedProcess[str]

_CONFIG = """\
images_dirs = ["/shared/images"]
idle_exit_s = 60
state_dir = "{base}/state"
jobs_dir = "{base}/jobs"
{site}
[backend]
default = "slurm"

[backend.slurm]
gateway = "{gateway}"
python = "/opt/ffdl/venv/bin/python"
credential_life_s = 15
{settings}"""


class Desk:
    """`user` works in ``~/<name>`` through Slurm's `gateway` (cli or pyslurm). A context: it leaves nothing running.

    `path_first` names a directory of the desk that their PATH begins with; the daemon that they start inherits it.
    `settings` are further lines of the configuration's [backend.slurm], `site` of what stands before it.
    """

    def __init__(
        self,
        cluster: Cluster,
        user: str,
        name: str,
        gateway: str,
        path_first: str = "",
        *,
        settings: str = "",
        site: str = "",
    ) -> None:
        self.cluster, self.user, self.gateway = cluster, user, gateway
        self.base, self._settings, self._site = f"/home/{user}/{name}", settings, site
        self._path = f"{self.base}/{path_first}:{USER_PATH}" if path_first else USER_PATH

    def __enter__(self) -> Desk:
        """Begin with an empty directory; what an interrupted run left is ended first."""
        self.clear()
        shutil.rmtree(self.host_path(self.base), ignore_errors=True)
        text = _CONFIG.format(base=self.base, gateway=self.gateway, settings=self._settings, site=self._site)
        self.write({f"{self.base}/config.toml": text})
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.clear()

    @property
    def environment(self) -> dict[str, str]:
        """What leads the user's commands to this desk's daemon."""
        return {
            "FFDL_CONFIG": f"{self.base}/config.toml",
            "FFDL_SOCKET": f"{self.base}/ffdl.sock",
            "PATH": self._path,
            # The checkout is read-only on the nodes: without this every start would compile the package again, which
            # no installed package does.
            "PYTHONPYCACHEPREFIX": f"{self.base}/pycache",
        }

    def run(self, *argv: str, check: bool = True, timeout_s: float = 300.0) -> Completed:
        """One command on the login node."""
        return self.cluster.run(
            LOGIN_NODE,
            argv,
            user=self.user,
            env=self.environment,
            cwd=self.base,
            check=check,
            timeout_s=timeout_s,
        )

    def popen(self, *argv: str) -> subprocess.Popen[str]:
        """A command on the login node that goes on; its standard error comes apart from its output."""
        return self.cluster.popen(
            LOGIN_NODE, argv, user=self.user, env=self.environment, cwd=self.base, stderr=subprocess.PIPE
        )

    def host_path(self, inside: str) -> Path:
        """Where this process finds a file of the nodes."""
        return self.cluster.path(LOGIN_NODE, inside)

    def write(self, files: Mapping[str, str]) -> None:
        """Files of the user's, directories and all; the keys are absolute paths on the nodes, below the desk."""
        uid = USERS[self.user]
        for name, text in files.items():
            path = self.host_path(name)
            missing = [parent for parent in (path.parent, *path.parent.parents) if not parent.exists()]
            for parent in reversed(missing):
                parent.mkdir(mode=0o755)
                os.chown(parent, uid, uid)
            path.write_text(text, encoding="utf-8")
            os.chown(path, uid, uid)

    def jobs(self) -> list[dict[str, Any]]:
        """What ``ffdl list --json`` prints of all jobs."""
        listed = json.loads(self.run("ffdl", "list", "--json", "--limit", "9999").stdout)
        return list(listed["jobs"])

    def holder(self) -> dict[str, Any] | None:
        """The lock file of the running daemon."""
        path = self.host_path(f"{self.base}/state/daemon.lock")
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        return dict(json.loads(text)) if text.strip() else None

    def host_pid(self) -> int | None:
        """The running daemon's process id as this process sees it; None where none runs."""
        holder = self.holder()
        for status in Path("/proc").glob("[0-9]*/status") if holder else ():
            ids = _namespace_ids(status)
            if holder and ids[-1:] == [holder["pid"]] and _start_ticks(status.parent) == holder["start_ticks"]:
                return ids[0]
        return None

    def clear(self) -> None:
        """End the daemon, by its own process id, then cancel in Slurm what it had deployed; nothing else of the user's.

        Raises RuntimeError when the daemon does not end within two minutes.
        """
        deadline = time.monotonic() + 120.0
        pid = self.host_pid()
        if pid is not None:
            os.kill(pid, signal.SIGTERM)
        while self.host_pid() is not None:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.user}'s daemon at {self.base} did not end within two minutes of SIGTERM")
            time.sleep(0.05)
        natives = self._own_natives()
        for start in range(0, len(natives), 500):
            argv = ["scancel", *natives[start : start + 500]]
            self.cluster.run(LOGIN_NODE, argv, user=self.user, check=False)

    def own_names(self) -> set[str]:
        """The names of all directories of jobs and of arrays below this desk."""
        places = [self.host_path(f"{self.base}/jobs/{kind}") for kind in ("jobs", "arrays")]
        return {path.name for place in places if place.is_dir() for path in place.iterdir()}

    def _own_natives(self) -> list[str]:
        """Ids in Slurm of jobs, and of tasks in ranges, whose directories are below this desk: the name of a job there
        is its token, that of an array a chunk's."""
        own = self.own_names()
        argv = ["squeue", "--me", "--noheader", "--format=%i %j"]
        listed = self.cluster.run(LOGIN_NODE, argv, user=self.user).stdout.splitlines()
        pairs = [line.split(maxsplit=1) for line in listed]
        return [native for native, name in pairs if name.rpartition("-")[0] in own]


def _namespace_ids(status: Path) -> list[int]:
    """The process's ids, the host's first (proc(5), NSpid); none where it has ended."""
    try:
        lines = status.read_text(encoding="utf-8", errors="replace").splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return []
    return next(([int(word) for word in line.split()[1:]] for line in lines if line.startswith("NSpid:")), [])


def _start_ticks(process: Path) -> int | None:
    try:
        return int((process / "stat").read_text().rpartition(")")[2].split()[19])
    except (FileNotFoundError, ProcessLookupError):
        return None
