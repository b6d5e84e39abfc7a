"""Looks for planted values in everything that a system wrote, in the forms that programs give to texts."""

from __future__ import annotations

import base64
import json
import os
import shlex
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from urllib.parse import quote, quote_plus

from ffdl_batch.controller.learner.environment import ansi_c, single_quoted

BLOCK = 1 << 22
BEGAN_AT = time.time() - 1.0
"""Before any value was planted. A file whose status (ctime) is older holds none."""


def forms(value: str) -> frozenset[bytes]:
    """The value as it is, as JSON, YAML, shells, URLs and Python write it, in hexadecimal, and in base64 wherever in
    the encoded text it stands."""
    raw = value.encode()
    texts = {
        value,
        json.dumps(value)[1:-1],
        json.dumps(value, ensure_ascii=False)[1:-1],
        quote(value),
        quote_plus(value),
    }
    texts |= {quote(value, safe=""), repr(value)[1:-1], shlex.quote(f"{value} ")[1:-2], single_quoted(value)[1:-1]}
    texts |= {ansi_c(value)[2:-1], raw.hex(), raw.hex().upper()}
    found = {text.encode() for text in texts}
    for before in range(3):
        encoded = base64.b64encode(bytes(before) + raw)
        # The first and the last group hold bits of what stands beside it.
        middle = encoded[(8 * before + 5) // 6 : 8 * (before + len(raw)) // 6]
        found |= {middle, middle.replace(b"+", b"-").replace(b"/", b"_")}
    return frozenset(found)


class Search:
    """Values by what they are called. `files` counts those that were looked through."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self.files = 0
        self._forms = {name: forms(value) for name, value in values.items()}
        self._longest = max(len(form) for some in self._forms.values() for form in some)

    def within(self, data: bytes) -> set[str]:
        """Which of the values are in it, in whatever form."""
        return {name for name, some in self._forms.items() if any(form in data for form in some)}

    def in_file(self, path: Path) -> set[str]:
        """As :meth:`within`, of a file however large; none of what is gone, or of a process that nobody may read."""
        found: set[str] = set()
        try:
            if path.stat().st_ctime < BEGAN_AT and path.parts[1] != "proc":
                return found
            self.files += 1
            with path.open("rb") as file:
                rest = b""
                while block := file.read(BLOCK):
                    found |= self.within(rest + block)
                    rest = (rest + block)[-self._longest :]
        except (FileNotFoundError, ProcessLookupError):
            return found
        except PermissionError:
            if path.parts[1] != "proc":
                raise
        except OSError:
            if path.stat().st_size:  # files of the kernel have none, and some of them cannot be read
                raise
        return found

    def below(self, *directories: Path) -> dict[str, set[str]]:
        """Files with a value → which; names of files count, too. Pipes and sockets hold nothing."""
        found: dict[str, set[str]] = {}
        for directory in directories:
            for path in (directory, *_tree(directory)):
                seen = self.within(os.fsencode(path))
                if path.is_file() and not path.is_symlink():
                    seen |= self.in_file(path)
                if seen:
                    found[str(path)] = seen
        return found

    def in_processes(self, what: str, pids: Iterable[int] | None = None) -> dict[int, set[str]]:
        """Processes of this machine (or `pids`) whose ``/proc/<pid>/<what>`` holds a value → which."""
        everybody = (int(name) for name in os.listdir("/proc") if name.isdigit())  # noqa: PTH208
        found = {pid: self.in_file(Path(f"/proc/{pid}/{what}")) for pid in (everybody if pids is None else pids)}
        return {pid: names for pid, names in found.items() if names}


def _tree(top: Path) -> Iterator[Path]:
    """Everything below; a mounted /proc is looked at as processes."""
    for place, directories, files in os.walk(top):
        here = Path(place)
        yield from (here / name for name in (*directories, *files))
        directories[:] = [name for name in directories if not (here / name / "thread-self").is_symlink()]


def environment_of(pid: int) -> dict[str, str]:
    """What the process was started with; empty where it is gone."""
    try:
        data = Path(f"/proc/{pid}/environ").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return {}
    return dict(_pairs(data))


def _pairs(data: bytes) -> Iterator[tuple[str, str]]:
    for pair in data.split(b"\0"):
        name, sign, value = os.fsdecode(pair).partition("=")
        if sign:
            yield name, value
