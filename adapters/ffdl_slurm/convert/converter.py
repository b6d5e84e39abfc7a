"""The converter of sbatch scripts (entry point ``sbatch`` of ``ffdl_batch.converters``)."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from ffdl_batch.domain.conversion import CannotConvert, Conversion, Judged, Origin, Source
from ffdl_batch.domain.job.spec import JobSpec
from ffdl_batch.runtimes.slurm_steps import TAKES
from ffdl_slurm.convert.containers import Containers, judge_mounts, judge_variables, read_containers
from ffdl_slurm.convert.directives import IMAGE, Options, read_directives
from ffdl_slurm.convert.launch_command import NotUnderstood, pyxis_image
from ffdl_slurm.convert.manifest_keys import batch_keys, line_of, resources
from ffdl_slurm.convert.output_variables import NODES, TASKS
from ffdl_slurm.convert.script_body import Body, read_body
from ffdl_slurm.convert.script_writer import compare, write_script
from ffdl_slurm.convert.shell_tree import parse
from ffdl_slurm.convert.task_layout import Layout, read_layout

_WAITS = "sleep infinity"
_ORDER = {Origin.COMMAND: 0, Origin.ENVIRONMENT: 1, Origin.SCRIPT: 2, Origin.BODY: 3}
SHIM = "slurm_environment"
"""The key of `batch:` by which learners find Slurm's variables and srun."""


class SbatchConverter:
    """Reads and writes batch scripts of Slurm."""

    def recognises(self, text: str) -> bool:
        """Return whether sbatch accepts the text: it begins with ``#!``."""
        return text.startswith("#!")

    def convert(self, source: Source) -> Conversion:
        """Return the manifest of a script, and what became of each directive and line."""
        _check_text(source.text)
        directives = read_directives(source.text, source.options, source.environ)
        options = Options(directives.given)
        layout = read_layout(options, source.text)
        if options.get("job-name") and not options.text("job-name"):
            options.near("job-name", "a job needs a name: the script's is taken")
        batch = batch_keys(options, layout)
        given = {**layout.exported, **_texts(batch.get("env")), **dict.fromkeys(_texts(batch.get("secrets")))}
        arguments = {str(number): text for number, text in enumerate(source.arguments, 1)}
        script = parse(source.text)
        body = read_body(script, source.arguments, layout, given)
        manifest: dict[str, object] = {"name": line_of(options, "job-name") or source.name, **resources(layout)}
        named = _image_of(options, body.image)
        containers = read_containers(script, named, source.image, given | arguments) if body.wrapped else Containers()
        manifest["framework"] = _framework(source, body, named or containers.image)
        batch |= _of_body(source, body, layout, batch)
        _drop_replaced_secrets(batch)
        manifest["batch"] = batch
        mounts = containers.judged if body.wrapped else judge_mounts(script)
        everything = [*options.judged(), *directives.judged, *body.judged, *mounts]
        everything += judge_variables(script)
        judged = sorted(everything, key=_place)
        return Conversion(manifest, tuple(judged), body.wrapped, bool(body.image))

    def differences(self, source: Source, script: str) -> tuple[str, ...]:
        """Return the options in which `script` differs from `source`."""
        before = read_directives(source.text, source.options, source.environ)
        return compare(before, read_directives(script), source.name)

    def write(self, spec: JobSpec, *, contained: bool = True) -> str:
        """Return a script that needs sbatch only."""
        return write_script(spec, contained=contained)


def create() -> SbatchConverter:
    """Create the converter for the entry point."""
    return SbatchConverter()


def _check_text(text: str) -> None:
    """Raise CannotConvert for a text that sbatch refuses, or that no system can start."""
    if not _interpreter(text):
        raise CannotConvert("#! names no interpreter", "write #!/bin/bash", 1)
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise CannotConvert("it has a NUL byte, so it is not a script", "give the script itself", line)
    if "\r\n" in text:
        line = text.count("\n", 0, text.index("\r\n")) + 1
        raise CannotConvert("lines end as on DOS, which sbatch refuses", "change that: sed -i 's/\\r$//' FILE", line)


def _interpreter(text: str) -> str:
    """Return what follows ``#!``."""
    return text.split("\n", 1)[0].removeprefix("#!").strip()


def _drop_replaced_secrets(batch: dict[str, object]) -> None:
    """Remove secrets that the script sets itself; in a manifest they would win."""
    secrets = {
        name: text for name, text in _texts(batch.get("secrets")).items() if name not in _texts(batch.get("env"))
    }
    batch.pop("secrets", None)
    if secrets:
        batch["secrets"] = secrets


def _place(one: Judged) -> tuple[int, int]:
    return (_ORDER[one.origin] if not one.line else 2, one.line)


def _framework(source: Source, body: Body, named: str) -> dict[str, object]:
    return {
        "name": "custom",
        "version": body.image or named or source.image or "custom",
        "command": _command(source, body),
    }


def _image_of(options: Options, started: str) -> str:
    """Return the image that Pyxis would start the script in; `started` is the image that its command names."""
    text = options.text(IMAGE)
    try:
        image = pyxis_image(text) if text else ""
    except NotUnderstood as error:
        options.drop(IMAGE, f"{error.args[0]}; name one by --image")
        return ""
    if image and started and image != started:
        options.drop(IMAGE, f"the command names {started}, which counts: a learner has one image")
    return image


def _command(source: Source, body: Body) -> str:
    if not body.wrapped:
        return body.command
    interpreter = _interpreter(source.text).split(None, 1)
    program = interpreter[0].rsplit("/", 1)[-1] if interpreter[:1] in (["/bin/bash"], ["/bin/sh"]) else interpreter[0]
    name = f"./{source.name}" if source.name.startswith("-") else source.name
    return shlex.join([program, *(one.strip() for one in interpreter[1:]), name, *source.arguments])


def _of_body(source: Source, body: Body, layout: Layout, batch: Mapping[str, object]) -> dict[str, object]:
    """Return the keys of `batch:` for the commands. A script that starts its own tasks gets the number of nodes."""
    starts = bool(body.wrapped) or body.alone
    command = f"{TAKES} {_command(source, body)}" if body.wrapped and body.steps else _WAITS
    env = {**_texts(batch.get("env")), **body.env, **layout.exported}
    if body.one_task and layout.nodes == 1:
        env.setdefault(TASKS, "1")
    if (starts and layout.nodes > 1) or body.steps:
        env[NODES] = str(layout.nodes)
    found: dict[str, object] = {SHIM: True}
    if env:
        found["env"] = env
    if layout.nodes > 1 and starts:
        found["roles"] = {"batch": {"learners": 1}, "node": _others(layout.nodes - 1, command)}
    return found


def _texts(value: object) -> dict[str, str]:
    return dict(value) if isinstance(value, dict) else {}


def _others(count: int, command: str) -> dict[str, object]:
    """Return the role of the learners whose nodes the first one uses. It is no service if they run the script."""
    return {"learners": count, **({"service": True} if command == _WAITS else {}), "command": command}
