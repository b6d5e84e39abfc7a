"""Runs a batch script as sbatch would: its options by Slurm's own list, their variables, one node after the other.

It shares nothing with the converter: options are read by Python's getopt, with the names that sbatch itself told.
"""

from __future__ import annotations

import getopt
import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
RUNSCRIPT = "/.singularity.d/runscript"
"""What an image starts; here a stub, by its name in the directory of the job."""
TOOLS = [
    "awk", "basename", "bash", "cat", "cut", "date", "dirname", "env", "expr", "false", "grep", "head", "id", "ls",
    "mkdir", "mktemp", "paste", "printf", "pwd", "readlink", "realpath", "sed", "seq", "sort", "tail", "tee",
    "tr", "true", "uname", "uniq", "wc", "which", "xargs",
]  # fmt: skip
"""What scripts find of this machine; nothing of it takes anything away."""
PROGRAMS = [
    "cp",
    "curl",
    "git",
    "make",
    "mv",
    "rm",
    "rsync",
    "scp",
    "sleep",
    "ssh",
    "wget",
    "accelerate",
    "apptainer",
    "conda",
    "deepspeed",
    "docker",
    "hostname",
    "ml",
    "module",
    "mpiexec",
    "mpirun",
    "nvidia-smi",
    "pip",
    "python",
    "python3",
    "sbatch",
    "scancel",
    "scontrol",
    "singularity",
    "squeue",
    "srun",
    "torchrun",
]
LETTERS = {
    "A": "account", "a": "array", "b": "begin", "D": "chdir", "M": "clusters", "C": "constraint", "S": "core-spec",
    "c": "cpus-per-task", "d": "dependency", "m": "distribution", "e": "error", "x": "exclude", "B": "extra-node-info",
    "G": "gpus", "h": "help", "H": "hold", "i": "input", "J": "job-name", "L": "licenses", "k": "no-kill",
    "F": "nodefile",
    "w": "nodelist", "N": "nodes", "n": "ntasks", "o": "output", "O": "overcommit", "s": "oversubscribe",
    "p": "partition",
    "q": "qos", "Q": "quiet", "t": "time", "v": "verbose", "V": "version", "W": "wait",
}  # fmt: skip
_LONGEST_S = 30
PLUGINS = (
    "container-image=", "container-mounts=", "container-workdir=", "container-name=", "container-save=",
    "container-env=", "container-mount-home", "no-container-mount-home", "container-remap-root",
    "no-container-remap-root", "container-writable", "container-readonly", "container-entrypoint",
    "no-container-entrypoint", "image=", "module=", "volume=", "environment=", "uenv=", "view=", "beeond=",
)  # fmt: skip
"""Options of plugins that scripts have; what they would do is not done here."""
VARIABLES = {
    "NTASKS": "ntasks", "NTASKS_PER_NODE": "ntasks-per-node", "NTASKS_PER_GPU": "ntasks-per-gpu",
    "NTASKS_PER_CORE": "ntasks-per-core", "NTASKS_PER_SOCKET": "ntasks-per-socket", "CPUS_PER_TASK": "cpus-per-task",
    "CPUS_PER_GPU": "cpus-per-gpu", "GPUS": "gpus", "GPUS_PER_NODE": "gpus-per-node", "GPUS_PER_TASK": "gpus-per-task",
    "GPUS_PER_SOCKET": "gpus-per-socket", "TRES_PER_TASK": "tres-per-task", "DISTRIBUTION": "distribution",
    "HINT": "hint", "GPU_BIND": "gpu-bind", "GPU_FREQ": "gpu-freq", "MEM_BIND": "mem-bind", "PROFILE": "profile",
    "THREADS_PER_CORE": "threads-per-core", "JOB_PARTITION": "partition", "JOB_ACCOUNT": "account", "JOB_QOS": "qos",
    "JOB_RESERVATION": "reservation", "JOB_DEPENDENCY": "dependency", "OVERCOMMIT": "overcommit",
}  # fmt: skip
"""SLURM_… of sbatch(1), OUTPUT ENVIRONMENT VARIABLES, and the option that each comes from."""


