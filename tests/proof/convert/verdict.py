"""Whether what a converted script starts is what the original starts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from ffdl_batch.domain.conversion import Conversion, Fate, Origin
from tests.proof.convert.running import Ran

QUERIES = frozenset({"scontrol", "hostname", "squeue"})
"""They change nothing; what they answer shows in what follows."""
LAUNCHERS = frozenset({"srun", "apptainer", "singularity"})
"""The platform launches in their place, where the script was understood; what they start is compared."""
PREPARING = frozenset({"module", "ml", "conda", "nvidia-smi"})
"""Of several learners each prepares itself, where one shell did that for all."""
_OF_THE_SHELL = re.compile(
    r"_|SHLVL|PWD|OLDPWD|BASH_FUNC_.*|STUB_RECORDS|SLURM_STEP.*|SLURM_TRES_PER_TASK|SLURM_NTASKS|SLURM_NPROCS"
)
"""SLURM_NTASKS and SLURM_NPROCS are compared apart: srun gives both to what it starts, and sbatch not always."""
_OWN = re.compile(r"PLACE/slurm_script|(\./)?[^/]*\.sbatch")
"""The script itself, as an interpreter is given it: Slurm runs a copy in its spool directory."""
_ADDED = frozenset({"MASTER_ADDR"})
"""What learners have besides (the contract with user code)."""
_OF_DIRECTIVES = {
    "job-name": "SLURM_JOB_NAME",
    "mem": "SLURM_MEM_PER_NODE", "mem-per-cpu": "SLURM_MEM_PER_CPU", "mem-per-gpu": "SLURM_MEM_PER_GPU",
    "overcommit": "SLURM_OVERCOMMIT", "ntasks-per-core": "SLURM_NTASKS_PER_CORE",
    "ntasks-per-socket": "SLURM_NTASKS_PER_SOCKET", "dependency": "SLURM_JOB_DEPENDENCY",
}  # fmt: skip
"""Variables of directives that may be dropped, which the report says then."""
_OF_GPUS = {"CUDA_VISIBLE_DEVICES", "SLURM_GPUS_ON_NODE"}
"""A job with --exclusive has all GPUs of its nodes; their number is in its commands, or the report asks for it."""

Record = Mapping[str, object]


def compare(
    original: Ran, again: Ran, conversion: Conversion, repeated: Ran | None = None, *, beside: bool = False
) -> list[str]:
    """What differs, one line for each; none where both start the same. `repeated`: the original once more; where it
    is other than itself (a random number, a time, a process id), the rest of the text has to be the same. `beside`:
    programs run at the same time, so that their order says nothing: each needs a like of its own, anywhere."""
    understood = not conversion.wrapped
    before = _started(original.records, understood)
    after = _started(again.records, understood)
    once_more = _started(repeated.records, understood) if repeated is not None else before
    if len(once_more) != len(before):
        once_more = before
    if original.status != again.status:
        return [f"exit status {original.status} became {again.status}: {again.said.strip()[-300:]}"]
    if len(before) != len(after):
        return [f"{len(before)} programs became {len(after)}: {_names(before)} / {_names(after)}"]
    reported = _reported(conversion)
    if understood:
        after = [_in_image(one, conversion) for one in after]
        before, once_more = ([_without_reported(one, conversion) for one in records] for records in (before, once_more))
    if beside:
        once_more = _nearest(before, once_more)
        after = _matched(
            before, after, lambda old, new: not _differing(before[old], after[new], once_more[old], reported)
        )
    wrong: list[str] = []
    for one, other, third in zip(before, after, once_more, strict=True):
        wrong += _differing(one, other, third, reported)
    if understood:
        wrong += _preparations(original.records, again.records)
    return wrong


def _in_image(record: Record, conversion: Conversion) -> Record:
    """Return the record as of a learner, which runs in the manifest's image, also where a written script starts steps
    without one."""
    framework, env = conversion.manifest["framework"], record["env"]
    assert isinstance(framework, Mapping) and isinstance(env, Mapping)
    if not conversion.contained or "STUB_CONTAINER" in env:
        return record
    return {**record, "env": {**env, "STUB_CONTAINER": json.dumps([framework["version"], []])}}


def _without_reported(record: Record, conversion: Conversion) -> Record:
    """Return the record without options of its container that the report names as dropped or approximated. Commands
    outside of the container are in the learner's."""
    framework, env = conversion.manifest["framework"], record["env"]
    assert isinstance(framework, Mapping) and isinstance(env, Mapping)
    if not conversion.contained:
        return record
    image, options = json.loads(env.get("STUB_CONTAINER") or json.dumps([framework["version"], []]))
    reported = " ".join(f"{one.text} {one.reason}" for one in conversion.judged if one.fate is not Fate.MAPPED)
    left = [option for option in options if str(option[0]) not in reported]
    return {**record, "env": {**env, "STUB_CONTAINER": json.dumps([image, left])}}


