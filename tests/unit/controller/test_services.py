"""Services and learners that are started again: when they end, whom they stop, and how the attempt is judged."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from ffdl_batch.attempt.conclusion import conclude
from ffdl_batch.attempt.learner_endings import answer, last_endings
from ffdl_batch.controller.learner.restarts import Restarts, count_restarts, pause_s, restarts_left
from ffdl_batch.controller.node.service_learners import Services, at_work, is_training_over, left_behind
from ffdl_batch.domain.launch.launch_file import RESTART_LEARNER, Seat
from ffdl_batch.domain.launch.limits import Limits
from ffdl_batch.domain.outcome.controller_events import Event, EventKind, Outcome, Scalar
from ffdl_batch.host.worker_thread import WorkerThread
from tests.unit.controller.rig import launch_file

K = EventKind
SEATS = (Seat(0, "ps", 0, service=True), Seat(0, "worker", 0), Seat(1, "worker", 1))
LAUNCH = launch_file(learners=3, nodes=2, seats=SEATS, limits=Limits(grace_s=60))


class Told:
    """Events in the order in which they are added, one second apart."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def add(self, kind: EventKind, node: int = 0, **fields: Scalar) -> Told:
        at = len(self.events) + 1
        self.events.append(Event(at, float(at), f"node-{node}", kind, fields))
        return self

    def began(self, *learners: int) -> Told:
        for number in learners:
            self.add(K.LEARNER_STARTED, SEATS[number - 1].node, learner_id=number, **self._kind(number))
        return self

    def ended(self, learner: int, exit_code: int = 0, **fields: Scalar) -> Told:
        more = {"ended_by": "", "asked": "", **self._kind(learner), **fields}
        return self.add(K.LEARNER_ENDED, SEATS[learner - 1].node, learner_id=learner, exit_code=exit_code, **more)

    def stored(self, *learners: int) -> Told:
        for number in learners:
            self.add(K.STORED, SEATS[number - 1].node, learner_id=number)
        return self

    def _kind(self, learner: int) -> dict[str, Scalar]:
        return {"service": True} if SEATS[learner - 1].service else {}


def all_began() -> Told:
    return Told().add(K.STARTED).add(K.STARTED, 1).began(1, 2, 3)


def halted() -> Told:
    return all_began().add(K.ASKED, 0, reason="halt").add(K.ASKED, 1, reason="halt")


SAVED: dict[str, Scalar] = {"asked": True, "confirmed": True, "answered": True, "took_s": 1.0}


@pytest.mark.parametrize(
    ("told", "outcome", "code"),
    [
        pytest.param(all_began().ended(2).ended(3).ended(1, 143, ended_by="service").stored(1, 2, 3),
                     Outcome.COMPLETED, "000", id="ended because nobody needed it"),
        pytest.param(all_began().ended(2).ended(3).ended(1, 1).stored(1, 2, 3), Outcome.COMPLETED, "000",
                     id="failed when its peers were gone"),
        pytest.param(all_began().ended(2).ended(1, 1).ended(3).stored(1, 2, 3), Outcome.COMPLETED, "000",
                     id="failed a moment before the last of its peers was done"),
        pytest.param(all_began().ended(1).ended(2).ended(3).stored(1, 2, 3), Outcome.COMPLETED, "000",
                     id="was done by itself"),
        pytest.param(all_began().ended(1, 7).ended(2, ended_by="stop").ended(3, ended_by="stop").stored(1, 2, 3),
                     Outcome.FAILED, "C201", id="failed early"),
        pytest.param(all_began().ended(2, 4).ended(1, 143, ended_by="stop").ended(3, ended_by="stop").stored(1, 2, 3),
                     Outcome.FAILED, "C201", id="a learner failed"),
        pytest.param(all_began().ended(2).ended(3).ended(1, 143, ended_by="service").stored(2, 3),
                     Outcome.FAILED, "S106", id="what it left is not stored"),
        pytest.param(all_began().ended(2).ended(1, 143, ended_by="service").stored(1, 2), Outcome.FAILED, "S106",
                     id="one learner's end is not known"),
        pytest.param(halted().ended(2, asked="halt").ended(3, asked="halt")
                     .ended(1, 143, asked="halt", ended_by="service")
                     .add(K.CHECKPOINT, 0, **SAVED).add(K.CHECKPOINT, 1, **SAVED).stored(1, 2, 3),
                     Outcome.HALTED, "000", id="halted"),
        pytest.param(halted().ended(1, 1, asked="halt").ended(2, asked="halt").ended(3, asked="halt", signalled=True)
                     .stored(1, 2, 3),
                     Outcome.HALTED, "000", id="halted, and it answered with a status of its own and no file"),
        pytest.param(halted().ended(1, asked="halt", signalled=True).ended(2, asked="halt").ended(3, asked="halt")
                     .stored(1, 2, 3),
                     Outcome.COMPLETED, "000", id="it alone heard the request, and the others were done"),
    ],
)  # fmt: skip
def test_conclude_derives_outcome_of_job_with_services(told: Told, outcome: Outcome, code: str) -> None:
    found = conclude(LAUNCH, told.events, terminated=False)
    assert (found.outcome, found.error_code) == (outcome, code)


