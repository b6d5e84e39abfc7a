"""Shows what the learners of a pod do to whoever wished to see it: the helper's tables and stacks, said with all else.

A pod that nobody may run a command in (``pods/exec``) can be looked into all the same. Nothing is changed by it.
"""

from __future__ import annotations

import os
import threading
from typing import Callable, List

from ffdl_batch.controller.attach.helper import await_agents, say_absent
from ffdl_batch.controller.attach.process_table import Glance
from ffdl_batch.controller.learner.agents import Agent
from ffdl_batch.controller.learner.stack_traces import dump
from ffdl_batch.domain.launch.attach_protocol import STACK, TOP
from ffdl_batch.domain.launch.launch_file import LaunchFile
from ffdl_batch.domain.launch.pod_protocol import Answer, Look, encode_answer

LONGEST_CHARACTERS = 1 << 19
"""Of stacks that are said: logs of containers are no place for more."""


class Answers:
    """Of node `index`. One at a time, in a thread, because py-spy takes its time; `say` takes an id and the answer."""

    def __init__(self, launch: LaunchFile, index: int, say: Callable[[str, bytes], None]) -> None:
        self._launch, self._own, self._say = launch, frozenset(launch.learners_on(index)), say
        self._thread = threading.Thread()

    def begin(self, look: Look) -> bool:
        """Whether it is begun: not while another one is under way."""
        if self._thread.is_alive():
            return False
        self._thread = threading.Thread(target=self._answer, args=(look,), name="look", daemon=True)
        self._thread.start()
        return True

    def _answer(self, look: Look) -> None:
        try:
            found = self.see(look)
        except Exception as error:  # noqa: BLE001 - whoever waits for it is told, and the training goes on
            found = Answer(1, refused=f"nothing can be seen: {type(error).__name__}: {error}")
        self._say(look.id, encode_answer(found))

    def see(self, look: Look) -> Answer:
        """What is to be seen now; waits a few seconds for learners that are just being started."""
        learners = [number for number in look.learners if number in self._own]
        agents = await_agents(self._launch.job_id, self._launch.attempt, learners)
        if not agents:
            return Answer(1, refused=say_absent(self._launch.job_id, self._launch.attempt, look.learners))
        present = [agents[number] for number in sorted(agents)]
        if look.do == STACK:
            return _stacks(present)
        if look.do == TOP:
            table = {"host": os.uname().nodename, "learners": [Glance(agent).look() for agent in present]}
            return Answer(table=table)
        return Answer(1, refused=f"this release of ffdl-controller cannot show {look.do!r}")


def _stacks(agents: List[Agent]) -> Answer:
    found = [dump(agent) for agent in agents]
    text = "".join(said for said, _ in found)
    if len(text) > LONGEST_CHARACTERS:
        text = f"{text[:LONGEST_CHARACTERS]}\n(cut here)\n"
    return Answer(0 if all(complete for _, complete in found) else 1, text)
