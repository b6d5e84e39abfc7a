"""Learners as the events of an attempt tell of them."""

from __future__ import annotations

from dataclasses import replace

from ffdl_batch.domain.events import Event, Scalar
from ffdl_batch.domain.events import EventKind as K
from ffdl_batch.domain.launch import LaunchFile, LearnerCommand, Seat
from ffdl_batch.domain.learners import learner_list, say_restart, started_again
from ffdl_batch.domain.naming import name_learner, say_end

LAUNCH = LaunchFile(
    "training-7", 1, "training-7-1", "/j", "/j/a", "/d", LearnerCommand(("x",), {}), learners=3, nodes=2,
    seats=(Seat(0, "worker", 0), Seat(1, "worker", 1), Seat(1, "ps", 0, service=True)), names="learner-training-7",
    restarts_max=3,
)  # fmt: skip


Told = tuple[int, K, dict[str, Scalar]]


def told(*events: Told) -> list[Event]:
    """Events of node controllers, by the rank of the node, one a second."""
    return [Event(n, 100.0 + n, f"node-{rank}", kind, fields) for n, (rank, kind, fields) in enumerate(events, 1)]


def began(rank: int, number: int) -> Told:
    return rank, K.LEARNER_STARTED, {"learner_id": number}


def ended(rank: int, number: int, code: int, **more: Scalar) -> Told:
    return rank, K.LEARNER_ENDED, {"learner_id": number, "exit_code": code, "ended_by": "", **more}


NODES: list[Told] = [(rank, K.STARTED, {"host": f"n{rank + 1}.site"}) for rank in (0, 1)]
FAILED = [*NODES, began(0, 1), began(1, 2), began(1, 3), ended(1, 2, 7, restarted=True)]


def test_started_again_lists_learner_only_after_its_restart() -> None:
    assert started_again(told(*FAILED)) == []
    (one,) = started_again(told(*FAILED, began(1, 2)))
    assert (one.learner_id, one.at, one.number) == (2, 107.0, 1)
    said = "learner 2 (worker 1, on n2) ended with exit code 7 and was started again (1 of 3)"
    assert say_restart(one, LAUNCH) == said
    assert say_restart(one, None) == "learner 2 ended with exit code 7 and was started again (1)"


def test_started_again_numbers_restarts_and_excludes_starts_of_next_run() -> None:
    again = [began(1, 2), ended(1, 2, 8, restarted=True)]
    found = started_again(told(*FAILED, *again, began(1, 2), ended(0, 1, 9, restarted=True), began(0, 1)))
    assert [(one.learner_id, one.number) for one in found] == [(2, 1), (2, 2), (1, 1)]
    assert [one.learner_id for one in started_again(told(*FAILED, *again, NODES[1], began(1, 2)))] == [2]


def test_learner_list_shows_role_node_state_and_end_of_each_learner() -> None:
    events = told(*FAILED, began(1, 2), ended(1, 2, 7), ended(0, 1, 143, ended_by="stop"))
    one, two, three = learner_list(LAUNCH, events, is_over=True)
    assert (one.number, one.role, one.index, one.name) == (1, "worker", 0, "learner-training-7-0")
    assert (one.node, one.state, one.exit_code, one.ended_by, one.restarts) == ("n1", "ended", 143, "stop", 0)
    assert (two.node, two.state, two.exit_code, two.ended_by, two.restarts) == ("n2", "ended", 7, "", 1)
    assert (three.role, three.service, three.state, three.exit_code) == ("ps", True, "lost", None)
    assert [each.state for each in learner_list(LAUNCH, told(*FAILED), is_over=False)] == [
        "running", "restarting", "running",
    ]  # fmt: skip
    assert [(each.state, each.node) for each in learner_list(LAUNCH, [], is_over=False)] == [("waiting", "")] * 3


def test_learner_list_shows_only_latest_run() -> None:
    claims = [Event(1, at, "head", K.CLAIMED, {"restart": n}) for n, at in enumerate((50.0, 200.0))]
    assert [each.state for each in learner_list(LAUNCH, [claims[0], *told(*FAILED), claims[1]], is_over=False)] == [
        "waiting"
    ] * 3


def test_name_learner_includes_only_details_that_job_has() -> None:
    assert name_learner(LAUNCH, 3, "n2.site") == "learner 3 (ps 0, on n2)"
    assert name_learner(LAUNCH, 3, "") == "learner 3 (ps 0)"
    assert name_learner(replace(LAUNCH, nodes=1), 3, "n2") == "learner 3 (ps 0)"
    assert name_learner(replace(LAUNCH, seats=(), learners_per_node=2), 3, "n2") == "learner 3 (on n2)"
    assert name_learner(replace(LAUNCH, seats=(), nodes=1), 3, "n2") == "learner 3"
    assert (say_end(3, None), say_end(139, None)) == (
        "ended with exit code 3", "ended with exit code 139 (128 + 11: SIGSEGV)")  # fmt: skip
    assert (say_end(None, 9), say_end(None, 99)) == ("was killed by SIGKILL", "was killed by signal 99")
