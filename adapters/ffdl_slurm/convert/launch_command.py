"""Reads a command that starts a program by srun, Pyxis or Apptainer: what of it a learner does not need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_slurm.convert.shell_tree import Command, Word
from ffdl_slurm.convert.shell_variables import Known, literal
from ffdl_slurm.convert.task_layout import Layout

CONTAINERS = frozenset({"apptainer", "singularity"})
_LETTERS = {
    "N": "nodes", "n": "ntasks", "c": "cpus-per-task", "G": "gpus", "m": "distribution", "u": "unbuffered",
    "K": "kill-on-bad-exit", "l": "label", "o": "output", "e": "error", "i": "input", "D": "chdir", "w": "nodelist",
    "x": "exclude", "J": "job-name", "A": "account", "p": "partition", "q": "qos", "v": "verbose", "Q": "quiet",
    "W": "wait", "O": "overcommit", "k": "no-kill", "s": "oversubscribe",
}  # fmt: skip
FLAGS = frozenset({
    "unbuffered", "exact", "overlap", "no-container-mount-home", "verbose", "quiet", "overcommit", "no-kill",
    "oversubscribe", "label", "kill-on-bad-exit", "exclusive", "no-container-remap-root", "container-remap-root",
    "container-mount-home", "container-writable", "container-readonly", "contiguous", "container-entrypoint",
    "no-container-entrypoint",
})  # fmt: skip
"""Options of srun that take no value, or one after ``=`` only."""
_BINDING = frozenset({
    "cpu-bind", "cpu_bind", "gpu-bind", "mem-bind", "accel-bind", "tres-bind", "hint", "distribution",
    "threads-per-core", "ntasks-per-core", "ntasks-per-socket", "cores-per-socket",
})  # fmt: skip
_ACCOUNTED = frozenset({
    "job-name", "wait", "account", "partition", "qos", "comment", "mem", "mem-per-cpu", "mem-per-gpu", "exclusive",
    "network", "jobid", "cpu-freq", "profile", "acctg-freq", "reservation", "constraint",
})  # fmt: skip
"""Options about a step's limits and accounting within its job."""
_EMULATED = frozenset({"label", "output", "error", "input", "chdir", "nodelist", "exclude", "export", "mpi", "ntasks"})
"""Options that only the srun of learners can give a meaning."""
_SQUASHED = (".sqsh", ".squashfs", ".sqfs", ".squash")
_IMAGES = ("docker://", "oras://", "library://", "shub://", "https://")
_QUIET = frozenset({"-q", "--quiet", "-s", "--silent", "-d", "--debug", "-v", "--verbose"})
_CONTAINED = frozenset({
    "-c", "-C", "--contain", "--containall", "--no-home", "-e", "--cleanenv", "--writable-tmpfs", "-u", "--userns",
    "--no-mount", "--compat", "-i", "--ipc", "-p", "--pid",
})  # fmt: skip
_MOUNTS = frozenset({"-B", "--bind", "--mount"})
RUNSCRIPT = "/.singularity.d/runscript"
"""What ``apptainer run`` starts in an image."""


class NotUnderstood(Exception):
    """The script has to run whole; the text says why."""


@dataclass(frozen=True, slots=True)
class Edit:
    """Replaces a part of the script, in bytes."""

    start: int
    end: int
    text: str = ""


@dataclass(slots=True)
class Step:
    """What a learner runs of the command. `stays`: its srun stays, and starts the tasks in the learner."""

    edits: list[Edit] = field(default_factory=list)
    image: str = ""
    by_srun: bool = False
    stays: bool = False
    approximations: list[str] = field(default_factory=list)


def read_step(command: Command, layout: Layout, known: Known) -> Step:
    """Read a command whose name is srun, apptainer or singularity. Raises NotUnderstood."""
    step = Step()
    rest = list(command.words)
    if command.name == "srun":
        step.by_srun = True
        _srun(rest, layout, known, step)
        if not rest:
            raise NotUnderstood("srun has no command")
        if step.stays:
            step.edits = [one for one in step.edits if one.end]
        else:
            step.edits = [Edit(command.words[0].start, rest[0].start)]
    if name_of(rest[0]) in CONTAINERS:
        if step.image:
            raise NotUnderstood("it starts a container within a container")
        _container(rest, known, step)
    if name_of(rest[0]) in ("srun", "sbatch", "salloc", "apptainer", "singularity", "docker", "podman", "enroot"):
        raise NotUnderstood(f"it starts {name_of(rest[0])} within another launcher")
    later = next((word for word in rest[1:-1] if name_of(word) in CONTAINERS), None)
    if later is not None:
        raise NotUnderstood(f"{name_of(rest[0])} starts {name_of(later)}")
    return step


def name_of(word: Word) -> str:
    """Return the base name of a program; "" if the shell expands it."""
    return (word.value or "").rsplit("/", 1)[-1]