def test_conclude_names_failed_service() -> None:
    told = all_began().ended(1, 7).ended(2, ended_by="stop").ended(3, 9).stored(1, 2, 3)
    found = conclude(LAUNCH, told.events, terminated=False)
    assert (found.learner_id, found.exit_code) == (1, 7)


@pytest.mark.parametrize(
    ("service", "confirmed"), [({"ended_by": "service"}, True), ({"ended_by": "halt"}, True), ({"exit_code": 3}, True)]
)
def test_checkpoint_answer_needs_no_confirmation_from_services(service: dict[str, Any], confirmed: bool) -> None:
    told = halted().ended(2, asked="halt").ended(3, asked="halt").ended(1, asked="halt", **service)
    told.add(K.CHECKPOINT, 0, **SAVED).add(K.CHECKPOINT, 1, asked=True, confirmed=False, answered=True)
    assert answer(LAUNCH, told.events).checkpoint.confirmed is confirmed
    found = conclude(LAUNCH, told.stored(1, 2, 3).events, terminated=False)
    assert "had to be ended" not in found.message


def test_checkpoint_answer_is_unconfirmed_if_learner_had_to_be_killed() -> None:
    told = halted().ended(2, asked="halt").ended(3, asked="halt", ended_by="halt").ended(1, ended_by="service")
    told.add(K.CHECKPOINT, 0, **SAVED)
    assert not answer(LAUNCH, told.events).checkpoint.confirmed
    assert "learner 3 had to be ended" in conclude(LAUNCH, told.stored(1, 2, 3).events, terminated=False).message


# ------------------------------------------------------------------------------------------------- when they are ended


@pytest.mark.parametrize(
    ("told", "asked", "over"),
    [
        (all_began(), False, False),
        (all_began().ended(2), False, False),
        (all_began().ended(2).ended(3), False, True),
        (all_began().ended(2).ended(3, 1), False, False),
        (all_began().ended(2).ended(3, ended_by="stop"), False, False),
        (all_began().ended(1).ended(2), False, False),
        (all_began().ended(2).ended(3, 1, restarted=True), True, False),
        (halted().ended(2, 1, asked="halt"), True, False),
        (halted().ended(2, 1, asked="halt").ended(3, asked="halt", ended_by="halt"), True, True),
        # an earlier run's request is void: that learner goes on in this one
        (all_began().ended(2).ended(3, asked="term").add(K.STARTED, 1), True, False),
        (all_began().ended(2).ended(3).add(K.STARTED, 0).add(K.STARTED, 1), False, True),
    ],
)
def test_is_training_over_decides_when_services_can_end(told: Told, asked: bool, over: bool) -> None:
    assert is_training_over(LAUNCH, told.events, asked=asked) is over


@pytest.mark.parametrize(
    ("done", "started"),
    [
        ({}, [1, 2]),
        ({3: 0}, [1, 2]),
        ({1: 0}, [1, 2]),  # a service is needed again by whoever goes on in a new run
        ({1: 0, 3: 0}, [1, 2]),
        ({2: 0}, [1]),
        ({3: 5}, []),
        ({1: 5}, []),
        ({2: 0, 3: 0}, []),
        ({1: 1, 2: 0, 3: 0}, []),
    ],
)
def test_at_work_selects_learners_and_services_that_a_new_run_starts(done: dict[int, int], started: list[int]) -> None:
    assert at_work(LAUNCH, (1, 2), done) == started


