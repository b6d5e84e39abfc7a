"""`make proof-isolation`: what a learner can reach at each network level, with a control for each refusal.

    python -m tests.proof.isolation [--levels none/job,...] [--mechanism NAME] [--break WHAT] [--only TEXT]

Prints a table of all probes and their counts. Exit status 1 unless all is as it must be.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

from tests.cluster.images import provide_image
from tests.cluster.rig import Cluster
from tests.cluster.wireguard_site import wireguard
from tests.proof.isolation.breaks import BREAKS, BREAKS_OF_WIREGUARD, LEVEL
from tests.proof.isolation.facts import gather
from tests.proof.isolation.probes import probes
from tests.proof.isolation.stage import Job, Stage, StageError
from tests.proof.isolation.values import ATTACKER, OTHER, Shot
from tests.proof.isolation.verdict import Outcome, Round, holds, report

PAIRS = (("none", "job"), ("job", "job"), ("host", "job"), ("egress", "egress"), ("host", "host"))
"""The levels of the attacker and of the other job, in an order in which the other job may stay."""
HANDSHAKE_S = 6.0
"""The first packets between two nodes wait for WireGuard's handshake. Where both sides begin one at the same moment,
as learners do that greet each other, neither may come to an end: each is tried again after 5 s, at a moment of its
own (REKEY_TIMEOUT and the jitter beside it, in WireGuard's paper, section 6.4)."""
BROKEN_PAIR = ("job", "job")
"""What is broken is a network of level job."""
LEVELS = ("none", "job", "egress", "host")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the proof on the cluster that is up, or on a new one."""
    parser = argparse.ArgumentParser(prog="python -m tests.proof.isolation", description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--levels", default="", metavar="A/B,...", help="rounds, as the table's headings have them (default: all)"
    )
    parser.add_argument(
        "--mechanism",
        choices=["vxlan", "wireguard"],
        help="by what nodes are joined (default: a round of each, or vxlan)",
    )
    breaks = [*BREAKS, *BREAKS_OF_WIREGUARD, LEVEL]
    parser.add_argument("--break", dest="broken", choices=breaks, help="break it first: must end with 1")
    parser.add_argument("--only", default="", metavar="TEXT", help="probes whose name has it")
    parser.add_argument("--said", action="store_true", help="print what each attempt was told")
    options = parser.parse_args(arguments)
    chosen = [_pair(text, parser) for text in options.levels.split(",")] if options.levels else []
    if options.broken and not chosen:
        chosen = [BROKEN_PAIR]
    mechanism = options.mechanism or ("wireguard" if options.broken in BREAKS_OF_WIREGUARD else "vxlan")
    plan: dict[str, Sequence[tuple[str, str]]] = {mechanism: chosen or PAIRS}
    if not chosen and not options.mechanism:
        plan["wireguard"] = [BROKEN_PAIR]
    with Cluster.session() as cluster:
        provide_image(cluster, "custom")
        try:
            with Stage(cluster) as stage:
                rounds = prove(stage, plan.get("vxlan", ()), options.broken or "", options.only)
                if "wireguard" in plan:
                    with wireguard(cluster):
                        rounds += prove(stage, plan["wireguard"], options.broken or "", options.only)
        except StageError as error:
            print(f"proof-isolation: {error}", file=sys.stderr)
            return 1
    for found in rounds if options.said else ():
        print("\n".join(found.said()))
    for trouble in (trouble for found in rounds for trouble in found.troubles):
        print(trouble, file=sys.stderr)
    print(report(rounds), flush=True)
    return 0 if holds(rounds) else 1


def _pair(text: str, parser: argparse.ArgumentParser) -> tuple[str, str]:
    level, _, other = text.partition("/")
    if level not in LEVELS or other not in LEVELS[1:]:
        parser.error(
            f"--levels {text}: write ATTACKER/OTHER, of {', '.join(LEVELS)}; the other job has several learners"
        )
    return level, other


def prove(stage: Stage, pairs: Sequence[tuple[str, str]], broken: str = "", only: str = "") -> list[Round]:
    """A round for each pair of levels. What is broken is broken when the jobs run."""
    rounds, others = [], dict[str, Job]()
    for level, other_level in pairs:
        if other_level not in others:
            for old in others.values():
                stage.end(old)
            others = {other_level: stage.start(OTHER, other_level)}
        other, attacker = others[other_level], stage.start(ATTACKER, "host" if broken == LEVEL else level)
        breaks = {**BREAKS, **BREAKS_OF_WIREGUARD}
        if broken in breaks:
            breaks[broken](stage, attacker, other)
        rounds.append(fire_round(stage, attacker, other, level, only=only))
        stage.end(attacker)
    for old in others.values():
        stage.end(old)
    return rounds


def fire_round(stage: Stage, attacker: Job, other: Job, level: str, *, only: str = "") -> Round:
    """All probes against the other job, judged by the attacker's `level`: controls, attempts, controls again."""
    facts = gather(stage, attacker, other, level)
    table = [probe for probe in probes(facts) if only in probe.name]
    # A control that stands beside several attempts is made once: two that trace one process are in each other's way.
    controls: list[Shot] = []
    for probe in table:
        controls += [one for one in probe.controls if one not in controls]
    if facts.tunnel and facts.tunnel.mechanism == "wireguard":
        own = [probe.attempt for probe in table if probe.name.startswith("own job")]
        stage.fire(attacker, other, [*own, *(one for one in controls if one not in own)])
        time.sleep(HANDSHAKE_S)
    all_must = [True] * len(controls)
    before = stage.fire(attacker, other, controls, all_must)
    made = stage.fire(attacker, other, [probe.attempt for probe in table], [not probe.refuse for probe in table])
    after = stage.fire(attacker, other, controls, all_must)
    outcomes = []
    for probe, hit in zip(table, made, strict=True):
        places = [controls.index(one) for one in probe.controls]
        outcomes.append(Outcome(probe, hit, tuple(told[place] for told in (before, after) for place in places)))
    by = facts.tunnel.mechanism if facts.tunnel else ""
    return Round(level, other.level, outcomes, by if by != "vxlan" else "")


if __name__ == "__main__":
    sys.exit(main())
