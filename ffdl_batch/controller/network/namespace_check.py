"""Whether learners are in the network that the launch file means: looked at once each, from the node, in /proc.

A learner is in its place when its shell runs: before that a container runtime is at work, on the node's network. It is
known by its command line, so that nothing on the shared file system has to be asked.
"""

from __future__ import annotations

from typing import Dict, List, Mapping, Optional, Set, Tuple

from ffdl_batch.controller.learner.learner import Learner
from ffdl_batch.controller.network.job_network import HOST, JobNetwork, misplaced, place_of
from ffdl_batch.domain.launch.launch_file import LaunchFile
from ffdl_batch.domain.outcome.controller_events import Scalar
from ffdl_batch.host.processes import Process, all_processes, descendants

OFTEN, SELDOM_S = 40, 1.0
"""Looks at every turn, and the pause between later ones: an image that is fetched first takes its time."""
SHELL_WORDS = 3
"""A learner's argv ends with a shell, -c and the text that runs its command."""


class Whereabouts:
    """Of the learners of one node. `network` is the job's own here (None = it has none)."""

    def __init__(self, launch: LaunchFile, network: Optional[JobNetwork]) -> None:
        self._level = launch.network.level
        self._expected = HOST if launch.pod is not None else self._level  # a pod's network is that of its controller
        self._mechanism = network.mechanism if network else launch.network.mechanism
        self._network = network
        self._seen: Set[int] = set()
        self._looks, self._next = 0, 0.0
        self.wrong: Dict[int, str] = {}
        """Learners that were found elsewhere, and what is wrong with where they were."""

    def hurries(self, learners: Mapping[int, Learner]) -> bool:
        """Whether one of these is still to be looked at, and may be any moment."""
        return self._looks < OFTEN and any(learner.pid not in self._seen for learner in learners.values())

    @property
    def has_seen(self) -> bool:
        """Whether a learner was looked at."""
        return bool(self._seen)

    def look(self, learners: Mapping[int, Learner], now: float) -> List[int]:
        """Look at those whose shell runs by now; which of them are where they must not be."""
        waiting = {number: one for number, one in learners.items() if one.pid not in self._seen}
        if not waiting or now < self._next:
            return []
        self._looks += 1
        self._next = now if self._looks < OFTEN else now + SELDOM_S
        table = all_processes()
        found = []
        for number, learner in waiting.items():
            place = self._place(learner, table)
            if place is None:
                continue
            self._seen.add(learner.pid)
            wrong = misplaced(self._expected, place, self._network)
            if wrong:
                self.wrong[number] = f"learner {number} was ended: {wrong}"
                found.append(number)
        return found

    def _place(self, learner: Learner, table: Mapping[int, Process]) -> Optional[Tuple[int, int]]:
        shell = tuple(learner.start.argv[-SHELL_WORDS:])
        for pid in descendants(learner.root, table):
            words = _command_line(pid)
            if words[1:] == shell[1:] and words[:1] and _name(words[0]) == _name(shell[0]):
                return place_of(pid)
        return None

    def achieved(self) -> Dict[str, Scalar]:
        """For the event. `seen`: at least one learner was looked at; one that ends at once may not have been."""
        return {"level": self._level, "mechanism": self._mechanism, "seen": self.has_seen}


def _name(program: str) -> str:
    """Without its directory: Apptainer looks for it, and starts it by its path."""
    return program.rpartition("/")[2]


def _command_line(pid: int) -> Tuple[str, ...]:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return tuple(file.read().decode("utf-8", "surrogateescape").split("\0")[:-1])
    except OSError:
        return ()
