"""What the processes of a learner use right now: CPU, memory, and GPUs where the learner has nvidia-smi. It works when
somebody looks, and not in between."""

from __future__ import annotations

import os
import time
from typing import Any, Dict, List, Optional, Tuple

from ffdl_batch.controller.attach.session import NoSession, start
from ffdl_batch.controller.attach.session_relay import collect
from ffdl_batch.controller.learner.agents import Agent, comm, environment, lives, members, read
from ffdl_batch.host.processes import all_processes, status_field

FIRST_S = 0.5
"""Over which time the use of CPUs is measured at the first look."""
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
"""In the learner, where its own devices are seen: cards, an empty line, processes (nvidia-smi --help-query-gpu)."""
_WRAPPED, _OWN_COMMAND = "_ffdl_agent", "TRAINING_COMMAND"
"""What the contract's wrapper is known by, and the variable that it evaluates (``runtimes/learner_contract.py``)."""
Fields = Dict[str, Any]


class Glance:
    """Looks at one learner again and again."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._before = {}  # type: Dict[int, Tuple[float, float]]
        self._has_gpus = bool(environment(agent.pid).get("CUDA_VISIBLE_DEVICES"))

    @property
    def is_over(self) -> bool:
        """Whether the learner has ended."""
        return not lives(self._agent)

    def look(self) -> Fields:
        """All processes of the learner that is there, those that use most CPU first."""
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
        if not self._has_gpus:
            return [], {}
        try:
            status, text = collect(start(self._agent, ["bash", "-c", _SMI], {}), SMI_S)
        except NoSession:
            return [], {}
        self._has_gpus = status == 0
        return parse_smi(text.decode("utf-8", "replace")) if status == 0 else ([], {})


def parse_smi(text: str) -> "Tuple[List[Fields], Dict[int, int]]":
    """The cards, and the bytes that each process has on them, by what nvidia-smi printed. Numbers that it does not
    know are None."""
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
        "name": comm(pid),
        "state": rest[0],
        "threads": int(rest[17]),
        "cpu_s": (int(rest[11]) + int(rest[12])) / _TICKS,
        "memory_bytes": int(rest[21]) * _PAGE,
        "command": " ".join(_command(pid).split())[:_CUT],
    }


def _command(pid: int) -> str:
    """Its words. For the shell that runs the manifest's command, and what started it, that command stands in the place
    of the text by which the platform has it run."""
    words = (read(f"/proc/{pid}/cmdline") or "").split("\0")
    if any(_WRAPPED in word for word in words):
        own = environment(pid).get(_OWN_COMMAND) or "..."
        words = [own if _WRAPPED in word else word for word in words]
    return " ".join(words)
