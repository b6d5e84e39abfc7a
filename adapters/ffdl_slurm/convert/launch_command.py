"""Reads the command that a script launches, and its launcher: srun, Pyxis or Apptainer."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import field

from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_slurm.convert.container_programs import started_in
from ffdl_slurm.convert.shell_syntax import Word, expanded
from ffdl_slurm.convert.shell_variables import Known, defaults_in, literal, why_default
from ffdl_slurm.convert.task_layout import Layout

_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=", re.ASCII)
_PER_TASK = re.compile(
    r"\$\{?(SLURM_(PROCID|NODEID|LOCALID|TASK_PID|STEP\w*|JOB_GPUS|GPUS_ON_NODE|SUBMIT_HOST)|SLURMD_NODENAME|HOSTNAME|"
    r"HOST|RANDOM|SECONDS|EPOCH\w*|CUDA_VISIBLE_DEVICES|PWD|OLDPWD|TMPDIR|SLURM_TMPDIR|LINENO|BASHPID|\$|!|\?)"
)
_POSITIONAL = re.compile(r"\$(\{?[0-9@*]|#|\{#[0-9@*}])")
_SRUN_LETTERS = {
    "N": "nodes",
    "n": "ntasks",
    "c": "cpus-per-task",
    "G": "gpus",
    "m": "distribution",
    "u": "unbuffered",
    "K": "kill-on-bad-exit",
}
_SRUN_FLAGS = frozenset({"unbuffered", "exact", "overlap", "no-container-mount-home"})
_SRUN_MAY = frozenset({"kill-on-bad-exit"})
_BINDING = frozenset({"cpu-bind", "gpu-bind", "mem-bind", "accel-bind", "tres-bind", "hint", "distribution"})
_IMAGES = ("docker://", "oras://", "library://", "shub://", "https://")
_QUIET = frozenset({"-q", "--quiet", "-s", "--silent"})
_CONTAINED = frozenset({"-c", "-C", "--contain", "--containall", "--no-home"})


class NotUnderstood(Exception):
    """The script has to run whole; the text says why."""


@dataclass(frozen=True, slots=True)
class Launch:
    """The command that each learner runs, as it is in the script. `image` is "" if none is named. `alone`: it runs on
    the first node only. `approximations` say what differs from the script."""

    command: str
    image: str = ""
    alone: bool = False
    by: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    approximations: tuple[str, ...] = ()


def read_launch(text: str, words: Sequence[Word], layout: Layout, known: Known) -> Launch:
    """Read the line `text`; `known` are the values of the script's variables. Raises NotUnderstood."""
    rest = list(words)
    assigned = _take_assignments(rest)
    if rest and rest[0].value == "exec":
        rest.pop(0)
    if not rest:
        raise NotUnderstood("it sets variables and runs nothing")
    by, image = "", ""
    approximations: list[str] = []
    started = _name(rest[0]) == "srun"
    if started:
        by = "srun"
        image = _srun(rest, layout, known, approximations)
    if not rest:
        raise NotUnderstood("srun has no command")
    program = _name(rest[0])
    if program in ("apptainer", "singularity"):
        if image:
            raise NotUnderstood("it starts a container within a container")
        by = f"{by} {program}".strip()
        image = _container(rest, known, approximations)
    if _name(rest[0]) in ("srun", "sbatch", "salloc", "apptainer", "singularity", "docker", "podman", "enroot"):
        raise NotUnderstood(f"it starts {_name(rest[0])} within another launcher")
    for word in words if started else ():
        check_same(word.live, layout)
    if started and layout.ntasks != layout.nodes:
        raise NotUnderstood(
            f"srun starts {layout.ntasks} tasks on {layout.nodes} of its nodes, and a node has one learner"
        )
    if any(reads_arguments(word.live) for word in words):
        raise NotUnderstood("it reads the script's arguments")
    approximations += _of_defaults(text, layout, known)
    command = (assigned + text[rest[0].start :]).strip()
    if any(True for _ in started_in(command)):
        raise NotUnderstood(f"{_name(rest[0])} starts a container of its own")
    return Launch(command, image, layout.nodes > 1 and not started, by, {}, tuple(approximations))


def _of_defaults(text: str, layout: Layout, known: Known) -> list[str]:
    names = list(defaults_in(text, known))
    if layout.nodes > 1 and "MASTER_ADDR" in names:
        raise NotUnderstood("MASTER_ADDR has a default, and learners have one of their own")
    return [why_default(names)] if names else []


def _name(word: Word) -> str:
    return (word.value or "").rsplit("/", 1)[-1]


def _take_assignments(rest: list[Word]) -> str:
    taken = []
    while rest and _ASSIGNMENT.match(rest[0].raw):
        taken.append(rest.pop(0).raw)
    return "".join(f"{one} " for one in taken)


def reads_arguments(live: str) -> bool:
    """Return whether the shell expands an argument of the script; ``$(awk '{print $1}')`` has one of awk's."""
    return bool(_POSITIONAL.search(expanded(live)))


def check_same(live: str, layout: Layout) -> None:
    """Raise NotUnderstood for a text that each learner would expand to something else than the batch script does."""
    if layout.nodes == 1:
        return
    found = _PER_TASK.search(expanded(live))
    if found:
        raise NotUnderstood(f"${found[1]} is expanded once, on the first node, and differs between learners")
    if re.search(r"\$\((?!\()|`", live):
        raise NotUnderstood("a command is substituted once, on the first node")


