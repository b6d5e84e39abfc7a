"""What sbatch answers to a trial. Pure."""

from __future__ import annotations

import re

from ffdl_batch.domain.pending.explanation import Foretold
from ffdl_slurm.observing.parsers import parse_time

_TRIAL = re.compile(r"to start at (\S+)(?: [ap])? using .*? on nodes? (\S+)", re.IGNORECASE)
_PREEMPTS = re.compile(r"Preempts: (\S+)")


def parse_trial(text: str) -> Foretold:
    """The answer of ``sbatch --test-only``, whose times are local; 26.05 says ``a`` or ``p`` behind them."""
    match, ends = _TRIAL.search(text), _PREEMPTS.search(text)
    said = " ".join(text.replace("sbatch: ", "").split())
    if match is None:
        return Foretold(said)
    return Foretold(said, parse_time(match[1]), match[2], len(ends[1].split(",")) if ends else 0)
