"""Finds learners on this node by their agents, the shells that the contract's wrapper leaves waiting in each of them
(``runtimes/learner_contract.py``)."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Dict, List, Mapping, Optional, Sequence

from ffdl_batch.host.processes import Process, all_processes, read_process, session_members

NAME = "ffdl-agent"
OWN = "ffdl-"
"""How the names of agents and of their sessions' shells begin."""


@dataclass(frozen=True)
class Agent:
    """The agent of one learner; `session` is the learner's."""

    learner: int
    pid: int
    session: int


def find_agents(job_id: str, attempt: int, learners: Sequence[int]) -> Dict[int, Agent]:
    """Those of these learners that run here, by learner. Looks at /proc alone."""
    table, own = all_processes(), os.getuid()
    named = [process for process in table.values() if _is_own(process.pid, own) and comm(process.pid) == NAME]
    agents = {process.pid for process in named}
    found = {}  # type: Dict[int, Agent]
    for process in sorted(named, key=lambda one: one.start_ticks):  # the last start of a learner counts
        if process.parent in agents:  # the shell of a session, which an agent has just forked and not renamed yet
            continue
        env = environment(process.pid)
        number = env.get("LEARNER_ID", "")
        if env.get("TRAINING_ID") != job_id or env.get("FFDL_ATTEMPT") != str(attempt) or not number.isdigit():
            continue
        if int(number) in learners:
            found[int(number)] = Agent(int(number), process.pid, process.session)
    return found


def lives(agent: Agent) -> bool:
    """Whether the learner has not ended: its agent ends with it, and may lie about as a zombie then."""
    process = read_process(agent.pid)
    return process is not None and process.state not in "ZX" and comm(agent.pid) == NAME


def members(agent: Agent, table: Mapping[int, Process]) -> List[int]:
    """The processes of the agent's learner without those that serve debugging, parents first."""
    return [pid for pid in session_members(agent.session, table) if not comm(pid).startswith(OWN)]


def children(pid: int) -> List[int]:
    """Direct children of a process; none where it is gone."""
    text = read(f"/proc/{pid}/task/{pid}/children")
    if text is not None:
        return [int(word) for word in text.split()]
    return [process.pid for process in all_processes().values() if process.parent == pid]


def comm(pid: int) -> str:
    """The name of a process; "" where it is gone."""
    return (read(f"/proc/{pid}/comm") or "").strip()


def environment(pid: int) -> Dict[str, str]:
    """The variables that a process was started with; none where they cannot be read."""
    text = read(f"/proc/{pid}/environ") or ""
    pairs = (one.partition("=") for one in text.split("\0"))
    return {name: value for name, sign, value in pairs if sign}


def read(path: str) -> Optional[str]:
    """The text of a file of /proc; None where it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return None


def _is_own(pid: int, uid: int) -> bool:
    try:
        return os.stat(f"/proc/{pid}").st_uid == uid
    except OSError:
        return False
