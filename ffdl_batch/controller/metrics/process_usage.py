"""What the processes of each learner use, by /proc (proc(5)), and what went over its network."""

from __future__ import annotations

import os
from typing import Dict, Iterable, Mapping, Optional, Tuple

from ffdl_batch.domain.metrics.usage import Use
from ffdl_batch.host.processes import Process, session_members

PROC = "/proc"
_TICKS, _PAGE = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")


class Trees:
    """Counters never go back: what a process used that has ended, and that nobody was told of, is kept."""

    def __init__(self, proc: str = PROC) -> None:
        self._proc = proc
        self._seen: Dict[int, Use] = {}

    def read(self, roots: Mapping[int, int], table: Mapping[int, Process]) -> Dict[str, Use]:
        """Of each learner, by its id; `roots` are their main processes."""
        found = {}
        for learner, root in roots.items():
            use = _later(self._seen.get(learner), self._sum(session_members(root, table)))
            self._seen[learner] = use
            found[str(learner)] = use
        return found

    def _sum(self, pids: Iterable[int]) -> Use:
        cpu_s, memory, read, written = 0.0, 0, 0, 0
        for pid in pids:
            cpu_s += self._cpu_s(pid)
            memory += self._resident(pid)
            storage = self._storage(pid)
            read, written = read + storage[0], written + storage[1]
        return Use(cpu_s, memory, None, read, written)

    def _cpu_s(self, pid: int) -> float:
        """User and system time, its waited-for children's too."""
        text = self._text(pid, "stat")
        fields = text[text.rfind(")") + 2 :].split()
        return sum(int(value) for value in fields[11:15]) / _TICKS if len(fields) > 15 else 0.0

    def _resident(self, pid: int) -> int:
        fields = self._text(pid, "statm").split()
        return int(fields[1]) * _PAGE if len(fields) > 1 else 0

    def _storage(self, pid: int) -> Tuple[int, int]:
        lines = (line.partition(": ") for line in self._text(pid, "io").splitlines())
        values = {name: int(value) for name, _, value in lines if value.isdecimal()}
        return values.get("read_bytes", 0), values.get("write_bytes", 0)

    def _text(self, pid: int, name: str) -> str:
        try:
            with open(os.path.join(self._proc, str(pid), name), encoding="ascii", errors="replace") as file:
                return file.read()
        except OSError:  # gone meanwhile, or not ours to read
            return ""

    def traffic(self, pid: int) -> Optional[Tuple[str, int, int]]:
        """Whose the network of the process is (`job`: not this controller's), and the bytes received and sent on all
        its devices but the loopback; None where it cannot be read."""
        own, other = self._namespace("self"), self._namespace(str(pid))
        text = self._text(pid, "net/dev")
        if not other or not text:
            return None
        received = sent = 0
        for line in text.splitlines()[2:]:
            name, _, rest = line.partition(":")
            fields = rest.split()
            if name.strip() != "lo" and len(fields) > 8:
                received, sent = received + int(fields[0]), sent + int(fields[8])
        return ("node" if own == other else "job"), received, sent

    def _namespace(self, pid: str) -> str:
        try:
            return os.readlink(os.path.join(self._proc, pid, "ns", "net"))
        except OSError:
            return ""


def _later(before: Optional[Use], now: Use) -> Use:
    if before is None:
        return now
    return Use(
        max(before.cpu_s or 0.0, now.cpu_s or 0.0),
        now.memory_bytes,
        None,
        max(before.read_bytes or 0, now.read_bytes or 0),
        max(before.written_bytes or 0, now.written_bytes or 0),
    )