def resources_differ(
    manifest: Mapping[str, object], environ: Mapping[str, str], *, exclusive: bool = False
) -> list[str]:
    """Return a line for each count of nodes, tasks of a node or GPUs in which a manifest differs from the script.
    `environ` are Slurm's variables of the script; with --exclusive it has GPUs that no option counts."""
    batch = manifest["batch"]
    env = batch.get("env", {}) if isinstance(batch, Mapping) else {}
    nodes = environ["SLURM_JOB_NUM_NODES"]
    pairs = {
        "nodes": (nodes, str(manifest["learners"])),
        "GPUs of a node": (environ.get("SLURM_GPUS_ON_NODE", "0"), str(manifest["gpus"])),
        "tasks": (environ.get("SLURM_NTASKS"), env.get("SLURM_NTASKS")),
    }
    if pairs["tasks"] == (None, "1"):  # of a script for one node whose srun starts one task
        del pairs["tasks"]
    if "SLURM_GPUS_ON_NODE" not in environ and exclusive:
        del pairs["GPUs of a node"]
    return [f"{what}: {old} became {new}" for what, (old, new) in pairs.items() if old != new]


def _differing(one: Record, other: Record, third: Record, reported: set[str]) -> list[str]:
    old, new, same = _argv(one), _argv(other), _argv(third)
    if len(old) != len(new) or not all(map(_alike, old, new, same if len(same) == len(old) else old)):
        return [f"argv: {' '.join(old)} became {' '.join(new)}"]
    return _environments(one, other, third, reported)


def _matched(before: Sequence[Record], after: Sequence[Record], fits: Callable[[int, int], bool]) -> list[Record]:
    """`after` in the order of `before`: as many as possible lie where they fit, the others where they are nearest."""
    likes = [[new for new in range(len(after)) if fits(old, new)] for old in range(len(before))]
    taken: dict[int, int] = {}

    def place(old: int, tried: set[int]) -> bool:
        for new in likes[old]:
            if new not in tried:
                tried.add(new)
                if new not in taken or place(taken[new], tried):
                    taken[new] = old
                    return True
        return False

    for old in range(len(before)):
        place(old, set())
    found = {old: after[new] for new, old in taken.items()}
    lonely = [old for old in range(len(before)) if old not in found]
    rest = _nearest([before[old] for old in lonely], [after[new] for new in range(len(after)) if new not in taken])
    found |= dict(zip(lonely, rest, strict=True))
    return [found[old] for old in range(len(before))]


def _nearest(before: Sequence[Record], others: Sequence[Record]) -> list[Record]:
    """`others` in the order of `before`, the closest pairs first."""
    pairs = sorted(
        (_distance(one, other), old, new) for old, one in enumerate(before) for new, other in enumerate(others)
    )
    found: dict[int, int] = {}
    for _, old, new in pairs:
        if old not in found and new not in found.values():
            found[old] = new
    return [others[found[old]] for old in range(len(before))]


