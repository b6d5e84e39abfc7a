"""Makes the parts of a support archive, and writes the archive. `ffdl`, `ffdl-admin` and the daemon share it.

A part that cannot be read is left out with its reason, and never makes a command fail.
"""

from __future__ import annotations

import contextlib
import io
import os
import platform
import stat
import subprocess
import tarfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from ffdl_batch import __version__
from ffdl_batch.attempt.file_writer import write_bytes
from ffdl_batch.attempt.log_tail import read_end
from ffdl_batch.attempt.reader import DamagedFile
from ffdl_batch.domain.codec import to_plain
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.job.views import SupportPart
from ffdl_batch.domain.number_text import counted
from ffdl_batch.domain.redaction import Redactor, secret_values
from ffdl_batch.domain.terminal_text import json_text, printable, quoted
from ffdl_batch.exit_handling import Stop

UNREMOVED = "SECRETS-NOT-REMOVED.txt"
END_BYTES = 64 * 1024
"""How much is read of a log."""
_ASK_S = 15.0
_PROGRAMS = (["sinfo", "--version"], ["apptainer", "--version"], ["munge", "--version"])
_PREFACE = """\
ffdl support archive, written {at} by ffdl-batch {version} on {host}

REVIEW THESE FILES BEFORE YOU SEND THEM. ffdl has replaced values of secrets that it knows, and text that looks like a
secret, by ***. Logs contain your program's output: ffdl cannot recognise everything that is confidential in them.
Secrets, models, data, results and environment.json are never included; variables set in the manifest are.

"""


def json_part(name: str, value: object) -> SupportPart:
    """Return a view or other plain value as a part."""
    return SupportPart(name, json_text(to_plain(value), indent=2) + "\n")


def file_part(name: str, path: str, *, below: str, most: int = END_BYTES, is_rotated: bool = False) -> SupportPart:
    """Return the last whole lines of a file in the directory `below`, at most `most` bytes. Never follows links. With
    `is_rotated`, the file continues the one with ``.1`` at its end, if that exists."""
    try:
        data, size = read_end(path, most, below=below)
        if is_rotated and size <= most:
            with contextlib.suppress(FileNotFoundError):
                earlier, earlier_size = read_end(f"{path}.1", most - size, below=below)
                data, size = earlier + data, earlier_size + size
    except DamagedFile as error:
        return SupportPart(name, left_out=error.why)
    except OSError as error:
        return SupportPart(name, left_out=error.strerror or str(error))
    return text_part(name, data, size)


def text_part(name: str, data: bytes, size: int) -> SupportPart:
    """Return the whole lines in `data`, the end of something with `size` bytes. Half of a secret could not be
    recognised."""
    if b"\0" in data:
        return SupportPart(name, left_out="it is binary")
    if size > len(data):
        begin = min((at for end in (b"\n", b"\r") if (at := data.find(end)) >= 0), default=-1)
        if begin < 0:
            return SupportPart(name, left_out=f"its last {len(data)} bytes have no line end")
        data = data[begin + 1 :]
    note = f"the last part of {size} bytes" if size > len(data) else ""
    return SupportPart(name, data.decode("utf-8", "replace"), note)


def unremoved_part(names: Sequence[str]) -> SupportPart:
    """Return the warning that values of these secrets of the job may be in its logs."""
    text = (
        f"the values of these secrets were deleted when the job ended, so ffdl cannot redact them: {', '.join(names)}; "
        "search the logs for them before you send this archive\n"
    )
    return SupportPart(UNREMOVED, text)


def command_part(name: str, argv: Sequence[str]) -> SupportPart:
    """Return the end of what a command prints."""
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=_ASK_S,
            check=False, env={**os.environ, "LC_ALL": "C"},
        )  # fmt: skip
    except FileNotFoundError:
        return SupportPart(name, left_out=f"{argv[0]} is not installed")
    except (OSError, subprocess.TimeoutExpired) as error:
        return SupportPart(name, left_out=str(error))
    if done.returncode:
        said = done.stdout.decode("utf-8", "replace").strip()
        return SupportPart(name, left_out=f"{argv[0]} exited with status {done.returncode}: {said[-400:]}")
    return text_part(name, done.stdout[-END_BYTES:], len(done.stdout))


