"""The proof of isolation in its short form: no network and the job's own; then what must be found when it is broken."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.rig import Cluster
from tests.proof.isolation.__main__ import fire_round
from tests.proof.isolation.breaks import BREAKS
from tests.proof.isolation.stage import Job, Stage
from tests.proof.isolation.values import ATTACKER, OTHER
from tests.proof.isolation.verdict import holds, report

pytestmark = pytest.mark.full

SHOWN_BY = {
    "bridge": "learner on n2: ",
    "vni": "learner on n2: udp",
    "guard": "VXLAN frame",
    "slot": "slot: ",
    "route": "address of n1",
    "control": "address of n2",
}
"""What the names of probes that must find each break have in them. What is broken stays broken."""
OPENED = {
    "bridge": {"learner on n2: tcp", "learner on n2: udp"},
    "vni": {"learner on n2: udp"},
}
"""Probes that must be let through then."""


@pytest.fixture(scope="module")
def stage(cluster: Cluster) -> Iterator[Stage]:
    """Both users, a gateway, and listeners on all nodes."""
    with Stage(cluster) as made:
        yield made


@pytest.fixture(scope="module")
def jobs(stage: Stage) -> tuple[Job, Job]:
    """A job of each user at level job, on the same two nodes."""
    return stage.start(ATTACKER, "job"), stage.start(OTHER, "job")


def test_isolation_proof_holds_for_network_levels_none_and_job(stage: Stage, jobs: tuple[Job, Job]) -> None:
    attacker, other = jobs
    alone = stage.start(ATTACKER, "none")
    rounds = [fire_round(stage, one, other, one.level) for one in (alone, attacker)]
    stage.end(alone)
    print(report(rounds))
    assert [trouble for found in rounds for trouble in found.troubles] == []
    assert holds(rounds)


def test_isolation_proof_detects_learner_on_host_network_judged_as_job(stage: Stage, jobs: tuple[Job, Job]) -> None:
    loose = stage.start(ATTACKER, "host")
    found = fire_round(stage, loose, jobs[1], "job", only="tcp")
    stage.end(loose)
    reached = [one.probe.name for one in found.outcomes if one.trouble and one.through]
    assert {"slurmctld: tcp", "address of n2: tcp", "gateway: tcp"} <= set(reached)


@pytest.mark.parametrize("broken", SHOWN_BY)
def test_isolation_proof_detects_planted_break(stage: Stage, jobs: tuple[Job, Job], broken: str) -> None:
    assert SHOWN_BY.keys() == BREAKS.keys()
    BREAKS[broken](stage, *jobs)
    found = fire_round(stage, *jobs, "job", only=SHOWN_BY[broken])
    print(report([found]))
    assert found.troubles and not holds([found])
    opened = {one.probe.name for one in found.outcomes if one.through and one.trouble and not one.control_failed}
    assert opened >= OPENED.get(broken, set()), found.troubles
    failed = any(one.control_failed for one in found.outcomes)
    assert failed == (broken == "control"), found.troubles