@pytest.mark.parametrize(
    ("told", "done", "left"),
    [
        (all_began(), {2: 0, 3: 0}, [1]),
        (all_began().ended(1, 143, ended_by="term"), {2: 0, 3: 0}, [1]),
        (all_began().ended(1, 143, ended_by="service"), {2: 0, 3: 0}, []),
        (all_began().ended(1), {1: 0, 2: 0, 3: 0}, []),
        (all_began(), {2: 0}, []),
    ],
)
def test_left_behind_lists_services_without_final_end_event(told: Told, done: dict[int, int], left: list[int]) -> None:
    assert left_behind(LAUNCH, (1, 2), told.events, done) == left


class Nodes:
    """The other nodes' events, which may be away."""

    def __init__(self) -> None:
        self.told: Callable[[], list[Event]] = lambda: all_began().events
        self.looks = 0
        self.asked: set[int] | None = None

    def events(self, ranks: set[int] | None = None) -> list[Event]:
        self.looks += 1
        self.asked = ranks
        return self.told()


def test_services_read_other_nodes_once_a_second_until_training_is_over() -> None:
    nodes = Nodes()
    services = Services(LAUNCH, cast("Any", nodes), WorkerThread("files"))
    for tenth in range(31):
        assert not services.are_free(tenth / 10, asked=False)
    assert nodes.looks == 4
    nodes.told = lambda: all_began().ended(2).ended(3).events
    assert not services.are_free(3.5, asked=False)
    assert services.are_free(4.0, asked=False)
    assert services.are_free(9.0, asked=False)
    assert nodes.looks == 5  # what is over stays over


def test_services_read_only_nodes_with_training_learners() -> None:
    """Services by the hundred would read each other's files else."""
    seats = (Seat(0, "launcher"), *(Seat(number, "worker", number, service=True) for number in range(1, 9)))
    nodes, launch = Nodes(), replace(LAUNCH, learners=9, nodes=9, seats=seats)
    Services(launch, cast("Any", nodes), WorkerThread("files")).are_free(0, asked=False)
    assert (nodes.looks, nodes.asked) == (1, {0})


def test_services_do_not_block_while_event_files_hang(held: threading.Event) -> None:
    nodes, worker = Nodes(), WorkerThread("files")

    def hang() -> list[Event]:
        held.wait(120)
        return all_began().ended(2).ended(3).events

    nodes.told = hang
    worker.begin()
    services = Services(LAUNCH, cast("Any", nodes), worker)
    for second in range(100):
        assert not services.are_free(float(second), asked=False)
    assert nodes.looks <= 1  # nobody queues behind a look that hangs
    held.set()
    over = threading.Event()
    worker.ask(over.set, None, 60.0)
    assert services.are_free(200.0, asked=False)


def test_services_retry_unreadable_event_files_and_warn_once(capsys: pytest.CaptureFixture[str]) -> None:
    nodes = Nodes()

    def refuse() -> list[Event]:
        raise OSError(5, "Input/output error", "/j/a/events/node-1.jsonl")

    nodes.told = refuse
    services = Services(LAUNCH, cast("Any", nodes), WorkerThread("files"))
    assert not services.are_free(0.0, asked=False)
    assert not services.are_free(1.0, asked=False)
    assert capsys.readouterr().err.count("node-1.jsonl") == 1
    nodes.told = lambda: all_began().ended(2).ended(3).events
    assert services.are_free(2.0, asked=False)


# ------------------------------------------------------------------------------------------------------ started again

AGAIN = launch_file(learners=3, nodes=2, seats=SEATS, restart=RESTART_LEARNER, restarts_max=3)


