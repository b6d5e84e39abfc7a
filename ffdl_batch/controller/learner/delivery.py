"""Who in a learner's process tree gets a signal.

``bash -c eval "…"`` dies of a signal that it does not catch and passes nothing to its child; a container runtime
written in Go catches every signal. So neither is asked: the walk starts at the learner's own shell, found by the
process id that it noted, and stops on each branch at the first process that has a handler (SigCgt).
"""

from __future__ import annotations

from typing import Collection, List, Mapping

from ffdl_batch.host.processes import Process, all_processes, catches, descendants, send, status_field


def learner_root(main: int, inner_pid: str, table: Mapping[int, Process]) -> int:
    """The process below `main` that knows itself as `inner_pid` (last number of NSpid); `main` where none does."""
    if inner_pid:
        for pid in descendants(main, table):
            numbers = status_field(pid, "NSpid").split()
            if numbers and numbers[-1] == inner_pid and (pid != main or len(numbers) == 1):
                return pid
    return main


def catching(root: int, number: int, table: Mapping[int, Process], told: Collection[int] = ()) -> List[int]:
    """On each branch below and with `root`, the first process that catches the signal; none below one that was `told`
    before."""
    children = {}  # type: dict[int, list[int]]
    for process in table.values():
        children.setdefault(process.parent, []).append(process.pid)
    found, waiting = [], [root]
    while waiting:
        pid = waiting.pop()
        if pid in told:
            continue
        if catches(pid, number):
            found.append(pid)
        else:
            waiting.extend(children.get(pid, ()))
    return sorted(found)


def deliver(main: int, inner_pid: str, number: int, told: Collection[int] = ()) -> List[int]:
    """Signal the learner whose main process is `main`; the processes that got it (none: nobody catches it).

    Nobody gets it before the user's command was reached (`inner_pid` ""): what catches it then is a container runtime.
    Nor where there is no main process any more (0).
    """
    if not inner_pid or not main:
        return []
    table = all_processes()
    return [pid for pid in catching(learner_root(main, inner_pid, table), number, table, told) if send(pid, number)]
