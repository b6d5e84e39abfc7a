"""Find the learners of this node, and run commands, tables of processes and stacks for the command that asks.

A table shows CPU, memory, and GPUs if the learner has nvidia-smi or rocm-smi. Nothing is measured until a command asks.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import sys
import time
from typing import Any, Dict, List, Optional, Sequence, Tuple

from ffdl_batch.controller.attach.session import NoSession, start
from ffdl_batch.controller.attach.session_relay import Peer, PeerGone, Running, collect
from ffdl_batch.controller.learner.agents import Agent, dump, environment, find_agents, lives, members, read
from ffdl_batch.controller.metrics.amd_gpus import (
    BUSY,
    DRI,
    DRM,
    OPTIONS,
    PROGRAM,
    ROCM,
    TOTAL,
    USED,
    find_cards,
    parse_cards,
    read_number,
)
from ffdl_batch.domain.launch.attach_protocol import (
    BEGIN,
    LOOK,
    OUTPUT,
    PIECE_BYTES,
    READY,
    RUN,
    STACK,
    TABLE,
    TOP,
    FrameError,
)
from ffdl_batch.host.processes import all_processes, name_of, status_field

FIRST_S = 0.5
"""Seconds over which CPU use is measured for the first table."""
SMI_S = 10.0
_TICKS, _PAGE = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
_CUT = 400
_GPUS = ("index", "name", "utilization.gpu", "memory.used", "memory.total")
_FORM = "--format=csv,noheader,nounits"
_SMI = ("nvidia-smi --query-gpu=%s %s && echo && nvidia-smi --query-compute-apps=pid,used_gpu_memory %s") % (
    ",".join(_GPUS),
    _FORM,
    _FORM,
)
"""Command that runs in the learner and prints its GPUs, an empty line and processes (nvidia-smi --help-query-gpu)."""
_ROCM = (
    'PATH="$PATH:%s"; %s %s --showproductname && echo && for file in %s/renderD*; do '
    '[ -r "$file" ] && readlink -f "%s/${file##*/}/device"; done; :'
) % (ROCM, PROGRAM, " ".join(OPTIONS), DRI, DRM)
"""Command that prints the node's GPUs, an empty line and the PCI devices of the GPUs that the learner may open."""
_SERIES = ("Card Series", "Card series", "Card Model", "Card model")
"""The names that releases of rocm-smi give to the product."""
_VISIBLE = ("ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
_WRAPPED, _OWN_COMMAND = "_ffdl_agent", "TRAINING_COMMAND"
"""A word in the contract's wrapper, and the variable that the wrapper evaluates (``runtimes/learner_contract.py``)."""
Fields = Dict[str, Any]


class LearnerTable:
    """Measures one learner repeatedly."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._before = {}  # type: Dict[int, Tuple[float, float]]
        variables = environment(agent.pid)
        self._names = next((variables[name] for name in _VISIBLE if variables.get(name)), "")
        self._commands = [_SMI, _ROCM] if self._names else []

    @property
    def is_over(self) -> bool:
        """Return whether the learner has ended."""
        return not lives(self._agent)

    def look(self) -> Fields:
        """Return all processes of the learner, those with most CPU use first, and its GPUs."""
        if not self._before:
            self._sample()
            time.sleep(FIRST_S)
        rows = self._sample()
        gpus, used = self._ask_gpus()
        for row in rows:
            row["gpu_memory_bytes"] = used.get(row["pid"], used.get(row["pid_inside"]))
        rows.sort(key=lambda row: (-row["cpu_percent"], -row["memory_bytes"], row["pid"]))
        return {"learner": self._agent.learner, "processes": rows, "gpus": gpus}

    def _sample(self) -> List[Fields]:
        now, table = time.monotonic(), all_processes()
        before, self._before, rows = self._before, {}, []
        for pid in members(self._agent, table):
            row = _row(pid)
            if row is None:
                continue
            spent_s = row.pop("cpu_s")
            self._before[pid] = now, spent_s
            at, earlier_s = before.get(pid, (now, spent_s))
            row["cpu_percent"] = round(100 * max(0.0, spent_s - earlier_s) / (now - at), 1) if now > at else 0.0
            rows.append(row)
        return rows

    def _ask_gpus(self) -> "Tuple[List[Fields], Dict[int, int]]":
        """Ask by each command until one succeeds, and from then on by this one."""
        for command in self._commands:
            try:
                status, text = collect(start(self._agent, ["bash", "-c", command], {}), SMI_S)
            except NoSession:
                return [], {}
            printed = text.decode("utf-8", "replace")
            found = parse_smi(printed) if command == _SMI else (parse_rocm(printed, self._names), {})
            if status == 0 and (command == _SMI or found[0]):
                self._commands = [command]
                return found
        self._commands = []
        return [], {}


def parse_rocm(text: str, names: str) -> List[Fields]:
    """Return the GPUs of a learner in the output of rocm-smi, by the names that the scheduler gave it."""
    printed, _, devices = text.rpartition("\n\n")
    own = {os.path.basename(line.strip()).lower() for line in devices.splitlines()}
    named = [(name.strip(), 0) for name in names.split(",") if name.strip()]
    return [
        {
            "index": name,
            "name": next((str(card[key]) for key in _SERIES if card.get(key)), "AMD GPU"),
            "busy_percent": read_number(card.get(BUSY)),
            "used_bytes": read_number(card.get(USED)),
            "total_bytes": read_number(card.get(TOTAL)),
        }
        for name, _, card in find_cards(named, parse_cards(printed), own)
    ]


def parse_smi(text: str) -> "Tuple[List[Fields], Dict[int, int]]":
    """Return the GPUs in the output of nvidia-smi, and the GPU memory of each process in bytes.

    Unknown numbers are None.
    """
    cards, _, programs = text.partition("\n\n")
    gpus = []
    for line in cards.splitlines():
        words = [word.strip() for word in line.split(",")]
        if len(words) == len(_GPUS):
            busy, used, total = (_number(word) for word in words[2:])
            gpus.append(
                {
                    "index": words[0],
                    "name": words[1],
                    "busy_percent": busy,
                    "used_bytes": _mib(used),
                    "total_bytes": _mib(total),
                }
            )
    use = {}  # type: Dict[int, int]
    for line in programs.splitlines():
        pid, _, mib = (word.strip() for word in line.partition(","))
        if pid.isdigit():
            use[int(pid)] = use.get(int(pid), 0) + (_mib(_number(mib)) or 0)
    return gpus, use


def _number(word: str) -> Optional[int]:
    return int(word) if word.isdigit() else None


def _mib(number: Optional[int]) -> Optional[int]:
    return None if number is None else number << 20


def _row(pid: int) -> Optional[Fields]:
    text = read(f"/proc/{pid}/stat")
    if text is None:
        return None
    rest = text[text.rindex(")") + 2 :].split()
    inside = status_field(pid, "NSpid").split()
    return {
        "pid": pid,
        "pid_inside": int(inside[-1]) if inside else pid,
        "name": name_of(pid),
        "state": rest[0],
        "threads": int(rest[17]),
        "cpu_s": (int(rest[11]) + int(rest[12])) / _TICKS,
        "memory_bytes": int(rest[21]) * _PAGE,
        "command": " ".join(_command(pid).split())[:_CUT],
    }


def _command(pid: int) -> str:
    """Return the command line of a process. The manifest's command replaces the contract's wrapper in it."""
    words = (read(f"/proc/{pid}/cmdline") or "").split("\0")
    if any(_WRAPPED in word for word in words):
        own = environment(pid).get(_OWN_COMMAND) or "..."
        words = [own if _WRAPPED in word else word for word in words]
    return " ".join(words)


PATIENCE_S = 5.0
"""Seconds to wait for a learner, whose job is PROCESSING a moment before it starts."""
EXIT_GONE, EXIT_REFUSED = 0, 69


def main(arguments: Sequence[str]) -> int:
    """Serve the command that asks. Return the exit code."""
    parser = argparse.ArgumentParser(prog="ffdl-controller attach")
    parser.add_argument("--job", required=True, help="the job's id")
    parser.add_argument("--attempt", required=True, type=int, help="the attempt that runs")
    parser.add_argument("--learners", required=True, help="numbers, with commas between")
    options = parser.parse_args(arguments)
    return attach(options.job, options.attempt, [int(number) for number in options.learners.split(",")])


def attach(job_id: str, attempt: int, learners: Sequence[int]) -> int:
    """Serve one command. Return the exit code of this program."""
    peer = Peer()
    try:
        wanted = _await_request(peer)
        agents = await_agents(job_id, attempt, learners)
        if not agents:
            peer.refuse(describe_absent(job_id, attempt, learners))
            return EXIT_REFUSED
        peer.send_object(READY, {"host": os.uname().nodename, "learners": sorted(agents)})
        return _serve(peer, wanted, [agents[number] for number in sorted(agents)])
    except NoSession as error:
        peer.refuse(str(error))
        return EXIT_REFUSED
    except (PeerGone, FrameError) as error:
        if str(error):
            sys.stderr.write(f"ffdl-controller: {error}\n")
        return EXIT_GONE


def _await_request(peer: Peer) -> Dict[str, Any]:
    while True:
        frames = peer.frames()
        for at, (kind, payload) in enumerate(frames):
            if kind == BEGIN:
                peer.keep(frames[at + 1 :])
                found = json.loads(payload)
                return found if isinstance(found, dict) else {}


def describe_absent(job_id: str, attempt: int, learners: Sequence[int]) -> str:
    """Return why the learners cannot be found."""
    named = ", ".join(map(str, learners))
    return (
        f"learner {named} of attempt {attempt} of {job_id} cannot be entered on {os.uname().nodename}: it has ended, "
        "its agent was killed, or an earlier release of this program started it"
    )


def await_agents(job_id: str, attempt: int, learners: Sequence[int]) -> Dict[int, Agent]:
    """Return the agents of these learners, by learner, after waiting up to PATIENCE_S seconds for all."""
    end = time.monotonic() + PATIENCE_S
    while True:
        found = find_agents(job_id, attempt, learners)
        if len(found) == len(set(learners)) or time.monotonic() > end:
            return found
        time.sleep(0.1)


def _serve(peer: Peer, wanted: Dict[str, Any], agents: List[Agent]) -> int:
    kind = wanted.get("do")
    if kind == TOP:
        return _glance(peer, agents)
    if kind == STACK:
        found = [dump(agent) for agent in agents]
        for text, _ in found:
            _print(peer, text)
        peer.end(0 if all(complete for _, complete in found) else 1)
        return 0
    if kind != RUN:
        peer.refuse(
            f"this release of ffdl-controller cannot do {kind!r}; ffdl daemon restart, if the daemon's is older"
        )
        return EXIT_REFUSED
    return _run(peer, wanted, agents[0])


def _run(peer: Peer, wanted: Dict[str, Any], agent: Agent) -> int:
    window = wanted.get("window")
    session = start(
        agent,
        [str(word) for word in wanted.get("argv", ())],
        {str(name): str(value) for name, value in wanted.get("env", {}).items()},
        (int(window[0]), int(window[1])) if window else None,
    )
    status = Running(session, peer, agent).run()
    if status is None:
        peer.refuse(f"learner {agent.learner} has ended, and with it what ran in it")
        return EXIT_REFUSED
    peer.end(status)
    return 0


def _glance(peer: Peer, agents: List[Agent]) -> int:
    """Send a table for each request while a learner runs. Raises PeerGone, FrameError."""
    looks = [LearnerTable(agent) for agent in agents]
    while True:
        poll = select.poll()
        poll.register(peer.source, select.POLLIN)
        if (peer.has_frames or poll.poll(1000)) and any(kind == LOOK for kind, _ in peer.frames()):
            looks = [one for one in looks if not one.is_over]
            if not looks:
                peer.refuse(f"no learner of the job runs on {os.uname().nodename} any more")
                return EXIT_REFUSED
            learners = [one.look() for one in looks]
            peer.send_object(TABLE, {"host": os.uname().nodename, "learners": learners})
        peer.check()


def _print(peer: Peer, text: str) -> None:
    data = text.encode("utf-8", "replace")
    for at in range(0, len(data), PIECE_BYTES):
        peer.send(OUTPUT, data[at : at + PIECE_BYTES])
