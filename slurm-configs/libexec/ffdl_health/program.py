"""Implements the program `health`. It checks the sources one by one, and records the findings of each before the next.

Slurm kills a HealthCheckProgram after a minute, and a node whose check hangs gets no jobs. So everything that may hang
runs in a child process, and an alarm limits the whole program.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, Callable, Iterable, NamedTuple, Sequence

from . import clock, confirmation, drain, gpus, ledger, logs, mounts, settings, words
from .findings import Finding
from .settings import Settings

WHOLE_S = 45
"""Maximum duration. Slurm gives a HealthCheckProgram 60 s."""
_USAGE = "usage: health [--print]"
SELDOM_S = 55.0
"""The interval in seconds between checks of sources that are not logs."""
_BOOT_ID = "/proc/sys/kernel/random/boot_id"


class _OutOfTime(Exception):
    pass


class _Source(NamedTuple):
    """A source of findings. `look` takes its memory. `often`: every run checks it."""

    name: str
    look: Callable[[dict[str, Any]], Iterable[Finding]]
    often: bool = False


def main(argv: Sequence[str]) -> int:
    """Run the program. Return 0 even after an error, as other statuses do not help Slurm; 64 for unknown arguments."""
    if list(argv) not in ([], ["--print"]):
        print(_USAGE, file=sys.stderr)
        return 64
    signal.signal(signal.SIGALRM, _alarm)
    signal.alarm(WHOLE_S)
    try:
        site = settings.load()
        if argv:
            _print(site)
        else:
            with ledger.held(site.place) as alone:
                if alone:
                    _write_down(site)
    except _OutOfTime:
        _complain(f"not through after {WHOLE_S} s; the next look goes on")
    except (OSError, ValueError) as error:
        _complain(" ".join(str(error).split()))
    finally:
        signal.alarm(0)
    return 0


def _write_down(site: Settings) -> None:
    book = ledger.Ledger(site.place, _boot_id())
    book.load()
    sources = _sources(site)
    whole_look = book.is_time_for_all(SELDOM_S)
    must_act = whole_look  # so that nodes do not contact slurmctld at every check
    for source in sources if whole_look else [one for one in sources if one.often]:
        began_at = time.time()
        found, whole = _look(source, book.memory(source.name))
        for one in book.add(source.name, found, looked=whole):
            print(f"{one.kind} {one.device}: {one.text}" if one.device else f"{one.kind}: {one.text}")
            must_act = must_act or one.badly
        if source is sources[0]:
            book.note_look(site.interval_s, began_at)
    done = drain.act(site, drain.node_name(os.environ), book.bad) if must_act else ""
    if done:
        print(f"health: {done}")


def _print(site: Settings) -> None:
    for source in _sources(site):
        for one in ledger.bounded(_look(source, {})[0]):
            when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(one.at))
            print(f"{when}  {one.kind:<14}{one.device or '-':<20}{one.text}")


def _look(source: _Source, memory: dict[str, Any]) -> tuple[list[Finding], bool]:
    """Return the findings of a source, and whether it was checked completely."""
    found: list[Finding] = []
    try:
        found.extend(source.look(memory))  # keeps the findings before an error
    except (OSError, ValueError) as error:
        _complain(f"{source.name}: {' '.join(str(error).split())}")
        return found, False
    return found, True


def _sources(site: Settings) -> list[_Source]:
    """Return the sources that the site has enabled, fast ones first."""
    chosen = [_Source("kernel", lambda memory: _of_kernel(site, memory), often=True)]
    for path in site.slurmd_logs:
        look = functools.partial(_of_slurmd, path)
        chosen.append(_Source(path, look, often=True))
    chosen.append(_Source("read-only", lambda memory: mounts.read_only(mounts.table(), memory)))
    chosen.append(_Source("disks", lambda memory: mounts.full(site.disks, site.full_percent, memory)))
    if site.clock_s:
        chosen.append(_Source("clock", lambda memory: clock.look(site.clock_s, memory)))
    if site.mounts != "none":
        named = () if site.mounts == "network" else site.mounts.split(":")
        chosen.append(_Source("mounts", lambda memory: mounts.stale(mounts.table(), named, memory)))
    if site.gpus:
        chosen.append(_Source("gpus", gpus.look))
    return chosen


def _of_log(lines: Iterable[logs.Line], judge: Callable[[float, str], Finding | None]) -> Iterable[Finding]:
    for line in lines:
        found = judge(line.at, line.text)
        if found is not None:
            yield found


def _of_kernel(site: Settings, memory: dict[str, Any]) -> Iterable[Finding]:
    return map(confirmation.confirmed, _of_log(_kernel_lines(site, memory), words.of_kernel))


def _of_slurmd(path: str, memory: dict[str, Any]) -> Iterable[Finding]:
    return _of_log(_file_lines(path, memory), words.of_slurmd)


def _kernel_lines(site: Settings, memory: dict[str, Any]) -> Iterable[logs.Line]:
    if site.kernel_log == "none":
        return ()
    if site.kernel_log == "kmsg":
        return logs.of_kmsg("/dev/kmsg", memory)
    if site.kernel_log == "journal":
        return logs.of_journal(memory, 10.0)
    return _file_lines(site.kernel_log, memory)


def _file_lines(path: str, memory: dict[str, Any]) -> Iterable[logs.Line]:
    booted_at = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    return logs.of_file(path, memory, booted_at)


def _boot_id() -> str:
    return Path(_BOOT_ID).read_text(encoding="ascii").strip()


def _alarm(*_: object) -> None:
    raise _OutOfTime


def _complain(text: str) -> None:
    print(f"health: {text}", file=sys.stderr)