def option_names() -> dict[str, str]:
    """Long name → "" (no argument), "=" (needed) or "?" (may have one), as sbatch 26.05 told."""
    found: dict[str, str] = {}
    for line in (HERE / "sbatch-26.05.txt").read_text().split():
        name = line.removeprefix("--").removesuffix("=")
        kind = "=" if line.endswith("=") else ""
        found[name] = "?" if found.get(name, kind) != kind else kind
    found["power"] = "="  # told by --help alone
    return found


def options_of(script: str, given: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    """What counts: command line, environment, script, in this order."""
    words: list[str] = []
    for line in script.splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            break
        if line.startswith("#SBATCH"):
            words += shlex.split(line.removeprefix("#SBATCH"), comments=True)
    kinds = option_names() | {name.removesuffix("="): "=" if name.endswith("=") else "" for name in PLUGINS}
    found = _read(words, kinds)
    variables = json.loads((HERE / "variables.json").read_text())
    for variable, name in variables.items():
        value = environ.get(variable)
        if value is not None and (value or kinds[name] == ""):
            found[name] = value
    return found | _read(list(given), kinds)


def _read(words: list[str], kinds: Mapping[str, str]) -> dict[str, str]:
    long = [f"{name}{'=' if kind == '=' else ''}" for name, kind in kinds.items()]
    long += [f"{name}=?" for name, kind in kinds.items() if kind == "?"]
    letters = "".join(f"{letter}{':' if kinds[name] == '=' else ''}" for letter, name in LETTERS.items())
    fixed = []
    for word in words:  # getopt before 3.14 knows no optional arguments
        name, equals, value = word.removeprefix("--").partition("=")
        if word.startswith("--") and equals and kinds.get(name) == "?":
            fixed += [f"--{name}"]
            _OPTIONAL[name] = value
            continue
        fixed.append(word)
    pairs, rest = getopt.gnu_getopt(fixed, letters, [one for one in long if not one.endswith("=?")])
    assert not rest, f"words that are not options: {rest}"
    found: dict[str, str] = {}
    for option, value in pairs:
        name = option[2:] if option.startswith("--") else LETTERS[option[1:]]
        name = {"tasks-per-node": "ntasks-per-node"}.get(name, name)
        found[name] = _OPTIONAL.pop(name, value)
    return found


_OPTIONAL: dict[str, str] = {}


@dataclass(frozen=True, slots=True)
class Ran:
    """What the stubs recorded, in order, and the script's exit status."""

    records: tuple[dict[str, object], ...]
    status: int
    said: str


def run_script(
    place: Path, script: str, name: str, given: Sequence[str] = (), environ: Mapping[str, str] | None = None,
    arguments: Sequence[str] = (),
) -> Ran:  # fmt: skip
    """Run `script` in `place`, a directory of its own that stays empty but for what a job finds. A program that bash
    does not find is a stub, too."""
    work, programs = place / "work", place / "bin"
    _furnish(work, programs)
    stub = f"{sys.executable} -I -S {HERE / 'stub.py'}"
    (place / "unknown.sh").write_text(f'command_not_found_handle() {{ {stub} "$@"; }}\n')
    spooled, records = place / "slurm_script", place / "records"
    head, line_break, rest = script.partition("\n")  # login files of this machine would replace PATH
    head = re.sub(r"^#! ?(/usr)?/bin/sh\b", "#!/bin/bash", re.sub(r" (-l|--login)$", "", head))  # sh reads no BASH_ENV
    rest = rest.replace("bash -l ", "bash ")
    spooled.write_text(head + line_break + rest.replace(RUNSCRIPT, RUNSCRIPT[1:]))
    spooled.chmod(0o700)
    records.write_text("")
    options = options_of(script, given, environ or {})
    env = {
        "PATH": str(programs),
        "HOME": str(place / "home"),
        "USER": "alice",
        "STUB_RECORDS": str(records),
        "BASH_ENV": str(place / "unknown.sh"),
        **slurm_environment(options, name, work),
    }
    done = subprocess.run(
        [str(spooled), *arguments], cwd=work, env=env, capture_output=True, text=True, timeout=_LONGEST_S, check=False
    )
    lines = [json.loads(line) for line in records.read_text().splitlines()]
    return Ran(tuple(lines), done.returncode, done.stderr)


def _furnish(work: Path, programs: Path) -> None:
    """A directory with a model, a virtual environment and the stubs."""
    for directory in (
        work,
        programs,
        work / "venv" / "bin",
        work / "data",
        work.parent / "home/miniconda3/etc/profile.d",
    ):
        directory.mkdir(parents=True, exist_ok=True)
    (work / "data" / "a.npz").write_text("")
    (work / "data" / "b.npz").write_text("")
    (work / "train.py").write_text("")
    (work / RUNSCRIPT[1:]).parent.mkdir(exist_ok=True)
    (work / RUNSCRIPT[1:]).write_text(f'#!/bin/sh\nexec {sys.executable} -I -S {HERE / "stub.py"} runscript "$@"\n')
    (work / RUNSCRIPT[1:]).chmod(0o755)
    (work / "venv" / "bin" / "activate").write_text('export VIRTUAL_ENV=venv PATH="venv/bin:$PATH"\n')
    (work.parent / "home/miniconda3/etc/profile.d/conda.sh").write_text("export CONDA_EXE=conda\n")
    (programs / "activate").write_text('export CONDA_PREFIX="$1"\n')
    (programs / "real-python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    for program in PROGRAMS:
        text = f'#!/bin/sh\nexec {sys.executable} -I -S {HERE / "stub.py"} {program} "$@"\n'
        (programs / program).write_text(text)
    (programs / "sh").write_text(f'#!/bin/sh\nexec {shutil.which("bash")} "$@"\n')  # another sh reads no BASH_ENV
    for file in programs.iterdir():
        file.chmod(0o755)
    for tool in TOOLS:
        found = shutil.which(tool)
        assert found is not None, f"this machine has no {tool}"
        (programs / tool).symlink_to(found)


def slurm_environment(options: Mapping[str, str], name: str, work: Path) -> dict[str, str]:
    """The variables of the batch script. Slurm gives the least number of nodes that was asked for."""
    nodes = int(options.get("nodes", "0").split("-")[0].split(",")[0])
    per_node = int(options.get("ntasks-per-node", 0))
    ntasks = int(options.get("ntasks", 0))
    count = {name: int(options[name].split(":")[-1]) for name in options if name.startswith("gpus")}
    if not ntasks and "gpus" in count and count.get("gpus-per-task"):
        ntasks = count["gpus"] // count["gpus-per-task"]
    if not nodes and "gpus" in count and count.get("gpus-per-node"):
        nodes = -(-count["gpus"] // count["gpus-per-node"])
    nodes = nodes or (-(-ntasks // per_node) if per_node and ntasks else 1)
    nodes = min(nodes, ntasks) if ntasks else nodes
    found = {f"SLURM_{variable}": options[option] for variable, option in VARIABLES.items() if option in options}
    gpus = _gpus(options, nodes, per_node or -(-ntasks // nodes) or 1)
    if per_node or "ntasks-per-gpu" in options or ("gpus" in options and "gpus-per-task" in options):
        found["SLURM_NTASKS"] = str(ntasks or nodes * (per_node or gpus * int(options["ntasks-per-gpu"])))
    if "SLURM_NTASKS" in found:
        found["SLURM_NPROCS"] = found["SLURM_NTASKS"]
    for which in ("mem", "mem-per-cpu", "mem-per-gpu"):
        if which in options:
            variable = {"mem": "SLURM_MEM_PER_NODE"}.get(which, f"SLURM_{which.upper().replace('-', '_')}")
            found[variable] = str(_mebibytes(options[which]))
    if gpus:
        found["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, range(gpus)))
        found["SLURM_GPUS_ON_NODE"] = str(gpus)
    if "array" in options:
        indexes = _indexes(options["array"])
        found |= {
            "SLURM_ARRAY_TASK_ID": str(indexes[0]),
            "SLURM_ARRAY_TASK_COUNT": str(len(indexes)),
            "SLURM_ARRAY_TASK_MIN": str(min(indexes)),
            "SLURM_ARRAY_TASK_MAX": str(max(indexes)),
        }
    for item in options.get("export", "").split(","):
        variable, equals, value = item.partition("=")
        found |= {variable: value} if equals else {}
    return found | {
        "SLURM_JOB_ID": "4242",
        "SLURM_JOBID": "4242",
        "SLURM_JOB_NAME": options.get("job-name", name),
        "SLURM_JOB_NUM_NODES": str(nodes),
        "SLURM_NNODES": str(nodes),
        "SLURM_JOB_NODELIST": f"node[1-{nodes}]" if nodes > 1 else "node1",
        "SLURM_NODELIST": f"node[1-{nodes}]" if nodes > 1 else "node1",
        "SLURM_SUBMIT_DIR": str(work),
        "SLURM_PROCID": "0",
        "SLURM_NODEID": "0",
        "SLURM_LOCALID": "0",
        "SLURMD_NODENAME": "node1",
        "SLURM_CPUS_ON_NODE": str(_cpus(options, nodes, per_node or -(-ntasks // nodes) or 1, gpus)),
    }


def _cpus(options: Mapping[str, str], nodes: int, tasks: int, gpus: int) -> int:
    if "ntasks-per-gpu" in options:
        tasks = gpus * int(options["ntasks-per-gpu"])
    if "cpus-per-gpu" in options and "cpus-per-task" not in options:
        return max(tasks, gpus * int(options["cpus-per-gpu"]))
    each = options.get("cpus-per-task") or dict(_tres(options)).get("cpu") or 1
    return tasks * int(each)


def _gpus(options: Mapping[str, str], nodes: int, tasks: int) -> int:
    """Of the first node."""
    for item in options.get("gres", "").split(","):
        if item.split(":")[0] == "gpu":
            return int(item.split(":")[-1]) if item.split(":")[-1].isdigit() else 1
    count = {name: int(options[name].split(":")[-1]) for name in options if name.startswith("gpus")}
    if "gpus-per-node" in count:
        return count["gpus-per-node"]
    if "gpus-per-socket" in count:
        return count["gpus-per-socket"] * int(options.get("sockets-per-node", 1))
    if "gpus" in count:
        return -(-count["gpus"] // nodes)
    return count.get("gpus-per-task", int(dict(_tres(options)).get("gres/gpu", 0))) * tasks


def _tres(options: Mapping[str, str]) -> list[tuple[str, str]]:
    pairs = (item.replace("=", ":").rpartition(":") for item in options.get("tres-per-task", "").split(",") if item)
    return [(name, count) for name, _, count in pairs]


def _mebibytes(text: str) -> int:
    letters = text.strip().upper().removesuffix("B")
    factor = {"K": 1 / 1024, "M": 1, "G": 1024, "T": 1024**2}.get(letters[-1], 0)
    return int(int(letters[:-1]) * factor) if factor else int(letters)


def _indexes(text: str) -> list[int]:
    found: list[int] = []
    for item in text.partition("%")[0].split(","):
        span, _, step = item.partition(":")
        first, _, last = span.partition("-")
        found += range(int(first), int(last or first) + 1, int(step or 1))
    return found
