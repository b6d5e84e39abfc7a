"""Find the learners of this node by their agents, and print the stacks of their processes.

An agent is the shell that the contract's wrapper leaves waiting in each learner (``runtimes/learner_contract.py``).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from ffdl_batch.domain.number_text import counted
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.host.processes import Process, all_processes, name_of, read_living, session_members, status_field

NAME = "ffdl-agent"
OWN = "ffdl-"
"""Prefix of the names of agents and of their sessions' shells."""


@dataclass(frozen=True)
class Agent:
    """The agent of one learner."""

    learner: int
    pid: int
    session: int
    """The learner's session."""


def find_agents(job_id: str, attempt: int, learners: Sequence[int]) -> Dict[int, Agent]:
    """Return the agents of these learners that run on this node, by learner. Only /proc is read."""
    table, own = all_processes(), os.getuid()
    named = [process for process in table.values() if _is_own(process.pid, own) and name_of(process.pid) == NAME]
    agents = {process.pid for process in named}
    found = {}  # type: Dict[int, Agent]
    for process in sorted(named, key=lambda one: one.start_ticks):  # the last start of a learner wins
        if process.parent in agents:  # the shell of a session, forked by an agent and not renamed yet
            continue
        env = environment(process.pid)
        number = env.get("LEARNER_ID", "")
        if env.get("TRAINING_ID") != job_id or env.get("FFDL_ATTEMPT") != str(attempt) or not number.isdigit():
            continue
        if int(number) in learners:
            found[int(number)] = Agent(int(number), process.pid, process.session)
    return found


def lives(agent: Agent) -> bool:
    """Return whether the learner has not ended. Its agent ends with it, and may then be a zombie."""
    return read_living(agent.pid) is not None and name_of(agent.pid) == NAME


def members(agent: Agent, table: Mapping[int, Process]) -> List[int]:
    """Return the processes of the agent's learner without agents and sessions, parents first."""
    return [pid for pid in session_members(agent.session, table) if not name_of(pid).startswith(OWN)]


def children(pid: int) -> List[int]:
    """Return the direct children of a process; none if it does not exist."""
    text = read(f"/proc/{pid}/task/{pid}/children")
    if text is not None:
        return [int(word) for word in text.split()]
    return [process.pid for process in all_processes().values() if process.parent == pid]


def environment(pid: int) -> Dict[str, str]:
    """Return the environment with which a process was started; {} if it cannot be read."""
    text = read(f"/proc/{pid}/environ") or ""
    pairs = (one.partition("=") for one in text.split("\0"))
    return {name: value for name, sign, value in pairs if sign}


def read(path: str) -> Optional[str]:
    """Return the text of a file of /proc; None if it cannot be read."""
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


PROGRAM = "py-spy"
LIMIT_S = 20.0
YAMA = "/proc/sys/kernel/yama/ptrace_scope"


def dump(agent: Agent) -> "Tuple[str, bool]":
    """Return the stacks of one learner as text, and whether each of its Python processes has one, and one exists."""
    pids = members(agent, all_processes())
    found = [pid for pid in pids if _is_python(pid)]
    parts, complete = [], bool(found)
    program = find_program()
    for pid in found or pids[-1:]:
        stack, why = _ask(program, pid) if found else ("", "it is not a Python program")
        complete = complete and bool(stack)
        head = f"process {pid}, {_pid_inside(pid)} inside: {_command(pid)}"
        parts.append(f"{head}\n{stack}" if stack else f"{head}\nno Python stack: {why}\n{facts(pid)}")
    return "\n".join([f"learner {agent.learner} on {os.uname().nodename}:", *parts, ""]), complete


def find_program() -> str:
    """Return the path of py-spy: beside this interpreter, else on PATH; "" if there is none."""
    beside = os.path.join(os.path.dirname(sys.executable), PROGRAM)
    return beside if os.access(beside, os.X_OK) else shutil.which(PROGRAM) or ""


def _ask(program: str, pid: int) -> "Tuple[str, str]":
    """Return the stack, or why there is none."""
    if not program:
        return "", (
            f"{PROGRAM} is not installed on {os.uname().nodename}; install ffdl-batch[debug] where the nodes "
            f"see it, or {PROGRAM} anywhere on PATH"
        )
    # A process in uninterruptible sleep cannot be stopped, so it is read while it runs.
    ways = [[], ["--nonblocking"]]  # type: List[List[str]]
    failure = ""
    for options in ways[status_field(pid, "State").startswith("D") :]:
        argv = [program, "dump", "--pid", str(pid), *options]
        try:
            done = subprocess.run(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                timeout=LIMIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            failure = f"{PROGRAM} did not end within {LIMIT_S:g} s"
            continue
        except OSError as error:
            return "", f"{program} cannot be started: {error.strerror}"
        if done.returncode == 0:
            return done.stdout.decode("utf-8", "replace").strip(), ""
        failure = f"{PROGRAM} printed: {' '.join(done.stderr.decode('utf-8', 'replace').split())}"
        break
    return "", failure + _why_refused(pid)


def _why_refused(pid: int) -> str:
    """Return what forbids reading the process, if that is known (ptrace(2), 'Ptrace access mode checking')."""
    try:
        if os.stat(f"/proc/{pid}").st_uid != os.getuid():
            return "; the process made itself undumpable or belongs to another user, so only root may read it"
    except OSError:
        return "; it has ended"
    scope = (read(YAMA) or "0").strip()
    if scope != "0":
        return (
            f"; {YAMA} is {scope} on this node; users may read their processes only if it is 0, or if the learner is "
            "in a user namespace of its own"
        )
    return ""


def facts(pid: int) -> str:
    """Return the threads of a process: name, state, and the kernel function in which each sleeps."""
    try:
        threads = sorted(int(name) for name in os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return "  it has ended"
    lines = [f"  {status_field(pid, 'State')}, {counted(len(threads), 'thread')}"]
    for thread in threads:
        base = f"/proc/{pid}/task/{thread}"
        text = read(f"{base}/stat") or "0 () ?"
        state = text[text.rindex(")") + 2 :][:1]
        where = (read(f"{base}/wchan") or "").strip()
        kernel = f" in {where}" if where not in ("", "0") else ""
        lines.append(f"  thread {thread} {(read(f'{base}/comm') or '').strip()!r}: {state}{kernel}")
    return "\n".join(lines)


def _is_python(pid: int) -> bool:
    try:
        if os.path.basename(os.readlink(f"/proc/{pid}/exe")).startswith("python"):
            return True
    except OSError:
        return False
    return "/libpython" in (read(f"/proc/{pid}/maps") or "")


def _pid_inside(pid: int) -> str:
    numbers = status_field(pid, "NSpid").split()
    return numbers[-1] if numbers else str(pid)


def _command(pid: int) -> str:
    words: List[str] = (read(f"/proc/{pid}/cmdline") or "").split("\0")
    return " ".join(" ".join(words).split())[:200]
