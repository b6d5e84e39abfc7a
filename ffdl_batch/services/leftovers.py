"""What an attempt that is over left beside its events: ends that no controller saw, and that what it owed is stored."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from ffdl_batch.controller.learner.orphans import unreported_ends
from ffdl_batch.controller.record.phases import PhaseFiles
from ffdl_batch.domain.formats import require_known
from ffdl_batch.domain.jobdir import AttemptDir
from ffdl_batch.domain.known import Evidence, Known
from ffdl_batch.services.evidence import read_launch


def with_leftovers(attempt: AttemptDir, evidence: Evidence, known: Known) -> Evidence:
    """The evidence with those. Raises OSError, NewerFormat among them."""
    evidence = replace(evidence, storable=is_storable(attempt))
    paid = paid_at(attempt)
    if known.final is not None:  # the head has said how each of its learners ended
        return replace(evidence, paid=paid)
    phases = PhaseFiles(attempt.state)
    found = unreported_ends(evidence.events, phases, range(1, known.learners + 1))
    ends = [at for number in found if (at := phases.ended_at(number)) is not None]
    return replace(evidence, paid=paid, found=found, found_at=max(ends, default=None))


def is_storable(attempt: AttemptDir) -> bool:
    """Of an attempt that has ended: not of pods, where each had a tree of its own, which is gone with it, or where all
    stays in the claim's. Raises OSError."""
    launch = read_launch(attempt)
    return launch is None or launch.pod is None or (launch.stores_elsewhere and not launch.apart)


def paid_at(attempt: AttemptDir) -> float | None:
    """When everything was stored that the attempt owed; None where nobody has done that."""
    path = Path(attempt.paid)
    try:
        text, changed = path.read_text(encoding="utf-8"), path.stat().st_mtime
    except FileNotFoundError:
        return None
    try:
        body = json.loads(text)
    except ValueError:
        return changed
    if not isinstance(body, dict):
        return changed
    require_known(body, attempt.paid)
    at = body.get("at")
    return float(at) if isinstance(at, (int, float)) else changed
