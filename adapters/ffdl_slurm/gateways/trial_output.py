"""What sbatch answers to a trial. Pure."""

from __future__ import annotations

import re
import time

from ffdl_batch.domain.pending.explanation import Foretold
from ffdl_slurm.observing.parsers import parse_time

_TRIAL = re.compile(r"to start at (\S+)(?: [ap])? using .*? on nodes? (\S+)", re.IGNORECASE)
_PREEMPTS = re.compile(r"Preempts: (\S+)")


def in_local_time(text: str) -> str:
    """An answer whose start is in seconds since the epoch, with the same moment by this machine's clock."""
    match = _TRIAL.search(text)
    if match is None or not match[1].isdecimal():
        return text
    shown = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(int(match[1])))
    return f"{text[: match.start(1)]}{shown}{text[match.end(1) :]}"


def parse_trial(text: str) -> Foretold:
    """The answer of ``sbatch --test-only``, whose times are local; 26.05 says ``a`` or ``p`` behind them."""
    match, ends = _TRIAL.search(text), _PREEMPTS.search(text)
    said = " ".join(text.replace("sbatch: ", "").split())
    if match is None:
        return Foretold(said)
    return Foretold(said, parse_time(match[1]), match[2], len(ends[1].split(",")) if ends else 0)
