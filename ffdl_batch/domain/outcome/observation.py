"""What a scheduler says about one job, in words that no scheduler owns."""

from __future__ import annotations

from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

from ffdl_batch.host.fast_dataclass import dataclass


class Phase(StrEnum):
    """A scheduler's phase. It is not the job's state, and UNKNOWN is never an end."""

    PENDING = "pending"
    RUNNING = "running"
    SUSPENDED = "suspended"
    COMPLETING = "completing"
    ENDED = "ended"
    UNKNOWN = "unknown"


class EndCause(StrEnum):
    """Why the scheduler ended a job."""

    SUCCESS = "success"
    FAILURE = "failure"
    CANCELLED = "cancelled"
    TIMEOUT = "timeout"
    OUT_OF_MEMORY = "out_of_memory"
    OUT_OF_STORAGE = "out_of_storage"
    KILLED_ITSELF = "killed_itself"
    """The learner killed all processes that it could, its controller among them."""
    NODE_FAIL = "node_fail"
    PREEMPTED = "preempted"
    LAUNCH_FAILED = "launch_failed"
    REVOKED = "revoked"
    NO_IMAGE = "no_image"


class NativeId(NamedTuple):
    """A scheduler's id: the job, and the element where the job is an array. A tuple, because each look at all live jobs
    asks for many hashes of them."""

    job: str
    task: str | None = None

    def __str__(self) -> str:
        return self.job if self.task is None else f"{self.job}_{self.task}"

    @classmethod
    @lru_cache(maxsize=32_768)  # each look at all live jobs reads the same ids
    def parse(cls, text: str) -> NativeId:
        """The inverse of ``str``."""
        job, _, task = text.partition("_")
        return cls(job, task or None)


@dataclass(frozen=True, slots=True)
class Observation:
    """One job as the scheduler shows it.

    `native_state` is the scheduler's own word, `reason` its reason for waiting or ending, `nodes` its node
    list, `restarts` how often it restarted the job under the same id, `name` the name that it knows the job by
    ("" where the backend never gives an id twice). `held_for_good`: the job waits, and the scheduler itself has decided
    never to start it again; `nowhere`: that no node fits what it asks for; `lacks`: what a part of it waits for while
    another runs, in words with what to do. Times are seconds since the epoch.
    """

    phase: Phase
    native_state: str
    end: EndCause | None = None
    exit_code: int | None = None
    exit_signal: int | None = None
    reason: str = ""
    nodes: str = ""
    restarts: int = 0
    submitted_at: float | None = None
    started_at: float | None = None
    ended_at: float | None = None
    name: str = ""
    held_for_good: bool = False
    nowhere: bool = False
    lacks: str = ""
    warning: str = ""
    """A warning for the owner that the backend found while it ran the job."""
