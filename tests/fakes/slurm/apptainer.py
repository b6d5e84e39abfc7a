"""apptainer of the fake cluster: the command runs on this host."""

from __future__ import annotations

import csv
import os
import shlex
import subprocess
import sys
from pathlib import Path

from tests.fakes.slurm import state

WITH_VALUE = {"--workdir", "--env-file", "--network", "--mount", "--pwd", "--hostname"}
PATHS = ("_DIR", "_hostfile", "_agent", "_HOST_FILE", "_EXEC")
"""Ends of the names of variables that hold a path of the container's."""


def apptainer() -> None:
    """Log the argv, then run the command on this host, the container's paths turned into the host's, in a network
    namespace of its own where it is to have none."""
    # Learners get no SLURM_CONF; the scratch directory lies beside the state.
    workdir = Path(sys.argv[sys.argv.index("--workdir") + 1])
    state.STATE = next(parent / "slurm" for parent in workdir.parents if (parent / "slurm" / "site.json").exists())
    state.begin("apptainer")
    arguments = sys.argv[1:]
    mounts, env_file = [], ""
    while arguments:
        word = arguments.pop(0)
        if word in WITH_VALUE:
            value = arguments.pop(0)
            env_file = value if word == "--env-file" else env_file
            if word == "--mount":
                fields = dict(part.partition("=")[::2] for part in next(csv.reader([value])))
                mounts.append((fields["destination"], fields["source"]))
        elif not word.startswith("-") and word != "exec":
            break
    env = shell_environment(env_file)
    for name, value in env.items():
        if name.endswith(PATHS):
            for destination, source in sorted(mounts, key=lambda m: -len(m[0])):
                if value == destination or value.startswith(destination + "/"):
                    env[name] = source + value[len(destination) :]
                    break
    if "--net" in sys.argv:
        from ffdl_batch.controller.loopback_namespace import enter

        enter()
    os.execvpe(arguments[0], arguments, {"PATH": os.environ["PATH"], **env})


def shell_environment(path: str) -> dict[str, str]:
    """The variables that the file sets, by a shell's reading."""
    script = f"set -a; . {shlex.quote(path)}; env -0"
    text = subprocess.run(["env", "-i", "bash", "-c", script], capture_output=True, check=True).stdout
    pairs = (item.decode("utf-8", "surrogateescape").partition("=") for item in text.split(b"\0") if item)
    return {name: value for name, _, value in pairs if name not in ("PWD", "SHLVL", "_")}
