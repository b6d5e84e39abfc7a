"""Finds how many GPUs of a node a script uses if no option of sbatch counts them, as in a job with ``--exclusive``."""

from __future__ import annotations

import re

from ffdl_slurm.convert.directives import Options

_SHARED = frozenset({"user", "mcs", "topo", "oversubscribe"})
"""Values of --exclusive with which a job gets only what it asks for (sbatch(1))."""
_VALUE = r"""["']?(?:(?P<count>\d{1,3})\b(?![.:,\w-])|\$\{?(?P<name>[A-Za-z_]\w*)(?::?-(?P<default>\d{1,3}))?\}?)"""
_OPTIONS = re.compile(
    rf"--(?:nproc[-_]per[-_]node|gpus-per-node|num[-_]gpus(?:-per-node)?)[= ]{_VALUE}"
    r"|--gres[= ]gpu(?::[A-Za-z][\w.-]*)?:(?P<gres>\d{1,3})\b",
    re.ASCII,
)
_SETS = re.compile(rf"\b(?P<variable>[A-Za-z_]\w*)={_VALUE}", re.ASCII)
_VISIBLE = re.compile(r"CUDA_VISIBLE_DEVICES=[\"']?(\d+(?:,\d+)*)\b", re.ASCII)
_PER_NODE = re.compile(r"(?:N|NUM|N_|NUM_)?(?:GPUS?|PROCS?)_PER_(?:NODE|HOST)", re.ASCII | re.IGNORECASE)
_OF_JOB = re.compile(r"(?:N|NUM|N_|NUM_)?GPUS?", re.ASCII | re.IGNORECASE)
_USES = re.compile(
    r"nvidia-smi|\bnvcc\b|\bcuda\b|\bnccl|CUDA_|NCCL_|torchrun|torch\.distributed|deepspeed|accelerate\s+launch|horovodrun"
    r"|--nv\b|--rocm\b|--gpus?\b|\bgpus?\b",
    re.ASCII | re.IGNORECASE,
)


def takes_whole_nodes(options: Options) -> bool:
    """Return whether sbatch gives the job all GPUs of its nodes without being asked for a number."""
    one = options.get("exclusive")
    return one is not None and one.value.strip().lower() not in _SHARED


def count_gpus(script: str, nodes: int) -> int | None:
    """Return the GPUs of each node by the commands of a script; None if they name none, or several numbers."""
    text = _commands(script)
    known = {match["variable"]: _number(match, {}) for match in _SETS.finditer(text)}
    devices = {number for match in _VISIBLE.finditer(text) for number in match[1].split(",")}
    named = {count for name, count in known.items() if _PER_NODE.fullmatch(name)}
    of_job = {count for name, count in known.items() if nodes == 1 and _OF_JOB.fullmatch(name)}
    for counts in ({_number(match, known) for match in _OPTIONS.finditer(text)}, named, of_job, {len(devices)}):
        found = {count for count in counts if count}
        if found:
            return found.pop() if len(found) == 1 else None
    return None


def uses_gpus(script: str) -> bool:
    """Return whether a command of the script needs or names GPUs."""
    return bool(_USES.search(_commands(script)))


def _commands(script: str) -> str:
    return "\n".join(line for line in script.split("\n") if not line.lstrip().startswith("#"))


def _number(match: re.Match[str], known: dict[str, int | None]) -> int | None:
    groups = match.groupdict()
    text = groups.get("gres") or groups.get("count") or groups.get("default")
    return int(text) if text else known.get(groups.get("name") or "")
