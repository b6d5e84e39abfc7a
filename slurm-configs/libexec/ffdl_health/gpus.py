"""Checks GPUs with nvidia-smi: error counters, retired pages, and missing GPUs.

A counter that grew since the last check is a finding. The first check only records the counters.
"""

from __future__ import annotations

import re
import time
from typing import Any, Iterator

from . import bounded, pci
from .findings import Finding

TIMEOUT_S = 10.0
PROGRAM = "nvidia-smi"
_FIELDS = ("pci.bus_id", "ecc.errors.uncorrected.volatile.total", "retired_pages.pending")
_QUERY = (PROGRAM, f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader,nounits")
_ROWS = ("gpu_bus_id", "remapped_rows.pending", "remapped_rows.failure")
_QUERY_ROWS = (PROGRAM, f"--query-remapped-rows={','.join(_ROWS)}", "--format=csv,noheader")
_FAULT = re.compile(r"Yes|[1-9][0-9]*|\[.*(?:[Ee]rror|lost|reset).*\]")
"""Matches the value of a column that shows a fault: "Yes", a count, or an error in brackets."""
_FELL_OFF = 15
"""nvidia-smi(1), RETURN VALUE: a GPU has fallen off the bus or has otherwise become inaccessible."""
_NOT_FOUND = 6
"""nvidia-smi(1), RETURN VALUE: a query to find an object was unsuccessful."""
_ADDRESS = re.compile(r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}")
_LINK = re.compile(r"\s+Link (\d+): (Replay|Recovery|CRC)[A-Za-z ]* Errors?: (\d+)")
_MANY = 100
"""Links repeat some transfers after errors in normal operation. This many errors between two checks are a finding."""


def look(memory: dict[str, Any], timeout_s: float = TIMEOUT_S) -> Iterator[Finding]:
    """Yield findings about the GPUs of this node; none if nvidia-smi is not installed. Raises OSError."""
    if not bounded.is_installed(PROGRAM):
        return
    stuck = memory.setdefault("stuck", {})
    hung_before = PROGRAM in stuck
    answer = bounded.ask_once(PROGRAM, _QUERY, timeout_s, stuck)
    if answer is None and hung_before and PROGRAM in stuck:
        text = "an nvidia-smi of an earlier check cannot be killed: a GPU or its driver hangs"
        yield Finding(time.time(), "gpu", "", text, badly=True, standing="gpu:hangs")
        return
    if answer is None:  # this also happens on a busy node
        text = f"nvidia-smi did not answer within {timeout_s:g} s"
        yield Finding(time.time(), "gpu", "", text, standing="gpu:slow")
        return
    rows = _rows(answer.text, len(_FIELDS)) if answer.status == 0 else []
    yield from _missing(answer, len(rows), memory)
    if not rows:
        return
    for device, errors, pending in rows:
        yield from _grown(memory, "ecc", device, errors)
        if pending == "Yes":
            text = "pages are to be retired: the GPU wants a reset"
            yield Finding(time.time(), "ecc", device, text, standing=f"gpu:{device}:pages")
    yield from _remapped(stuck, timeout_s)
    yield from _links(memory, stuck, timeout_s)


def is_faulty(device: str, timeout_s: float = TIMEOUT_S) -> bool:
    """Return whether nvidia-smi does not list the GPU at this PCI address, or reports an error of it.

    An nvidia-smi that does not answer does not prove a fault, because the node may be busy. Nor does one that the
    kernel kills for lack of memory, which users can cause, or one that does not fit the driver. Raises OSError.
    """
    if not bounded.is_installed(PROGRAM):
        return False
    answer = bounded.ask(_QUERY, timeout_s)
    if answer.status != 0:
        named = {pci.address(found) for found in _ADDRESS.findall(answer.text)}
        return answer.status in (_NOT_FOUND, _FELL_OFF) or device in named
    rows = [row for row in _rows(answer.text, len(_FIELDS)) if pci.address(row[0]) == device]
    remapped = _rows(bounded.ask(_QUERY_ROWS, timeout_s).text, len(_ROWS))
    rows += [row for row in remapped if rows and pci.address(row[0]) == device]
    return not rows or any(_FAULT.fullmatch(cell) for row in rows for cell in row[1:])


def _missing(answer: bounded.Answer, count: int, memory: dict[str, Any]) -> Iterator[Finding]:
    """Yield a finding if GPUs of an earlier check are missing. A node with nvidia-smi but without GPUs is not sick."""
    before = int(memory.get("count", 0))
    memory["count"] = max(before, count)
    if answer.status == _FELL_OFF or count < before:
        said = " ".join(answer.text.split())[:200] if answer.status else f"{count} answer"
        text = f"nvidia-smi saw {before} GPUs before, now: {said}" if before else f"nvidia-smi: {said}"
        yield Finding(time.time(), "gpu", "", text, badly=True, standing="gpu:missing")


def _grown(memory: dict[str, Any], name: str, device: str, text: str) -> Iterator[Finding]:
    if not text.isdecimal():  # [N/A]: the GPU has no such counter
        return
    counts, now = memory.setdefault(name, {}), int(text)
    before = counts.get(device, now)
    counts[device] = now
    if now > before:
        text = f"uncorrected ECC errors: {now}, {before} before"
        yield Finding(time.time(), "ecc", device, text)


def _remapped(stuck: dict[str, list[int]], timeout_s: float) -> Iterator[Finding]:
    answer = bounded.ask_once("remapped", _QUERY_ROWS, timeout_s, stuck)
    for device, pending, failed in _rows(answer.text, len(_ROWS)) if answer and answer.status == 0 else []:
        if failed in ("Yes", "1"):
            text = "rows of its memory could not be remapped: the GPU is to be replaced"
            yield Finding(time.time(), "ecc", device, text, badly=True, standing=f"gpu:{device}:rows-failed")
        elif pending in ("Yes", "1"):
            text = "rows of its memory are to be remapped: the GPU wants a reset"
            yield Finding(time.time(), "ecc", device, text, standing=f"gpu:{device}:rows")


def _links(memory: dict[str, Any], stuck: dict[str, list[int]], timeout_s: float) -> Iterator[Finding]:
    answer = bounded.ask_once("nvlink", [PROGRAM, "nvlink", "--errorcounters"], timeout_s, stuck)
    counts, gpu = memory.setdefault("links", {}), ""
    for line in answer.text.splitlines() if answer and answer.status == 0 else []:
        if line.startswith("GPU "):
            gpu = line.partition(":")[0]
        found = _LINK.match(line)
        if found is None:
            continue
        name, now = f"{gpu} link {found.group(1)} {found.group(2)}", int(found.group(3))
        before = counts.get(name, now)
        counts[name] = now
        if now - before >= (1 if found.group(2) == "Recovery" else _MANY):
            text = f"{found.group(2)} errors of NVLink {found.group(1)}: {now}, {before} before"
            yield Finding(time.time(), "nvlink", gpu, text)


def _rows(text: str, columns: int) -> list[list[str]]:
    found = [[cell.strip() for cell in line.split(",")] for line in text.splitlines()]
    return [row for row in found if len(row) == columns]
