#!/usr/bin/env python3
"""The program behind every stubbed command: it records how it was called, and starts what a launcher would start.

Standard library alone, run as ``python3 -I -S``. Records go to the file $STUB_RECORDS, one JSON value a line.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

SRUN_FLAGS = {
    "contiguous",
    "exact",
    "exclusive",
    "external",
    "kill-on-bad-exit",
    "label",
    "no-allocate",
    "overcommit",
    "overlap",
    "oversubscribe",
    "preserve-env",
    "pty",
    "quiet",
    "unbuffered",
    "verbose",
    "no-container-mount-home",
    "container-mount-home",
    "container-writable",
    "container-readonly",
    "container-remap-root",
    "no-container-remap-root",
    "container-entrypoint",
    "no-container-entrypoint",
    "no-kill",
    "multi-prog",
}
SRUN_LETTER_FLAGS = set("lKuOQsvkEHXZ")
CONTAINER_FLAGS = {
    "--nv",
    "--rocm",
    "-c",
    "--contain",
    "-C",
    "--containall",
    "-e",
    "--cleanenv",
    "--no-home",
    "--writable-tmpfs",
}
LIKEWISE = {"--nv", "--rocm", "-c", "--contain", "-C", "--containall", "--no-home"}
"""Options that a learner's container has anyway."""


def main() -> int:
    name, argv = Path(sys.argv[1]).name, sys.argv[2:]
    record(name, argv)
    if name == "scontrol":
        return scontrol(argv)
    if name == "hostname":
        print("node1")
    if name == "conda" and argv[:1] == ["shell.bash"]:
        print('conda() { command conda "$@"; }')
    if name == "srun":
        return srun(argv)
    if name in ("apptainer", "singularity"):
        return contain(argv)
    return 0


def record(name: str, argv: list[str]) -> None:
    line = json.dumps({"name": name, "argv": argv, "env": dict(os.environ)})
    with Path(os.environ["STUB_RECORDS"]).open("ab", buffering=0) as file:  # whole, also where others write
        file.write(f"{line}\n".encode())


def scontrol(argv: list[str]) -> int:
    if argv[:1] == ["show"] and argv[1:2] in (["hostnames"], ["hostname"]):
        count = int(os.environ["SLURM_JOB_NUM_NODES"])
        print("\n".join(f"node{number}" for number in range(1, count + 1)))
    return 0


def srun(argv: list[str]) -> int:
    """As srun deals tasks: --ntasks, else --nodes times tasks of each, else what the job has."""
    asked, rest = {}, list(argv)
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        if word == "--":
            break
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            asked[name] = value if equals or name in SRUN_FLAGS else rest.pop(0)
        elif word[1] in SRUN_LETTER_FLAGS:
            asked[word[1]] = word[2:]
        else:
            asked[{"n": "ntasks", "N": "nodes"}.get(word[1], word[1])] = word[2:] or rest.pop(0)
    env = dict(os.environ)
    nodes = int(asked.get("nodes", env["SLURM_JOB_NUM_NODES"]).split("-")[0])
    default = nodes if "nodes" in asked or "SLURM_NTASKS" not in env else int(env["SLURM_NTASKS"])
    tasks = int(asked.get("ntasks", int(asked["ntasks-per-node"]) * nodes if "ntasks-per-node" in asked else default))
    nodes = min(nodes, tasks)
    images = {name: value for name, value in asked.items() if name.startswith("container-")}
    if images:
        image = images.pop("container-image").replace("#", "/")
        env["STUB_CONTAINER"] = json.dumps(
            [image if "://" in image or image[0] in "./" else f"docker://{image}", sorted(images.items())]
        )
    for task in range(tasks):
        node = task * nodes // tasks
        first = -(-node * tasks // nodes)
        here = {
            "SLURM_PROCID": str(task),
            "SLURM_NODEID": str(node),
            "SLURM_LOCALID": str(task - first),
            "SLURM_NTASKS": str(tasks),
            "SLURM_NPROCS": str(tasks),
        }
        code = start(rest, {**env, **here})
        if code:
            return code
    return 0


def contain(argv: list[str]) -> int:
    verb, rest, options = argv[0], argv[1:], []
    given: dict[str, str] = {}
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        if word == "--env":
            name, _, value = rest.pop(0).partition("=")
            given[name] = value
        elif word not in CONTAINER_FLAGS and "=" not in word:
            options.append([word, rest.pop(0)])
        elif word not in LIKEWISE:
            options.append([word])
    image = rest.pop(0)
    if verb not in ("exec", "run"):
        return 0
    if verb == "run":
        rest.insert(0, f"{os.environ['SLURM_SUBMIT_DIR']}/.singularity.d/runscript")
    env = {**os.environ, **given, "STUB_CONTAINER": json.dumps([image, options])}
    return start(rest, env)


def start(command: list[str], env: dict[str, str]) -> int:
    """As bash does: a program that is not found is a stub, too, and a path that does not exist is an error."""
    name = command[0]
    if "/" in name and not Path(name).exists():
        return 127
    if "/" not in name and not any(Path(place, name).exists() for place in env["PATH"].split(":")):
        command = [sys.executable, "-I", "-S", str(Path(__file__).resolve()), *command]
    return subprocess.call(command, env=env)


if __name__ == "__main__":
    sys.exit(main())
