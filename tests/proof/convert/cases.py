"""The corpus, and what some of its scripts are given from outside."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
CORPUS = HERE / "corpus"


@dataclass(frozen=True, slots=True)
class Case:
    """One script, the options of the command that submits it, the variables of its environment, its arguments."""

    name: str
    text: str
    options: tuple[str, ...] = ()
    environ: Mapping[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()


_OPTIONS = {
    "from-outside": ("-N2", "--partition=command", "-t", "5", "--export=ALL,DEPTH=2"),
    "help-options": ("-h", "-V"),
}
_ARGUMENTS = {"arguments": ("/data/a b", "0.2", "$x", "it's")}
_SPECIAL = {"SBATCH_EXCLUSIVE": "user",
    "SBATCH_ARRAY_INX": "1-2", "SBATCH_TIMELIMIT": "7", "SBATCH_GRES": "gpu:1", "SBATCH_GPUS": "1",
    "SBATCH_EXPORT": "ALL",
    "SBATCH_GPUS_PER_NODE": "1", "SBATCH_GPUS_PER_SOCKET": "1", "SBATCH_GPUS_PER_TASK": "1", "SBATCH_CPUS_PER_GPU": "2",
    "SBATCH_MEM_PER_NODE": "4G", "SBATCH_SIGNAL": "USR1@30", "SBATCH_TRES_PER_TASK": "cpu=2", "SBATCH_REQ_SWITCH": "1",
    "SBATCH_WAIT4SWITCH": "10", "SBATCH_SPREAD_JOB": "1", "SBATCH_USE_MIN_NODES": "yes", "SBATCH_OPEN_MODE": "append",
}  # fmt: skip
_CLASHING = {"SBATCH_NO_REQUEUE", "SBATCH_MEM_PER_CPU", "SBATCH_MEM_PER_GPU"}
"""They contradict others of these variables; nobody sets both."""


def variables() -> dict[str, str]:
    """Input variable of sbatch(1) → the option that it stands for."""
    found: dict[str, str] = json.loads((HERE / "variables.json").read_text())
    return found


def cases_in(directory: Path) -> list[Case]:
    """Scripts of anybody: all files below that begin as one and name sbatch."""
    found = []
    for path in sorted(path for path in directory.rglob("*") if path.is_file()):
        text = path.read_bytes().decode("utf-8", "replace")
        if text.startswith("#!") and "#SBATCH" in text:
            found.append(Case(str(path.relative_to(directory)), text))
    return found


def read_cases() -> list[Case]:
    """All of them, by name."""
    cases = [
        Case(
            path.stem,
            path.read_text(),
            _OPTIONS.get(path.stem, ()),
            _all_variables() if path.stem == "all-variables" else _environ(path.stem),
            _ARGUMENTS.get(path.stem, ()),
        )
        for path in sorted(CORPUS.glob("*.sbatch"))
    ]
    assert len(cases) >= 40, "the corpus is not here"
    return cases


def _environ(name: str) -> dict[str, str]:
    return {"SBATCH_TIMELIMIT": "9", "SBATCH_QOS": "env", "SBATCH_MEM_PER_CPU": "1G"} if name == "from-outside" else {}


def _all_variables() -> dict[str, str]:
    return {name: _SPECIAL.get(name, "1") for name in variables() if name not in _CLASHING}
