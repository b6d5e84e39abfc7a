"""Where this software does otherwise than FfDL did, or than the text seems to say: nothing is changed silently.

Each difference is a warning where the user may have to act and a note where what was plainly meant now happens.
Facts about FfDL: its REST API's manifest reader and its life-cycle manager (IBM/FfDL, archived 2022).
"""

from __future__ import annotations

import difflib
import fnmatch
import re
from collections.abc import Sequence

from ffdl_batch.domain.job.secret_references import CUSTOM
from ffdl_batch.domain.job.spec import BatchOptions
from ffdl_batch.domain.quantity import format_size
from ffdl_batch.manifest.command import read_command
from ffdl_batch.manifest.contract import Defaults
from ffdl_batch.manifest.document.tree import Mapping, Place, Scalar, find
from ffdl_batch.manifest.finding_log import FindingLog
from ffdl_batch.manifest.models.batch import ManifestBlock
from ffdl_batch.manifest.models.ffdl import FrameworkBlock, ImageLocationBlock
from ffdl_batch.manifest.models.scalars import is_octal, shown

_FFDL_SIZE = re.compile(r"(\d*) *(mb|mib|gb|gib|tb|tib)?", re.IGNORECASE)
_FFDL_MB = {"mb": 1.0, "mib": 1.048576, "gb": 1000.0, "gib": 1073.741824}
_SECRET_VARIABLE = re.compile(r"(^|_)(PASSWORD|PASSWD|SECRET|TOKEN|API_?KEY|ACCESS_KEY|SECRET_KEY)$", re.IGNORECASE)


def note_differences(root: Mapping, manifest: ManifestBlock, defaults: Defaults, log: FindingLog) -> None:
    """Report on a manifest whose every single value is right.

    Amounts are compared with FfDL's only in manifests that FfDL could have run: `batch` is ours, and who writes it
    asks for what stands there.
    """
    batch = root.get("batch")
    for_ffdl = not isinstance(batch, Mapping) or bool(batch.origin.option)
    if manifest.memory is None:
        theirs = "; FfDL gave 512 MB" if for_ffdl else ""
        size = format_size(defaults.memory_bytes)
        log.note((), f"memory is not given: the site's {size} for each learner{theirs}")
    elif for_ffdl:
        _memory(root, manifest.memory, log)
    if for_ffdl and manifest.gpus and not manifest.gpu_type:
        log.note(("gpus",), "gpu_type is not given: any type will do; FfDL took nvidia-TeslaK80")
    _numbers(root, manifest, log)
    if manifest.framework.image_tag:
        log.note(
            ("framework", "image_tag"), "the image follows from name and version; image_tag changes nothing, as in FfDL"
        )
    _metrics(manifest, log)
    _commands(manifest, log)


def note_credentials(batch: BatchOptions, log: FindingLog) -> None:
    """Warn about variables that look like credentials: what the learner's environment holds is recorded in clear."""
    swept = dict.fromkeys(name for values in batch.sweep for name in values)
    for block, names in (("env", batch.env), ("sweep", swept)):
        for name in names:
            if _SECRET_VARIABLE.search(name):
                message = f"this looks like a credential, and {block} is recorded in clear"
                log.warning(("batch", block, name), message, "write it under batch.secrets, as ${secret:NAME}")


def check_framework(manifest: ManifestBlock, defaults: Defaults, log: FindingLog) -> None:
    """The framework must be among the site's, where the site's are known."""
    known = defaults.known_frameworks
    framework = manifest.framework
    if framework.image_location is not None and _places_image(framework, framework.image_location, log):
        return
    if known is None or framework.name == "custom":
        return
    if framework.name not in known:
        cure = _right_name(framework, sorted({*known, "custom"}))
        log.error(("framework", "name"), f"{shown(framework.name)} is not a framework here", cure)
        return
    versions = known[framework.name]
    if versions and not any(fnmatch.fnmatchcase(framework.version, v) for v in versions):
        message = f"{framework.name} has no version {shown(framework.version)} here"
        log.error(("framework", "version"), message, f"known are {', '.join(versions)}")


def _places_image(framework: FrameworkBlock, location: ImageLocationBlock, log: FindingLog) -> bool:
    """Whether a dialect's private image is meant: registry/namespace/name:version, so that any name will do. A custom
    image's own registry is that of its version."""
    place = ("framework", "image_location")
    if location.user_name and not location.access_token:
        message = "there is a user_name and no access_token, so the registry is asked as anybody"
        log.warning((*place, "user_name"), message, "write access_token: ${secret:NAME}, too")
    if not location.registry and not (framework.name == CUSTOM and location.access_token):
        log.warning(place, "registry is not set, so this is ignored", "write registry: and the host that has the image")
        return False
    return bool(location.registry)


