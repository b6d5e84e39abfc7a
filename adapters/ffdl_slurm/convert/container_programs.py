"""What a script's own commands that start containers ask for: their image, and the directories that they mount."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_slurm.convert.shell_syntax import Word, words_from

_PROGRAM = re.compile(r"(?<![\w.-])(apptainer|singularity|docker|podman|enroot)(?=\s)")
_VARIABLE = re.compile(
    r"(?<![\w$-])(?P<name>(?:APPTAINER|SINGULARITY)(?:_BIND(?:PATH)?|ENV_\w+))=(?=(?P<value>[^\s;&|]?))", re.ASCII
)


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
    "enroot": _Program(
        frozenset({"start"}), frozenset({"-m", "--mount"}), frozenset({"-r", "--root", "-w", "--rw"})
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Started:
    """A container that a command starts. `image` None: none is seen. `mounts` are the options as they stand there."""

    how: str
    image: Word | None
    mounts: tuple[str, ...]


def started_in(text: str) -> Iterator[Started]:
    """`text` is what a line runs, continuation lines joined."""
    for match in _PROGRAM.finditer(text):
        words = words_from(text, match.end())
        program = _PROGRAMS[match[1]]
        while words and words[0].raw.startswith("-"):
            words.pop(0)
        if words and words[0].raw in program.verbs:
            image, mounts = _options(words[1:], program)
            yield Started(f"{match[1]} {words[0].raw}", image, mounts)


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


def variables_in(text: str) -> Iterator[tuple[str, str]]:
    """Variables that Apptainer reads for its containers, and their assignments, as they stand there."""
    for match in _VARIABLE.finditer(text):
        if match["value"]:
            yield match["name"], (words_from(text, match.start()) or [Word(match[0], 0, None, "")])[0].raw