def _srun(rest: list[Word], layout: Layout, known: Known, step: Step) -> None:
    """Remove srun and its options, and note what they mean for the step."""
    rest.pop(0)
    asked: dict[str, str | None] = {}
    while rest and rest[0].raw.startswith("-"):
        first = rest[0]
        if first.raw == "--":
            rest.pop(0)
            break
        for name, value in _option(rest, known):
            if name.startswith("container-") or name.startswith("no-container-"):
                end = rest[0].start if rest else 0
                step.edits.append(Edit(first.start, end))
                _pyxis(name, value, step)
            elif name in _BINDING:
                step.approximations.append(f"--{name}: a learner has what its task gets, and binds nothing")
            else:
                asked[name] = value
    _judge_options(asked, layout, step)
    if rest and rest[0].value is None:
        _check_program(rest[0], layout, known, step)


def _check_program(word: Word, layout: Layout, known: Known, step: Step) -> None:
    """Keep srun if the shell expands the word behind its options, which may be more options."""
    value = literal(word.raw, known)
    if value is None and layout.nodes == 1:
        step.stays = True
    elif value is None or value.startswith("-"):
        raise NotUnderstood(f"{word.raw} behind srun is not known before it runs")


def _option(rest: list[Word], known: Known) -> list[tuple[str, str | None]]:
    """Take an option of srun, and return its long name and value; several for letters that stand together."""
    word = rest.pop(0)
    if word.raw.startswith("--"):
        name, equals, raw = word.raw[2:].partition("=")
        if equals:
            return [(name, literal(raw, known))]
        return [(name, "" if name in FLAGS else _next(f"--{name}", rest, known))]
    found: list[tuple[str, str | None]] = []
    letters = word.raw[1:]
    while letters:
        letter, letters = letters[0], letters[1:]
        name = _LETTERS.get(letter, "")
        if not name:
            raise NotUnderstood(f"srun's {word.raw} steers what no learner has")
        if name in FLAGS:
            found.append((name, ""))
            letters = letters.lstrip("01") if name == "kill-on-bad-exit" else letters
            continue
        found.append((name, literal(letters.removeprefix("="), known) if letters else _next(word.raw, rest, known)))
        letters = ""
    return found


def _next(name: str, rest: list[Word], known: Known) -> str | None:
    if not rest:
        raise NotUnderstood(f"{name} has no value")
    return literal(rest.pop(0).raw, known)


def _pyxis(name: str, value: str | None, step: Step) -> None:
    if name == "container-image":
        if value is None:
            raise NotUnderstood("the image is not known before it runs")
        step.image = pyxis_image(value)
    elif name not in FLAGS and name not in ("container-mounts", "container-workdir", "container-name", "container-env"):
        raise NotUnderstood(f"srun's --{name} changes what the container has")


def _judge_options(asked: dict[str, str | None], layout: Layout, step: Step) -> None:
    """Decide whether the step is the whole job, so that each learner runs the command. Raises NotUnderstood."""
    several = layout.nodes > 1
    ntasks = _tasks(asked, layout)
    if several and ntasks != layout.ntasks:
        raise NotUnderstood(f"srun starts {_asked_text(asked)}, and the job has {layout.ntasks} tasks")
    step.stays = ntasks is None or ntasks != layout.nodes or ntasks != layout.ntasks
    for name, value in asked.items():
        if name in ("nodes", "ntasks", "ntasks-per-node", "tasks-per-node"):
            continue
        if name in _ACCOUNTED or (name in FLAGS and name != "label"):
            continue
        if name == "cpus-per-task":
            if value not in (None, layout.exported.get("SLURM_CPUS_PER_TASK", "1")):
                step.stays = True
            continue
        if name == "mpi" and value == "none":
            continue
        if name == "export" and value == "ALL":
            continue
        if name in _EMULATED:
            if several and name in ("output", "error", "input", "nodelist", "exclude", "mpi"):
                raise NotUnderstood(f"srun's --{name} is for tasks on several nodes")
            step.stays = True
            continue
        _check_gpus(name, value, layout, step)


def _tasks(asked: dict[str, str | None], layout: Layout) -> int | None:
    """Return the number of tasks of the step; None if it is not known before it runs."""
    nodes = asked.get("nodes", str(layout.nodes))
    several = layout.nodes > 1 or (nodes is not None and nodes.isdigit() and int(nodes) > 1)
    if several and nodes not in (str(layout.nodes), f"{layout.nodes}-{layout.nodes}"):
        raise NotUnderstood(f"srun's --nodes={nodes or 'of a variable'} asks for what is not the same for a learner")
    if "ntasks" in asked:
        value = asked["ntasks"]
        return int(value) if value is not None and value.isdigit() else None
    per_node = asked.get("ntasks-per-node", asked.get("tasks-per-node", ""))
    if per_node is None:
        return None
    if per_node:
        return int(per_node) * layout.nodes if per_node.isdigit() else None
    return layout.ntasks


def _asked_text(asked: dict[str, str | None]) -> str:
    count = asked.get("ntasks", "")
    return f"{count} tasks" if count else "a number of tasks that is not known before it runs"


