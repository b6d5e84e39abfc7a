"""Steps that a daemon passes, and the plan of its death at one of them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

DEPLOYER = (
    "claimed", "looked", "deploying", "planned together", "written", "template", "fenced", "marked", "submitted",
    "queued",
)  # fmt: skip
COMPANY = ("chunk written", "chunk marked", "chunk submitted")
"""What the deployer calls the steps of a native array."""
UPLOAD = ("begins", "began", "works", "dies too")
"""Before and after a process is started that stores pending uploads, and while it works."""
WITH_CHILDREN = frozenset({"upload dies too"})
"""Steps at which the whole host dies: all that the daemon has started, and the daemon."""
WATCHER = ("asked", "requested", "judged", "noted")
"""What deployer and watcher call their own steps."""
CALLS = (
    "probe", "submit", "submit_array", "find", "find_many", "observe", "signal", "cancel", "withdraw", "avoid",
    "find_absent",
)  # fmt: skip
"""What the scheduler is asked; `plan` is pure."""
COMMITS = (
    "acquire_lease", "add_jobs", "bind_tree", "apply_many by step_lease",
    "apply_many by result_writer", "apply_many by resume", "apply_many by stop",
    "apply_many by watcher", "begin_attempts", "bring_up_to_date", "claim_deployable", "end_leases_of",
    "make_elements_due", "note_uploaded", "release", "release_lease", "renew", "renew_lease", "renew_many",
    "set_requested_action",
)  # fmt: skip
"""Transactions: the store's function; of SHARED ones also the service that called it."""
SHARED = frozenset({"apply_many"})
REPLIES = (
    "health", "has_archive", "put_archive", "submit", "list", "get", "events", "wait", "halt", "cancel", "resume",
    "array", "halt_array", "cancel_array", "drill",
)  # fmt: skip
"""The operations of the HTTP interface."""
FILES = (
    "begun",
    "control.json",
    "elements.json",
    "environment.json",
    "launch.json",
    "manifest.yml",
    "script.sh",
    "tasks",
)
"""What a daemon writes under a hidden name and then renames."""
HEADS = ("request landed", "before claim", "after claim", "after record")
"""What happens on the cluster while the daemon lives: it has accepted a job and not yet answered, a head claims its
attempt, a learner has recorded its execution."""
AT_THE_END = frozenset({"before commit release_lease", "after commit release_lease"})
"""Steps of a daemon that was asked to end."""

AT_THE_BEGINNING = frozenset({"before commit bring_up_to_date", "after commit bring_up_to_date"})
"""Steps that only the first lives of a world pass."""


def both_sides(kind: str, names: tuple[str, ...]) -> tuple[str, ...]:
    """The moments before and after each of `names`."""
    return tuple(f"{side} {kind} {name}" for name in names for side in ("before", "after"))


NAMED = (
    *(f"deployer {name}" for name in (*DEPLOYER, *COMPANY)),
    *(f"upload {name}" for name in UPLOAD),
    *(f"watcher {name}" for name in WATCHER),
    *both_sides("call", CALLS),
    *both_sides("commit", COMMITS),
    *both_sides("reply", REPLIES),
    *(f"half of {name}" for name in FILES),
    *(f"cluster {name}" for name in HEADS),
)
"""Every step at which some daemon has to die."""
PROGRESS = tuple(
    f"after commit {name}" for name in COMMITS
    if name.startswith(("add_jobs", "apply_many", "begin_attempts", "set_requested_action"))
)  # fmt: skip
"""Steps after which a job is further than before."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Death at the `passing`-th passing of one of `targets`, or `limit_s` after the first answer, if that comes first.

    `from_beginning`: the time counts from the beginning of the life, answer or not. `prefer` is what the users should
    do now, so that the target comes ("" = as they like). `ask_to_end`: the daemon is told to end (SIGTERM) when the
    time is over, and has a moment to come to the target. `whole_host`: when the time is over, all that the daemon has
    started dies with it.
    """

    targets: frozenset[str] = frozenset()
    passing: int = 1
    limit_s: float = 1.0
    from_beginning: bool = False
    prefer: str = ""
    ask_to_end: bool = False
    whole_host: bool = False


class Steps:
    """Counts what is passed and strikes when the plan says so. Safe in every thread.

    `report` hears ``seen <name>`` at the first passing of each step, and ``died <name>`` before `strike` is called
    with the name.
    """

    def __init__(self, plan: Plan, report: Callable[[str], None], strike: Callable[[str], None]) -> None:
        self._plan, self._report, self._strike = plan, report, strike
        self._lock = threading.Lock()
        self._seen: set[str] = set()
        self._passed = 0

    def reached(self, name: str) -> None:
        """This step is reached; does not return where the plan is to die here."""
        with self._lock:
            if name not in self._seen:
                self._seen.add(name)
                self._report(f"seen {name}")
            if name not in self._plan.targets:
                return
            self._passed += 1
            if self._passed == self._plan.passing:
                self._report(f"died {name}")
                self._strike(name)