def _right_name(framework: FrameworkBlock, known: list[str]) -> str:
    if "/" in framework.name:
        image = shown(f"{framework.name}:{framework.version}")
        return f"for an image of your own write name: custom and version: {image}"
    base = framework.name.lower().removesuffix("-gpu")
    near = difflib.get_close_matches(base, known, n=1, cutoff=0.8)
    names = f"known are {', '.join(known)}"
    return f"did you mean {near[0]}? {names}" if near else names


def ffdl_memory(text: str) -> int | None:
    """Bytes that FfDL gave for `text`; None where it understood nothing and gave 512 MB."""
    match = _FFDL_SIZE.match(text)
    if match is None or not match[1] or (match[2] or "").lower() not in _FFDL_MB:
        return None
    unit = match[2].lower()
    megabytes = int(match[1]) * _FFDL_MB[unit]
    # lcm_utils.go rounds MiB to hundredths, then takes every "MB" for a MiB
    return round((round(megabytes, 2) if unit == "mib" else megabytes) * 1024 * 1024)


def _memory(root: Mapping, memory: int, log: FindingLog) -> None:
    node = root.get("memory")
    if not isinstance(node, Scalar) or node.origin.option:
        return
    theirs = ffdl_memory(node.text)
    size = f"{memory:,} bytes"
    if theirs is None:
        log.warning(("memory",), f"FfDL did not understand {shown(node.text)} and gave 512 MB; here it is {size}")
    elif theirs != memory:
        cure = f"write {-(-theirs // 1000**2)}MB for as much" if theirs > memory else ""
        log.note(("memory",), f"{node.text.strip()} is {size} here; FfDL gave {theirs:,}", cure)


def _numbers(root: Mapping, manifest: ManifestBlock, log: FindingLog) -> None:
    if manifest.gpus is not None and 0 < manifest.gpus < 1:
        message = "FfDL cut this to 0 GPUs; here it asks for a share of a GPU"
        log.warning(("gpus",), message, "backends without shares refuse it; write a whole number then")
    for key in ("cpus", "gpus", "learners"):
        node = find(root, (key,))
        if isinstance(node, Scalar) and is_octal(node.text):
            number = int(node.text.strip().replace("_", ""), 8)
            log.warning(
                (key,), f"{node.text} is an octal number to YAML and to FfDL: {number}", "drop the leading zero"
            )


def _metrics(manifest: ManifestBlock, log: FindingLog) -> None:
    metrics = manifest.evaluation_metrics
    for name, group in metrics.groups.items() if metrics else ():
        if group.meta is None:
            place = ("evaluation_metrics", "groups", name, "meta")
            log.warning(place, "FfDL's server fails on a group without meta; here it is not needed")


def _commands(manifest: ManifestBlock, log: FindingLog) -> None:
    """Note the form of each command of several lines, because FfDL joined all lines."""
    roles = manifest.batch.roles if manifest.batch else {}
    commands: dict[Place, str] = {("framework", "command"): manifest.framework.command}
    commands |= {("batch", "roles", name, "command"): role.command for name, role in roles.items()}
    counted = "counted from the first line of the command"
    for place, text in commands.items():
        command = read_command(text)
        continued = ", ".join(
            f"{_named(first, last)} {'continue' if last > first else 'continues'} line {first - 1}"
            for first, last in _ranges(command.continued)
        )
        if command.lines - len(command.continued) > 1:
            message = f"these {command.lines} lines run as a script; FfDL replaced the line breaks with blanks"
            log.note(place, f"{message}; {continued}" if continued else message, counted if continued else "")
        elif continued:
            log.note(place, f"this is one command: {continued}", counted)
        if command.blank_word:
            log.warning(
                place,
                "a blank follows a backslash, so bash passes that blank to the program",
                "delete blanks at the ends of lines; if YAML joined the lines, write `command: |`",
            )
        for first, last in _ranges(command.stray):
            starts = "start with a dash and continue" if last > first else "starts with a dash and continues"
            log.warning(
                place,
                f"{_named(first, last)} {starts} no line, so bash runs it as a command of its own",
                "end the line before with a backslash, or indent the dash; the line before may not end in a comment or "
                "an operator such as ; or &",
            )


def _ranges(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Return the first and last number of each run of consecutive numbers."""
    known = frozenset(numbers)
    starts = [number for number in numbers if number - 1 not in known]
    ends = [number for number in numbers if number + 1 not in known]
    return list(zip(starts, ends, strict=True))


def _named(first: int, last: int) -> str:
    return f"lines {first}-{last}" if last > first else f"line {first}"