def _check_gpus(name: str, value: str | None, layout: Layout, step: Step) -> None:
    same: dict[str, tuple[str, ...]] = {
        "gpus-per-node": (str(layout.gpus), f"{layout.gpu_type}:{layout.gpus}"),
        "gpus-per-task": (str(layout.gpus), f"{layout.gpu_type}:{layout.gpus}"),
        "gpus": (str(layout.gpus * layout.nodes), f"{layout.gpu_type}:{layout.gpus * layout.nodes}"),
        "gres": (f"gpu:{layout.gpus}", f"gpu:{layout.gpu_type}:{layout.gpus}", "gpu" if layout.gpus == 1 else "gpu:-"),
    }
    if name == "gpus-per-task" and value is not None and value.rpartition(":")[2].isdigit() and layout.gpus:
        each = int(value.rpartition(":")[2])
        if each and each * (layout.ntasks // max(1, layout.nodes)) == layout.gpus:
            step.stays = step.stays or each != layout.gpus
            return
    if value is None or value not in same.get(name, ()):
        shown = f"={value}" if value else ""
        raise NotUnderstood(f"srun's --{name}{shown} asks for what is not the same for a learner")


def pyxis_image(value: str) -> str:
    """Return enroot's ``[USER@][REGISTRY#]IMAGE[:TAG]`` as Apptainer names it; the name of a SIF file stays. Raises
    NotUnderstood."""
    if value.startswith("~") or any(sign in value for sign in "$`"):
        raise NotUnderstood("sbatch and Pyxis expand neither variables nor ~ in the name of an image")
    if value.endswith(".sif"):
        return value
    if value.startswith(("/", ".", "file:")) or value.endswith(_SQUASHED):  # Pyxis takes / and . for paths
        raise NotUnderstood('an enroot image (squashfs) runs only at sites with runtime = "pyxis"')
    if value.startswith(_IMAGES):
        return value
    if "://" in value:
        raise NotUnderstood(f"no registry has an image of {value.partition('://')[0]}")
    registry, sharp, name = value.partition("#")
    if "@" in registry:
        raise NotUnderstood("it pulls the image as a user of the registry")
    return f"docker://{registry}/{name}" if sharp else f"docker://{value}"


def _container(rest: list[Word], known: Known, step: Step) -> None:
    """Remove ``apptainer exec OPTIONS IMAGE``, and note the image."""
    start = rest[0].start
    program = name_of(rest.pop(0))
    while rest and rest[0].value in _QUIET:
        rest.pop(0)
    verb = rest.pop(0).value if rest else None
    if verb not in ("exec", "run"):
        raise NotUnderstood(f"{program} {verb or ''} starts no command of the script".replace("  ", " "))
    given: list[str] = []
    while rest and rest[0].raw.startswith("-"):
        _container_option(rest, program, given, step)
    if not rest:
        raise NotUnderstood(f"{program} names no image")
    word = rest.pop(0)
    step.image = _sif(word, known, step)
    env = f"env {' '.join(given)} " if given else ""
    if verb == "run":
        step.approximations.append(f"{program} run: what the image starts is its {RUNSCRIPT}")
        end = word.start + len(word.raw.encode())
        step.edits.append(Edit(start, end, f"{env}{RUNSCRIPT}"))
        rest.insert(0, Word(RUNSCRIPT, end, RUNSCRIPT))
        return
    if not rest:
        raise NotUnderstood(f"{program} has no command")
    step.edits.append(Edit(start, rest[0].start, env))


def _container_option(rest: list[Word], program: str, given: list[str], step: Step) -> None:
    word = rest.pop(0)
    name, equals, raw = word.raw.partition("=")
    attached = name[:2] == "-B" and len(name) > 2
    if name in ("--nv", "--rocm", "--nvccli"):
        step.approximations.append(f"{name}: learners with GPUs have their libraries")
    elif name in _CONTAINED:
        step.approximations.append(f"{name}: learners are contained")
        if name == "--no-mount" and not equals and rest:
            rest.pop(0)
    elif name in _MOUNTS or attached:
        if not equals and not attached and rest:
            rest.pop(0)
    elif name == "--env":
        value = raw if equals else (rest.pop(0).raw if rest else "")
        if "," in value or "=" not in value:
            raise NotUnderstood(f"{program}'s {word.raw} sets several variables")
        given.append(value)
    elif name not in _QUIET:
        raise NotUnderstood(f"{program}'s {word.raw} changes what the container has")


def _sif(word: Word, known: Known, step: Step) -> str:
    image = literal(word.raw, known)
    if image is None:
        raise NotUnderstood(f"the image {word.raw} is not known before it runs")
    if not image.startswith((*_IMAGES, "/")) and not image.endswith((".sif", ".simg", ".img")):
        raise NotUnderstood(f"the image {image} is not a file that learners can run in")
    if not image.startswith((*_IMAGES, "/")):
        step.approximations.append(f"{image} is looked for in the site's images_dirs: write its whole path")
    return image


def words_text(words: Sequence[Word]) -> str:
    """Return the words as they stand in the script."""
    return " ".join(word.raw for word in words)