def describe_versions() -> dict[str, str]:
    """Return the versions of ffdl, Python, the kernel, the system, and the programs that ffdl uses on this machine."""
    try:
        system = platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        system = platform.system()
    versions = {
        "ffdl": __version__,
        "python": platform.python_version(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "system": system,
        "host": platform.node(),
    }
    for argv in _PROGRAMS:
        part = command_part(argv[0], argv)
        versions[argv[0]] = part.text.strip() or part.left_out
    return versions


def redacted(parts: Iterable[SupportPart], values: Iterable[str]) -> Iterator[SupportPart]:
    """Yield the parts without these values, without secrets of the environment, and without what looks like one."""
    clean = Redactor({*values, *secret_values(os.environ)}).clean
    for part in parts:
        yield replace(part, name=clean(part.name), text=clean(part.text), left_out=clean(part.left_out))


def check_target(target: Path, *, force: bool) -> None:
    """Raise Stop if the archive may not be written to `target`."""
    try:
        mode = target.lstat().st_mode
    except FileNotFoundError:
        if target.parent.is_dir():
            return
        raise Stop(ExitCode.USAGE, f"directory {quoted(str(target.parent), most=4096)} does not exist") from None
    except OSError as error:
        raise Stop(ExitCode.USAGE, f"{quoted(str(target), most=4096)}: {error.strerror}") from None
    if not stat.S_ISREG(mode):
        raise Stop(ExitCode.USAGE, f"{quoted(str(target), most=4096)} is not a regular file; name another file")
    if not force:
        raise Stop(ExitCode.USAGE, f"{quoted(str(target), most=4096)} exists; name another file, or use --force")


def write_archive(target: Path, parts: Iterable[SupportPart], values: Iterable[str] = (), *, force: bool) -> str:
    """Write the parts without secrets, `values` among them, and their list as a whole file of mode 0600. Return a
    sentence about it. Raises Stop."""
    clean = list(redacted(parts, values))
    now, file = time.time(), io.BytesIO()
    top = target.name.removesuffix(".tar.gz")
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        for part in (SupportPart("MANIFEST.txt", _list(clean, now)), *(one for one in clean if not one.left_out)):
            data = printable(part.text).encode("utf-8")
            names = [name for name in printable(part.name, one_line=True).split("/") if name not in ("", ".", "..")]
            entry = tarfile.TarInfo("/".join((top, *names)))
            entry.size, entry.mode, entry.mtime = len(data), 0o600, now
            archive.addfile(entry, io.BytesIO(data))
    check_target(target, force=force)  # it may have been created meanwhile
    try:
        write_bytes(str(target), file.getvalue())
    except OSError as error:
        what = f"{quoted(str(target), most=4096)} cannot be written: {error.strerror or error}"
        raise Stop(ExitCode.FAILED, what) from error
    missing, size = sum(1 for part in clean if part.left_out), len(file.getvalue()) / 1024
    files = f"{counted(len(clean) - missing, 'file')}, {missing} left out, {size:.0f} KiB"
    return f"{target}: {files}; review the files before you send the archive; start with MANIFEST.txt"


def _list(parts: Sequence[SupportPart], now: float) -> str:
    """Return the text of MANIFEST.txt."""
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now))
    lines = ["Contents:"]
    for part in parts:
        if not part.left_out:
            lines.append(f"  {part.name}: {len(part.text)} characters{', ' if part.note else ''}{part.note}")
    lines += ["", "Left out:", *(f"  {part.name}: {part.left_out}" for part in parts if part.left_out)]
    shown = "\n".join(printable(line, one_line=True) for line in lines)
    return _PREFACE.format(at=at, version=__version__, host=platform.node()) + shown + "\n"
