"""Where the next daemon dies: first at every step that must have been hit, then anywhere."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from random import Random

from tests.crash.fuzz.steps import AT_THE_BEGINNING, AT_THE_END, Plan

AT_A_STEP = 0.75
"""How often a death is at a step that was seen; else it is at a moment."""
BEGINNING = 0.3
"""Of the moments, those that may lie before the first answer."""
WHOLE_HOST = 0.3
"""Of the moments, those at which the daemon does not die alone."""
PATIENCE = 2.0
"""How much longer a life lasts that is to end at one step."""
FEW, LONGER = 8, 3.0
"""When so few wanted steps are left that most lives would not come to one, they last longer."""
PREFER: Mapping[str, str] = {
    "reply has_archive": "submit", "reply put_archive": "archive", "reply none": "", "reply health": "",
    "commit add_jobs": "submit", "commit apply_many by resume": "resume",
    "commit apply_many by stop": "regret", "commit set_requested_action": "halt",
    "commit apply_many by step_lease": "depend", "commit release": "depend",
    "call signal": "regret", "call withdraw": "regret", "call cancel": "regret", "call avoid": "submit requeued",
    "call find_absent": "submit forgotten", "deployer fenced": "resume", "watcher requested": "halt",
    "reply array": "array_get", "reply halt_array": "array_halt", "reply cancel_array": "array_cancel",
    "commit renew_many": "array", "call submit_array": "array",
    "call find_many": "array", "deployer chunk written": "array", "deployer chunk marked": "array",
    "deployer chunk submitted": "array", "upload begins": "submit unstored", "upload began": "submit unstored",
    "upload works": "submit unstored", "upload dies too": "submit unstored", "commit note_uploaded": "submit unstored",
    "half of tasks": "array", "half of control.json": "halt",
}  # fmt: skip
"""What brings a step about, by the end of its name."""


class Planner:
    """Draws plans. `wanted` are steps at which somebody has to die."""

    def __init__(self, chance: Random, wanted: Collection[str]) -> None:
        self._chance = chance
        self.wanted = set(wanted)
        self._seen: set[str] = set()

    def next(self, pace_s: float) -> Plan:
        """The plan for one life, which may last for `pace_s` after its first answer."""
        chance = self._chance
        ordinary = sorted(self.wanted - AT_THE_END)
        if self.wanted & AT_THE_BEGINNING or (ordinary and chance.random() < 0.9):
            if len(ordinary) <= FEW:
                pace_s *= LONGER
            return Plan(frozenset(ordinary), limit_s=pace_s, prefer=stimulus(chance.choice(ordinary)))
        if self.wanted & AT_THE_END:
            return self._at_the_end(chance.choice(sorted(self.wanted & AT_THE_END)), pace_s)
        if self._seen and chance.random() < AT_A_STEP:
            step = chance.choice(sorted(self._seen))
            if step in AT_THE_END:
                return self._at_the_end(step, pace_s)
            passing = 1 + int(chance.expovariate(0.7))
            return Plan(frozenset({step}), passing, PATIENCE * pace_s, prefer=stimulus(step))
        return Plan(
            limit_s=chance.uniform(0.0, pace_s / 2), from_beginning=chance.random() < BEGINNING,
            whole_host=chance.random() < WHOLE_HOST,
        )  # fmt: skip

    def note(self, seen: Collection[str], death: str) -> None:
        """What a life has passed, and where it died."""
        self._seen.update(seen)
        self.wanted.discard(death)

    def _at_the_end(self, step: str, pace_s: float) -> Plan:
        return Plan(frozenset({step}), limit_s=self._chance.uniform(0.3, 0.7) * pace_s, ask_to_end=True)


def stimulus(step: str) -> str:
    """What users should do for a step to come about; "" = they need not be asked."""
    name = step.removeprefix("before ").removeprefix("after ")
    if name in PREFER:
        return PREFER[name]
    return name.removeprefix("reply ") if name.startswith("reply ") else ""
