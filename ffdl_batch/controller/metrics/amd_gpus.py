"""Measure the use of AMD GPUs with rocm-smi."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from typing import List, Mapping, Optional, Sequence, Set, Tuple

from ffdl_batch.domain.metrics.usage import GpuUse
from ffdl_batch.domain.untrusted_json import parse_json

PROGRAM, ROCM = "rocm-smi", "/opt/rocm/bin"
OPTIONS = ("--showuse", "--showmeminfo", "vram", "--showbus", "--showuniqueid", "--json")
RUN_S = 30.0
DRI, DRM = "/dev/dri", "/sys/class/drm"
BUSY, USED, TOTAL = "GPU use (%)", "VRAM Total Used Memory (B)", "VRAM Total Memory (B)"
Card = Mapping[str, object]


class AmdGpus:
    """Reads the GPUs of a node's learners.

    rocm-smi lists all GPUs of the node, also those of other jobs. The scheduler's numbers are positions among the GPUs
    that this job may open, in the order of PCI addresses. If a number is too large, they are positions among all GPUs.
    """

    def __init__(self, named: Sequence[Tuple[str, int]], program: str, dri: str = DRI, drm: str = DRM) -> None:
        """`named` has the scheduler's name of each GPU, a number or ``GPU-<unique id>``, and its learner."""
        self._named, self._program, self._dri, self._drm = named, program, dri, drm

    def read(self) -> Tuple[GpuUse, ...]:
        """Return the use of each GPU that rocm-smi lists; none if it fails."""
        try:
            done = subprocess.run(
                [self._program, *OPTIONS], stdin=subprocess.DEVNULL, capture_output=True, timeout=RUN_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired):  # it may hang with its driver; the next sample tries again
            return ()
        cards = parse_cards(done.stdout.decode("utf-8", "replace"))
        own = open_addresses(self._dri, self._drm)
        return tuple(_use(name, learner, card) for name, learner, card in find_cards(self._named, cards, own))


def find_cards(named: Sequence[Tuple[str, int]], cards: List[Card], own: Set[str]) -> List[Tuple[str, int, Card]]:
    """Return the GPU of each name, with name and learner, as :class:`AmdGpus`. `own` has the PCI addresses of the GPUs
    that the job may open."""
    counted = [card for card in cards if _address(card) in own]
    if len(counted) <= max((int(name) for name, _ in named if name.isdecimal()), default=-1):
        counted = cards
    by_id = {_unique_id(card): card for card in cards}
    found = []
    for name, learner in named:
        at = int(name) if name.isdecimal() else -1
        card = counted[at] if 0 <= at < len(counted) else by_id.get(name.rpartition("-")[2].lower())
        if card is not None:
            found.append((name, learner, card))
    return found


def find_program() -> str:
    """Return the path of rocm-smi; "" if it is not installed."""
    path = os.pathsep.join((os.environ.get("PATH", os.defpath), ROCM))
    return shutil.which(PROGRAM, path=path) or ""


def parse_cards(text: str) -> List[Card]:
    """Return the GPUs in the output of ``rocm-smi --json`` by PCI address; [] if it has none. Warnings may come before
    the object."""
    try:
        body = parse_json(text[text.index("{") :])
    except ValueError:
        return []
    named = body.items() if isinstance(body, dict) else ()
    cards = {name: card for name, card in named if re.fullmatch(r"card\d+", name) and isinstance(card, dict)}
    return sorted((cards[name] for name in sorted(cards, key=lambda name: int(name[4:]))), key=_address)


def open_addresses(dri: str = DRI, drm: str = DRM) -> Set[str]:
    """Return the PCI addresses of the GPUs that this process may open. A control group may deny others (access(2))."""
    try:
        names = [name for name in os.listdir(dri) if name.startswith("renderD")]
    except OSError:
        return set()
    return {
        os.path.basename(os.path.realpath(os.path.join(drm, name, "device"))).lower()
        for name in names
        if os.access(os.path.join(dri, name), os.R_OK)
    }


def _address(card: Card) -> str:
    return str(card.get("PCI Bus", "")).lower()


def _unique_id(card: Card) -> str:
    text = str(card.get("Unique ID", "")).lower()
    return text[2:] if text.startswith("0x") else text


def _use(name: str, learner: int, card: Card) -> GpuUse:
    busy = read_number(card.get(BUSY))
    return GpuUse(
        name, learner, None if busy is None else busy / 100.0, read_number(card.get(USED)), read_number(card.get(TOTAL))
    )


def read_number(value: object) -> Optional[int]:
    """Return a count, which rocm-smi writes as a string; None for "N/A"."""
    text = str(value)
    return int(text) if text.isdecimal() else None