def _distance(one: Record, other: Record) -> tuple[int, int]:
    """How many words, and how many variables, are others."""
    old, new = _argv(one), _argv(other)
    words = sum(a != b for a, b in zip(old, new, strict=False)) + abs(len(old) - len(new)) * 100
    mine, its = _plain(one["env"]), _plain(other["env"])
    names = (name for name in mine.keys() | its.keys() if not _OF_THE_SHELL.fullmatch(name))
    return words, sum(mine.get(name) != its.get(name) for name in names)


def _started(records: Sequence[Record], understood: bool) -> list[Record]:
    passed = QUERIES | (LAUNCHERS | PREPARING if understood else frozenset())
    return [record for record in records if record["name"] not in passed]


def _names(records: Iterable[Record]) -> str:
    return " ".join(str(record["name"]) for record in records)


def _preparations(before: Sequence[Record], after: Sequence[Record]) -> list[str]:
    def prepared(records: Sequence[Record]) -> list[object]:
        found = [(record["name"], record["argv"]) for record in records if record["name"] in PREPARING]
        return [one for index, one in enumerate(found) if one not in found[:index]]

    old, new = prepared(before), prepared(after)
    return [] if old == new else [f"preparation: {old} became {new}"]


def _reported(conversion: Conversion) -> set[str]:
    """Variables of directives that the report says are not kept."""
    found = set()
    for one in conversion.judged:
        if one.origin is not Origin.BODY and one.fate is not Fate.MAPPED:
            found |= {variable for name, variable in _OF_DIRECTIVES.items() if _names_option(one.text, name)}
            found |= _OF_GPUS if _names_option(one.text, "exclusive") else set()
    return found


def _names_option(text: str, name: str) -> bool:
    letters = {"overcommit": "-O"}
    variables = {"overcommit": "SBATCH_OVERCOMMIT", "mem": "SBATCH_MEM_PER_NODE", "mem-per-cpu": "SBATCH_MEM_PER_CPU"}
    return bool(
        re.match(rf"--{name}(=|\s|$)", text)
        or text == letters.get(name)
        or text.startswith(f"{variables.get(name, '-none-')}=")
    )


def _alike(old: str, new: str, repeated: str) -> bool:
    """The same, but for what the original itself has otherwise each time."""
    if old in (new, repeated):
        return old == new
    parts = [re.split(r"(\w+)", text) for text in (old, new, repeated)]
    return len({len(one) for one in parts}) == 1 and all(a == b or a != c for a, b, c in zip(*parts, strict=True))


def _environments(one: Record, other: Record, third: Record, reported: set[str]) -> list[str]:
    old, new, same = _plain(one["env"]), _plain(other["env"]), _plain(third["env"])
    wrong = []
    for name in sorted(old.keys() | new.keys()):
        if name in reported or _OF_THE_SHELL.fullmatch(name) or (name in _ADDED and name not in old):
            continue
        if name not in old or name not in new or not _alike(old[name], new[name], same.get(name, old[name])):
            wrong.append(f"environment of {one['name']}: {name}={old.get(name)!r} became {new.get(name)!r}")
    for name in ("SLURM_NTASKS", "SLURM_NPROCS"):
        if name in old and old[name] != new.get(name):
            wrong.append(f"environment of {one['name']}: {name}={old[name]!r} became {new.get(name)!r}")
    return wrong


def _argv(record: Record) -> list[str]:
    argv, env = record["argv"], record["env"]
    assert isinstance(argv, list) and isinstance(env, dict)
    words = [str(word).replace(_place(env), "PLACE") for word in argv]
    return [str(record["name"]), *("SCRIPT" if _OWN.fullmatch(word) else word for word in words)]


def _place(env: Mapping[str, object]) -> str:
    return str(env["STUB_RECORDS"]).rpartition("/")[0]


def _plain(env: object) -> dict[str, str]:
    """Paths of the two places are one."""
    assert isinstance(env, dict)
    return {name: str(value).replace(_place(env), "PLACE") for name, value in env.items()}
