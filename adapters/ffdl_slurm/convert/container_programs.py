"""What a script's own commands that start containers ask for: their image, and the directories that they mount."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_slurm.convert.shell_tree import Command, Word

_VARIABLE = re.compile(r"(?:APPTAINER|SINGULARITY)(?:_BIND(?:PATH)?|ENV_\w+)", re.ASCII)


@dataclass(frozen=True, slots=True)
class _Program:
    """`verbs` start a container; `mounts` are options that bind directories, `flags` those without a value."""

    verbs: frozenset[str]
    mounts: frozenset[str]
    flags: frozenset[str]


_APPTAINER = _Program(
    frozenset({"exec", "run", "shell", "test"}),
    frozenset({"-B", "--bind", "--mount"}),
    frozenset({
        "--nv", "--nvccli", "--rocm", "-c", "--contain", "-C", "--containall", "-e", "--cleanenv", "--compat", "-f",
        "--fakeroot", "-w", "--writable", "--writable-tmpfs", "--no-home", "--no-init", "--no-privs", "--no-eval",
        "--no-umask", "--keep-privs", "-i", "--ipc", "-p", "--pid", "-n", "--net", "-u", "--userns", "--unsquash",
        "--uts", "--disable-cache", "-q", "--quiet", "-s", "--silent", "-d", "--debug", "-v", "--verbose",
    }),
)  # fmt: skip
_DOCKER = _Program(
    frozenset({"run", "create"}),
    frozenset({"-v", "--volume", "--mount"}),
    frozenset({
        "--rm", "-i", "-t", "-it", "-ti", "-d", "-dit", "--detach", "--init", "--interactive", "--no-healthcheck",
        "--privileged", "--read-only", "--tty",
    }),
)  # fmt: skip
_PROGRAMS: Mapping[str, _Program] = {
    "apptainer": _APPTAINER,
    "singularity": _APPTAINER,
    "docker": _DOCKER,
    "podman": _DOCKER,
    "podman-hpc": _DOCKER,
    "enroot": _Program(
        frozenset({"start"}), frozenset({"-m", "--mount"}), frozenset({"-r", "--root", "-w", "--rw"})
    ),
    "shifter": _Program(frozenset(), frozenset({"-V", "--volume"}), frozenset({"--clearenv"})),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Started:
    """A container that a command starts. `image` None: none is seen. `mounts` are the options as they stand there."""

    how: str
    image: Word | None
    mounts: tuple[str, ...]


def started_by(command: Command) -> Started | None:
    """Return the container that a command starts; None for any other command."""
    program = _PROGRAMS.get(command.name)
    if program is None:
        return None
    words = list(command.words[1:])
    if command.name == "shifter":
        image, mounts = _options(words, program)
        given = next((word for word in words if word.raw.startswith("--image=")), None)
        return Started("shifter", given or image, mounts)
    while words and words[0].raw.startswith("-"):
        words.pop(0)
    if not words or words[0].raw not in program.verbs:
        return None
    image, mounts = _options(words[1:], program)
    return Started(f"{command.name} {words[0].raw}", image, mounts)


def _options(words: Sequence[Word], program: _Program) -> tuple[Word | None, tuple[str, ...]]:
    """Options end where a word stands that is neither one nor an option's value."""
    rest, mounts = list(words), []
    while rest and rest[0].raw.startswith("-"):
        raw = rest.pop(0).raw
        option, equals, _ = raw.partition("=")
        attached = next((one for one in program.mounts if raw.startswith(one) and len(one) == 2 < len(raw)), "")
        if raw in program.flags:
            continue
        text = raw
        if not equals and not attached and rest and not (option.startswith("--no-") or rest[0].raw.startswith("-")):
            text = f"{raw} {rest.pop(0).raw}"
        if option in program.mounts or attached:
            mounts.append(text)
    return (rest[0] if rest else None), tuple(mounts)


def is_variable(name: str) -> bool:
    """Return whether Apptainer reads a variable for its containers."""
    return bool(_VARIABLE.fullmatch(name))
