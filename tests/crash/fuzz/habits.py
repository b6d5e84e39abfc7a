"""How the users of a world are, and how they reach its daemons."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import field

from ffdl_batch.client.connection.daemon_start import Dialling
from ffdl_batch.client.connection.http_client import Channel
from ffdl_batch.client.errors import DaemonUnreachable
from ffdl_batch.host.fast_dataclass import dataclass

DIAL_S = 120.0
"""How long somebody waits for the next daemon."""
DIAL_PAUSE_S = 0.005
VERBS = {
    "submit": 5, "list": 2, "get": 3, "events": 1, "wait": 1, "halt": 4, "resume": 4, "cancel": 2, "archive": 1,
    "depend": 1, "regret": 1, "array": 2, "array_get": 1, "array_halt": 1, "array_cancel": 1, "drill": 2,
}  # fmt: skip
"""How often each is done, beside each other."""
VERBS_WITH_SLURM = {**VERBS, "list": 1, "get": 1, "wait": 0, "archive": 0, "halt": 3, "cancel": 1, "drill": 3}
"""The same where jobs take seconds: less of what only asks, and of what ends them before they run."""
LASTING = "lasting"
"""The fate of a job that trains for long enough to be seen doing so."""
SWEEP = "sweep"
"""The manifest of one that needs no option to be an array, of SWEPT jobs."""
SWEPT = 3


@dataclass(frozen=True, slots=True)
class Habits:
    """How the users of one world are. `manifests` are by fate (and SWEEP), `live` is how many jobs one user has at once
    at most, `patience_s` how long one waits for a job to train, `verbs` how often each verb is done."""

    threads: int
    live: int
    pause_s: float
    manifests: Mapping[str, str]
    fates: Mapping[str, int]
    environ: Mapping[str, str]
    directory: str
    patience_s: float = 0.4
    verbs: Mapping[str, int] = field(default_factory=lambda: VERBS)


@dataclass(frozen=True, slots=True)
class Patient(Dialling):
    """Starts no daemon, but waits for one."""

    def dial(self) -> Channel:
        """See :class:`~ffdl_batch.client.connection.daemon_start.Dialling`."""
        deadline = time.monotonic() + DIAL_S
        while True:
            try:
                return Dialling.dial(self)
            except DaemonUnreachable:
                if time.monotonic() > deadline:
                    raise
                time.sleep(DIAL_PAUSE_S)
