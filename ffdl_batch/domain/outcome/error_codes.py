"""Why jobs end abnormally: FfDL's error codes, kept and extended.

Each code says who caused the fault, whose budget a retry is charged to, and what the user can do about it. S is the
platform's side, C the user's, as in FfDL.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum

from ffdl_batch.domain.outcome.continuation import GPU_HOURS, UNFIT_NODE
from ffdl_batch.host.fast_dataclass import dataclass


class Party(StrEnum):
    """Who caused a fault, or whose budget the retry is charged to."""

    USER = "user"
    PLATFORM = "platform"


@dataclass(frozen=True, slots=True)
class FaultKind:
    """One error code and what it means for the people involved."""

    code: str
    title: str
    caused_by: Party
    retry_charged_to: Party
    cure: str


def _platform(code: str, title: str, cure: str) -> FaultKind:
    return FaultKind(code, title, Party.PLATFORM, Party.PLATFORM, cure)


def _user(code: str, title: str, cure: str) -> FaultKind:
    return FaultKind(code, title, Party.USER, Party.USER, cure)


_NOT_GIVEN = "FfDL's, which no job gets here: {}"
OUT_OF_MEMORY = "C202"
TIME_LIMIT = "C203"
UNREADABLE = "C205"
UNSTORED = ("S303", "S305", UNREADABLE)
"""Codes of jobs whose results could not all be stored; they are stored later."""
NOT_STORED = frozenset({*UNSTORED, "S306"})
"""Codes of jobs that did their work: only storing it failed."""
BUDGETS = {TIME_LIMIT: "timeouts", "S111": "preemptions"} | dict.fromkeys(
    {"S106", "S110"} | UNFIT_NODE, "node_failures"
)
"""The budget of ``batch.retry`` that an attempt with this code uses."""
NORMAL = FaultKind("000", "normal operation", Party.PLATFORM, Party.PLATFORM, "nothing to do")
FAULTS: dict[str, FaultKind] = {
    kind.code: kind
    for kind in (
        _user("S100", "not enough resources", "ask for fewer GPUs, CPUs or less memory, or another partition"),
        _platform("S101", "deployment failed", "read the scheduler's message; correct the request and submit again"),
        _platform("S102", "a parameter server failed", _NOT_GIVEN.format("C201, as for every learner")),
        _user("S103", "image missing or not usable", "check the framework's image in the configuration; build it"),
        _platform("S104", "the job ended for an unknown reason", "read ffdl events and the job's log"),
        _platform(
            "S105",
            "the container runtime failed",
            "look at what the message quotes, on the node or of the image that it names",
        ),
        _platform(
            "S107",
            "the network could not be isolated",
            "the message names what to change on the node, which is the administrators'; docs/network.md",
        ),
        _platform("S106", "a controller died", "submit again; the platform is at fault"),
        _platform("S108", "a node's devices are not those of the allocation", "submit again; the node is at fault"),
        _platform("S110", "node failure", "submit again; the node is at fault"),
        _platform("S111", "preempted", "submit again, or use a partition, QOS or priority class that is not preempted"),
        _platform("S112", "the scheduler ended the job", "the message has its reason; ask the administrators"),
        _platform("S200", "the scheduler cannot be reached", "wait; the platform tries again"),
        _platform("S210", "the submission could not be queued", "submit again"),
        _user("S301", "loading the model failed", "check the model archive"),
        _user("S302", "loading the data failed", "check the data store's path, credentials and space"),
        _platform("S303", "storing results or logs failed", "check the results store and the space on both sides"),
        _platform(
            "S304", "storing failed after the job had failed", _NOT_GIVEN.format("the code of the failure is kept")
        ),
        _platform(
            "S305",
            "storing failed after a halt",
            "check the results store and the space on both sides; storing is tried again",
        ),
        _platform(
            "S306",
            "the program that moves data failed",
            "this is a fault of the platform: report it to its administrators what the message says, and submit again",
        ),
        _user("C101", "invalid manifest", "correct the manifest; ffdl validate names line and column"),
        _user("C102", "invalid model archive", "zip the model's files again"),
        _user(
            "C103",
            "bad data store, credentials or bucket",
            "check the data store of the manifest, and the secrets that it names",
        ),
        _user("C104", "bad resource specification", "correct cpus, gpus, memory or learners"),
        _user(
            "C105",
            "dependency never satisfied",
            "ffdl show the job that it waits for; where that one FAILED, resume it and then this one, else submit "
            "again without it",
        ),
        _user(
            "C106",
            "the job exceeds a quota of its tenant, or its account is missing or belongs to another tenant",
            "request fewer GPUs, or choose another account; operators see the limits with ffdl-admin tenant list",
        ),
        _user(
            "C107",
            "the image is not allowed by the image policy of the site",
            "use an image from a location that the message lists, or ask the administrators; docs/images.md",
        ),
        _user("C201", "the learner ended with an error", "read its log with ffdl logs, and correct the training"),
        _user(
            OUT_OF_MEMORY,
            "the learner ran out of memory",
            "ask for more memory, make the batch smaller, or write less into /dev/shm, which counts as memory",
        ),
        _user(TIME_LIMIT, "the time limit was reached", "ask for more time (ffdl resume --time), or write checkpoints"),
        _user("C204", "the learner used too much disk space", "ask for more (storage in the manifest), or write less"),
        _user(
            UNREADABLE,
            "results that may not be read",
            "make the entries that the message names readable (chmod -R u+rwX), and run: ffdl daemon restart",
        ),
        _user(
            "C206",
            "the GPUs were idle for longer than batch.idle permits",
            "find out with ffdl metrics and ffdl advise what the job waits for; request fewer GPUs, or set "
            "batch.idle.for to a longer time",
        ),
    )
}


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of one job: the code, and the sentence that belongs to this case."""

    code: str
    message: str

    @property
    def kind(self) -> FaultKind:
        """What the code means; an unknown code (of a newer release) reads as S104."""
        return FAULTS.get(self.code, FAULTS["S104"])

    def cure(
        self, job_id: str, *, has_checkpoint: bool, used_up: Collection[str] = (), is_settled: bool = False
    ) -> str:
        """What its owner can do about it, "" where nothing is wrong; some is said better where the job is known.

        `used_up` are the budgets of ``batch.retry`` that its chain has used up. `is_settled`: what could not be stored
        is stored by now.
        """
        if self.code == NORMAL.code:
            return ""
        if is_settled:
            return "nothing: it is stored by now"
        budget = next((name for name in (GPU_HOURS, BUDGETS.get(self.code)) if name in used_up), "")
        if budget and self.code in BUDGETS:
            where = " from its checkpoint" if has_checkpoint else ""
            resume = f"ffdl resume {job_id} continues{where} and resets the budget"
            return f"{resume}; for a larger one, submit again with more batch.retry.{budget}"
        if self.code == TIME_LIMIT and has_checkpoint:
            return f"ffdl resume --time TIME {job_id} continues from its checkpoint with more time"
        return self.kind.cure