def _option(rest: list[Word], known: Known) -> tuple[str, str | None, Word]:
    """Return the next word as an option: its name with dashes, and its value after ``=``."""
    word = rest.pop(0)
    text = literal(word, known)
    if text is None:
        raise NotUnderstood(f"{word.raw} is not known before it runs")
    if text.startswith("--"):
        name, equals, value = text.partition("=")
        return name, value if equals else None, word
    return text, None, word


def _needed(name: str, value: str | None, rest: list[Word], known: Known) -> str:
    if value is not None:
        return value
    if not rest:
        raise NotUnderstood(f"{name} has no value")
    found = literal(rest.pop(0), known)
    if found is None:
        raise NotUnderstood(f"the value of {name} is not known before it runs")
    return found


def _srun(rest: list[Word], layout: Layout, known: Known, approximations: list[str]) -> str:
    """Remove srun and its options; return the image that Pyxis would start, "" for none."""
    rest.pop(0)
    image = ""
    while rest and rest[0].raw.startswith("-"):
        name, value, word = _option(rest, known)
        if not name.startswith("--"):
            name, value = _letter(name)
        name = name.removeprefix("--")
        if not name:
            break
        if name in _SRUN_FLAGS or (name in _SRUN_MAY and value in (None, "", "0", "1")):
            continue
        value = _needed(f"--{name}", value, rest, known)
        if name == "container-image":
            image = pyxis_image(value)
        elif name in _BINDING:
            approximations.append(f"--{name}={value}: a learner has what its task gets, and binds nothing")
        else:
            _check_srun(name, value, layout, word)
    return image


def _letter(text: str) -> tuple[str, str | None]:
    name = _SRUN_LETTERS.get(text[1:2])
    if name is None:
        raise NotUnderstood(f"srun's {text} steers what no learner has")
    attached = text[2:]
    if name in _SRUN_FLAGS and attached:
        raise NotUnderstood(f"srun's {text} steers what no learner has")
    return f"--{name}", attached.removeprefix("=") or None


def _check_srun(name: str, value: str, layout: Layout, word: Word) -> None:
    """Raise NotUnderstood for an option that asks for something else than the job has."""
    same: dict[str, tuple[str, ...]] = {
        "nodes": (str(layout.nodes), f"{layout.nodes}-{layout.nodes}"),
        "ntasks": (str(layout.ntasks),),
        "ntasks-per-node": (str(layout.tasks_per_node),),
        "tasks-per-node": (str(layout.tasks_per_node),),
        "cpus-per-task": (layout.exported.get("SLURM_CPUS_PER_TASK", "1"),),
        "gpus-per-node": (str(layout.gpus),),
        "gpus-per-task": (str(layout.gpus),),
        "gpus": (str(layout.gpus * layout.nodes),),
        "gres": (f"gpu:{layout.gpus}", f"gpu:{layout.gpu_type}:{layout.gpus}"),
        "mpi": ("none",),
        "export": ("ALL",),
        "wait": (value,),
        "job-name": (value,),
    }
    if value not in same.get(name, ()):
        raise NotUnderstood(f"srun's {word.raw} asks for what is not the same for a learner")


def pyxis_image(value: str) -> str:
    """Return enroot's ``[USER@][REGISTRY#]IMAGE[:TAG]`` as Apptainer names it; the name of a SIF file stays. Raises
    NotUnderstood."""
    if value.endswith(".sif"):
        return value
    if value.startswith(("/", "./")):
        raise NotUnderstood("an enroot image (squashfs) is none that learners can run in")
    if value.startswith(_IMAGES):
        return value
    registry, sharp, name = value.partition("#")
    if "@" in registry:
        raise NotUnderstood("it pulls the image as a user of the registry")
    return f"docker://{registry}/{name}" if sharp else f"docker://{value}"


def _container(rest: list[Word], known: Known, approximations: list[str]) -> str:
    """Remove ``apptainer exec OPTIONS IMAGE``; return the image."""
    program = _name(rest.pop(0))
    while rest and rest[0].value in _QUIET:
        rest.pop(0)
    verb = rest.pop(0).value if rest else None
    if verb != "exec":
        raise NotUnderstood(f"{program} {verb or ''} starts what the image says, and not a command".replace("  ", " "))
    while rest and rest[0].raw.startswith("-"):
        name, _, word = _option(rest, known)
        if name in ("--nv", "--rocm"):
            approximations.append(f"{name}: learners with GPUs have their libraries")
        elif name in _CONTAINED:
            approximations.append(f"{name}: learners are contained")
        elif name not in _QUIET:
            raise NotUnderstood(f"{program}'s {word.raw} changes what the container has")
    if not rest:
        raise NotUnderstood(f"{program} names no image")
    word = rest.pop(0)
    image = literal(word, known)
    if image is None:
        raise NotUnderstood(f"the image {word.raw} is not known before it runs")
    if not image.startswith(_IMAGES) and not image.endswith(".sif") and not image.startswith("/"):
        raise NotUnderstood(f"the image {image} is not a file that learners can run in")
    if not image.startswith((*_IMAGES, "/")):
        approximations.append(f"{image} is looked for in the site's images_dirs: write its whole path")
    if not rest:
        raise NotUnderstood(f"{program} has no command")
    return image
