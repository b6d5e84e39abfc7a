"""Check what nodes need for jobs' data: the staging program, and for mounted stores FUSE, rclone and an epilog."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from ffdl_batch.domain.data.mounts import Mounting
from ffdl_batch.domain.examination import Item, Verdict
from ffdl_slurm.output_text import few

EPILOG = "60-ffdl-mounts"
SFTP_SINCE = (1, 54)
"""The first release of rclone that checks host keys."""
_MOUNTS, _STAGING = "data mounts", "staging"
# Its arguments: the directory of the epilogs, the interpreter of the staging program ("" = there is none).
LOOK = """\
if [ -r /dev/fuse ] && [ -w /dev/fuse ]; then echo fuse=yes; fi
for one in fusermount3 fusermount; do if command -v "$one" >/dev/null; then echo fusermount=yes; fi; done
if command -v rclone >/dev/null; then
    echo "rclone=$(timeout -k 2 10 rclone version 2>/dev/null | sed -n '1s/^rclone v//p')"
fi
if [ -x "$1/60-ffdl-mounts" ]; then echo mounts_epilog=yes; fi
if [ -n "$2" ]; then
    code='import ffdl_batch.staging.program, ffdl_batch; print("ffdl_batch=" + ffdl_batch.__version__)'
    echo "staging=$(timeout -k 2 20 "$2" -I -c "$code" 2>&1 | tail -n 1)"
fi
"""


def data_items(answers: Mapping[str, Mapping[str, str]], mounting: Mounting, interpreter: str) -> list[Item]:
    """Return the items of nodes, from what each of them printed. `interpreter` is that of the staging program there; ""
    if nodes see none."""
    if not answers:
        return []
    return [*_staging_items(answers, interpreter), *_mount_items(answers, mounting)]


def _staging_items(answers: Mapping[str, Mapping[str, str]], interpreter: str) -> list[Item]:
    if not interpreter:
        text = (
            "nodes do not see this installation, and staging_python of [backend.slurm] names none: jobs with data or "
            "results in stores are refused when they are submitted"
        )
        return [Item(_STAGING, Verdict.NOTE, text)]
    wrong = _grouped(answers, lambda pairs: _why_no_staging(pairs.get("staging", "")))
    if not wrong:
        return [Item(_STAGING, Verdict.OK)]
    cure = "name the interpreter of an installation that nodes see in staging_python of [backend.slurm]"
    return [
        Item(_STAGING, Verdict.WRONG, f"{interpreter} does not start it on {few(nodes)} ({why}): {cure}")
        for why, nodes in wrong.items()
    ]


def _why_no_staging(said: str) -> str:
    return "" if said.startswith("ffdl_batch=") else said or "it printed nothing"


def _mount_items(answers: Mapping[str, Mapping[str, str]], mounting: Mounting) -> list[Item]:
    if mounting is Mounting.NEVER:
        return []
    must = mounting is Mounting.ALWAYS
    then = "jobs that read from stores fail there with S302" if must else "data are brought there"
    lacking = _grouped(answers, _why_no_mount)
    items = [
        Item(_MOUNTS, Verdict.WRONG if must else Verdict.NOTE, f"{why} on {few(nodes)}: {then}, as data_mount = "
             f'"{mounting.value}" has it')
        for why, nodes in lacking.items()
    ]  # fmt: skip
    able = {name: pairs for name, pairs in answers.items() if not _why_no_mount(pairs)}
    bare = [name for name, pairs in able.items() if "mounts_epilog" not in pairs]
    if bare:
        text = f"Epilog of slurm.conf has no {EPILOG} on {few(bare)}: put that file of slurm-configs there, or mounts"
        items.append(Item(_MOUNTS, Verdict.NOTE, f"{text} of jobs that are killed at once stay for a while"))
    old = _grouped(able, _too_old)
    for version, nodes in old.items():
        text = f"rclone {version} on {few(nodes)} does not check host keys: SFTP is not mounted there"
        items.append(Item(_MOUNTS, Verdict.NOTE, text))
    return items or [Item(_MOUNTS, Verdict.OK, f"on all {len(answers)} nodes that were asked")]


def _why_no_mount(pairs: Mapping[str, str]) -> str:
    if "fuse" not in pairs:
        return "/dev/fuse is not there, or closed to this user,"
    if "fusermount" not in pairs:
        return "fusermount3 (package fuse3) is not installed"
    if not pairs.get("rclone"):
        return "rclone is not installed" if "rclone" not in pairs else "rclone does not start"
    return ""


def _too_old(pairs: Mapping[str, str]) -> str:
    version = pairs.get("rclone", "")
    found = re.match(r"(\d+)\.(\d+)", version)
    return version if found and (int(found[1]), int(found[2])) < SFTP_SINCE else ""


def _grouped(answers: Mapping[str, Mapping[str, str]], say: Callable[[Mapping[str, str]], str]) -> dict[str, list[str]]:
    """Group nodes by the text of `say`, without those that have none."""
    found: dict[str, list[str]] = {}
    for node, pairs in answers.items():
        text = say(pairs)
        if text:
            found.setdefault(text, []).append(node)
    return found
