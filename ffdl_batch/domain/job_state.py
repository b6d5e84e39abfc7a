"""The states of a training job and the only function that moves between them.

States are FfDL's, plus DEPLOYING (FfDL names it DEPLOY and never sets it) and CANCELLED. A *request* (halt,
cancel) is never a state: it stands beside the state until the scheduler and the controllers have obeyed.
"""

from __future__ import annotations

from enum import StrEnum


class JobState(StrEnum):
    """Where a job is, as its owner sees it."""

    PENDING = "PENDING"
    DEPLOYING = "DEPLOYING"
    QUEUED = "QUEUED"
    DOWNLOADING = "DOWNLOADING"
    PROCESSING = "PROCESSING"
    STORING = "STORING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    HALTED = "HALTED"
    CANCELLED = "CANCELLED"

    @property
    def is_terminal(self) -> bool:
        """Whether the job has ended. Only its owner leaves such a state: by a resume, or a halted job's by a cancel."""
        return self in TERMINAL


class Cause(StrEnum):
    """Why a state changes; decides which direction is legal."""

    PROGRESS = "progress"
    REQUEUED = "requeued"
    RESUMED = "resumed"
    CANCELLED = "cancelled"
    """The owner cancels a job that was halted. The cancel of a live job is progress to its end."""
    RESTARTED = "restarted"
    """A learner failed and was started again while the others continued: the state stays."""
    STORED = "stored"
    """The pending upload of an earlier attempt, or of a job that had ended, was stored: the state stays."""
    RESIZED = "resized"
    """The size of an elastic job changed in place: the state stays."""


class RequestedAction(StrEnum):
    """What the owner requested and the platform has not done yet."""

    NONE = "none"
    HALT = "halt"
    CANCEL = "cancel"


class IllegalTransition(ValueError):
    """A change of state that the table does not allow."""

    def __init__(self, current: JobState, target: JobState, cause: Cause) -> None:
        super().__init__(f"a job cannot go from {current} to {target} because of {cause}")
        self.current, self.target, self.cause = current, target, cause


_ORDER = (
    JobState.PENDING,
    JobState.DEPLOYING,
    JobState.QUEUED,
    JobState.DOWNLOADING,
    JobState.PROCESSING,
    JobState.STORING,
)
TERMINAL = frozenset({JobState.COMPLETED, JobState.FAILED, JobState.HALTED, JobState.CANCELLED})
LIVE = frozenset(_ORDER)
DEPLOYED = frozenset(_ORDER[2:])
"""Live states in which the scheduler has the job."""


def _table() -> dict[Cause, dict[JobState, frozenset[JobState]]]:
    """Forward jumps are legal because polling may miss states; backward is legal only when requeued."""
    forward = {state: frozenset(_ORDER[i + 1 :]) | TERMINAL for i, state in enumerate(_ORDER)}
    backward = {state: frozenset(_ORDER[: i + 1]) for i, state in enumerate(_ORDER)}
    none: dict[JobState, frozenset[JobState]] = {state: frozenset() for state in TERMINAL}
    resumed = {JobState.HALTED: frozenset({JobState.PENDING}), JobState.FAILED: frozenset({JobState.PENDING})}
    cancelled = {JobState.HALTED: frozenset({JobState.CANCELLED})}
    stays = {state: frozenset({state}) for state in DEPLOYED}
    nowhere: dict[JobState, frozenset[JobState]] = {state: frozenset() for state in JobState}
    return {
        Cause.PROGRESS: forward | none,
        Cause.REQUEUED: backward | none,
        Cause.RESUMED: nowhere | resumed,
        Cause.CANCELLED: nowhere | cancelled,
        Cause.RESTARTED: nowhere | stays,
        Cause.RESIZED: nowhere | stays,
        Cause.STORED: {state: frozenset({state}) for state in JobState},
    }


TRANSITIONS = _table()


def is_legal(current: JobState, target: JobState, cause: Cause = Cause.PROGRESS) -> bool:
    """Whether `advance` would accept this change."""
    return target in TRANSITIONS[cause][current]


def advance(current: JobState, target: JobState, cause: Cause = Cause.PROGRESS) -> JobState:
    """Return `target` if the table allows the change, else raise :class:`IllegalTransition`."""
    if not is_legal(current, target, cause):
        raise IllegalTransition(current, target, cause)
    return target
