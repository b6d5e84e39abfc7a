"""Which learner of this node hangs, and how fast each is. What is found is told by events; nobody is ended for it."""

from __future__ import annotations

import os
from typing import Dict, List, Mapping

from ffdl_batch.attempt.event_journal import Journal
from ffdl_batch.attempt.file_writer import write_text
from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.controller.learner.agents import find_agents
from ffdl_batch.controller.learner.stack_traces import dump
from ffdl_batch.controller.metrics.learner_activity import Pulse, Silence, shown_by
from ffdl_batch.controller.metrics.step_time import Pace
from ffdl_batch.domain.launch.launch_file import LaunchFile
from ffdl_batch.domain.metrics.usage import UsageSample
from ffdl_batch.domain.outcome.controller_events import EventKind

PACE_FIRST_S, PACE_EVERY_S = 10.0, 60.0
"""How soon the records of learners are looked at, and how often at last; the pause doubles between."""
STACK_LINES, STACK_CHARS = 20, 4000
"""How much of the stacks an event holds."""
HANGS_MOST = 10
"""So many hangs of a learner are told: one that is silent for long again and again may be meant to be."""


class Health:
    """Of the learners of one node. Services wait for ever, so their silence says nothing."""

    def __init__(self, launch: LaunchFile, learner_ids: List[int], journal: Journal) -> None:
        self._launch, self._attempt, self._journal = launch, AttemptDir(launch.attempt_dir), journal
        trains = [number for number in learner_ids if not launch.seat_of(number).service]
        hang_s = launch.limits.hang_s
        self._pulses: Dict[int, Pulse] = {number: Pulse(hang_s) for number in trains} if hang_s else {}
        self._hangs = dict.fromkeys(trains, 0)
        has_records = launch.metrics is not None and len(launch.seats) > 1
        paths = {number: self._attempt.learner_metrics(number) for number in trains}
        self._paces: Dict[int, Pace] = {number: Pace(path) for number, path in paths.items()} if has_records else {}
        self._next_pace, self._pause_s = 0.0, PACE_FIRST_S

    def look(self, now: float, roots: Mapping[int, int], sample: UsageSample) -> None:
        """At `now`, of a clock that does not go back and stands still while all here is stopped, learners `roots` live,
        and use what the sample says. Raises OSError."""
        for learner, pulse in self._pulses.items():
            use = sample.learners.get(str(learner))
            if learner in roots and use is not None:
                silence = pulse.feel(now, shown_by(self._signs(learner)), use.cpu_s)
                if silence is not None and self._hangs[learner] < HANGS_MOST:
                    self._hangs[learner] += 1
                    self._tell_hang(learner, silence)
        if now >= self._next_pace:
            self._next_pace, self._pause_s = now + self._pause_s, min(2 * self._pause_s, PACE_EVERY_S)
            for learner, pace in self._paces.items():
                step = pace.news()
                if step is not None:
                    self._journal.append(
                        EventKind.PACE,
                        learner_id=learner,
                        host=os.uname().nodename,
                        step_s=round(step.step_s, 6),
                        steady=step.steady,
                    )

    def _signs(self, learner: int) -> List[str]:
        attempt = self._attempt
        return [attempt.training_log(learner), attempt.learner_metrics(learner), attempt.sign_of_life(learner)]

    def _tell_hang(self, learner: int, silence: Silence) -> None:
        stacks, place = self._stacks(learner), ""
        if stacks:
            name = f"stacks-{int(silence.silent_s)}s.txt"
            write_text(os.path.join(self._attempt.learner_logs(learner), name), stacks)
            place = name
        self._journal.append(
            EventKind.HANG,
            learner_id=learner,
            host=os.uname().nodename,
            silent_s=round(silence.silent_s, 1),
            idle=silence.idle,
            stack="\n".join(stacks.splitlines()[-STACK_LINES:])[-STACK_CHARS:],
            file=place,
        )

    def _stacks(self, learner: int) -> str:
        agents = find_agents(self._launch.job_id, self._launch.attempt, [learner])
        return dump(agents[learner])[0] if learner in agents else ""