@pytest.mark.parametrize(("count", "seconds"), [(1, 1), (2, 2), (3, 4), (5, 16), (6, 30), (7, 30), (5000, 30)])
def test_restart_pause_doubles_up_to_thirty_seconds(count: int, seconds: float) -> None:
    assert pause_s(count) == seconds


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"exit_code": 7}, "ended with exit code 7"),
        ({"out_of_memory": True}, "was killed because it needed more memory than the job has"),
    ],
)
def test_conclude_names_failed_learner_by_role_and_node(fields: dict[str, Any], words: str) -> None:
    told = Told().add(K.STARTED, 0, host="n1.site").add(K.STARTED, 1, host="n2.site").began(1, 2, 3)
    told.ended(3, **{"exit_code": 1, **fields}).ended(1, 143, ended_by="stop").ended(2, 143, ended_by="stop")
    assert conclude(LAUNCH, told.events, terminated=False).message == f"learner 3 (worker 1, on n2) {words}"


def test_conclude_ignores_end_of_restarted_learner() -> None:
    told = all_began().ended(2, 1, restarted=True)
    assert last_endings(told.events) == {}
    assert list(last_endings(told.began(2).ended(2).events)) == [2]
    found = conclude(AGAIN, told.ended(3).ended(1, ended_by="service").stored(1, 2, 3).events, terminated=False)
    assert found.outcome is Outcome.COMPLETED


def test_conclude_does_not_blame_learner_waiting_for_restart_after_halt() -> None:
    told = halted().ended(2, 1, restarted=True).ended(2, 1, ended_by="halt", waited=True)
    told.ended(3, asked="halt").ended(1, ended_by="service").add(K.CHECKPOINT, 1, **SAVED).stored(1, 2, 3)
    found = conclude(AGAIN, told.events, terminated=False)
    assert (found.outcome, found.checkpoint.confirmed) == (Outcome.HALTED, False)
    assert "had to be ended" not in found.message


def test_restarts_left_counts_restarts_of_earlier_runs() -> None:
    told = all_began().ended(2, 1, restarted=True).began(2).ended(2, 1, restarted=True)
    assert (count_restarts(told.events), restarts_left(AGAIN, told.events)) == ({2: 2}, 1)
    assert restarts_left(LAUNCH, told.events) <= 0


def made_with(spawn: Callable[[int], Any]) -> Any:
    """Restarts whose learners are whatever `spawn` gives."""
    return Restarts(AGAIN, [], WorkerThread("files"), spawn)


def test_restarts_start_each_learner_when_its_pause_is_over() -> None:
    restarts = made_with(lambda number: f"learner {number}")
    restarts.add(2, {}, 100.0)
    restarts.add(3, {}, 100.0)
    assert restarts.start_due(100.9) == []
    assert restarts.pending
    assert restarts.start_due(101.0) == [(2, "learner 2")]
    assert restarts.start_due(101.9) == []
    assert restarts.start_due(102.0) == [(3, "learner 3")]
    assert not restarts.pending
    restarts.add(2, {}, 200.0)
    assert not restarts.possible


def test_restarts_return_error_if_learner_cannot_start() -> None:
    def refuse(_number: int) -> object:
        raise FileNotFoundError(2, "No such file or directory", "bash")

    restarts = made_with(refuse)
    restarts.add(2, {}, 0.0)
    ((number, error),) = restarts.start_due(1.0)
    assert (number, type(error), restarts.pending) == (2, FileNotFoundError, False)


def test_restarts_drop_pending_learners_after_request(tmp_path: Path) -> None:
    started = tmp_path / "started"
    restarts = made_with(lambda _number: started.touch())
    restarts.add(2, {"learner_id": 2}, 0.0)
    assert restarts.drop() == [(2, {"learner_id": 2})]
    assert restarts.drop() == []
    assert (restarts.pending, restarts.possible, restarts.start_due(99.0)) == (False, False, [])
    assert not started.exists()


def test_restarts_do_not_block_and_can_be_dropped_while_start_hangs(held: threading.Event) -> None:
    worker = WorkerThread("files")

    def hang(_number: int) -> object:
        held.wait(120)
        return "late"

    restarts = Restarts(AGAIN, [], worker, cast("Any", hang))
    worker.begin()
    restarts.add(2, {"learner_id": 2}, 0.0)
    assert restarts.start_due(1.0) == []
    assert restarts.pending
    assert restarts.drop() == [(2, {"learner_id": 2})]
    held.set()
    over = threading.Event()
    worker.ask(over.set, None, 60.0)
    assert (restarts.start_due(2.0), restarts.pending) == ([], False)
