"""Checks the node's clock with chrony if it runs, else with the kernel."""

from __future__ import annotations

import ctypes
import time
from typing import Any, Iterator

from . import bounded
from .findings import Finding

TIMEOUT_S = 5.0
_UNSYNCHRONISED = 5
"""adjtimex(2): TIME_ERROR."""


def look(most_s: float, memory: dict[str, Any], timeout_s: float = TIMEOUT_S) -> Iterator[Finding]:
    """Yield a finding if the clock is more than `most_s` off, or is not synchronised."""
    wrong = _by_chrony(most_s, memory.setdefault("stuck", {}), timeout_s)
    if wrong is None:
        wrong = "the kernel's clock is not synchronised (adjtimex)" if _is_adrift() else ""
    if wrong:
        yield Finding(time.time(), "clock", "", wrong, standing="clock")


def _by_chrony(most_s: float, stuck: dict[str, list[int]], timeout_s: float) -> str | None:
    """Return what is wrong; "" if nothing is; None if chrony gives no answer (`chronyc tracking`)."""
    if not bounded.is_installed("chronyc"):
        return None
    answer = bounded.ask_once("chronyc", ["chronyc", "-n", "-c", "tracking"], timeout_s, stuck)
    fields = answer.text.strip().split(",") if answer is not None and answer.status == 0 else []
    if len(fields) < 14:
        return None
    if fields[-1] == "Not synchronised":
        return "chrony has no time server that it believes"
    try:
        off_s = abs(float(fields[4]))
    except ValueError:
        return None
    return f"the clock is {off_s:.3f} s off, says chrony" if off_s > most_s else ""


def _is_adrift() -> bool:
    """Return whether the kernel reports its clock as not synchronised."""
    library = ctypes.CDLL(None, use_errno=True)
    answer: int = library.adjtimex(ctypes.create_string_buffer(512))  # struct timex, modes 0: reads
    return answer == _UNSYNCHRONISED
