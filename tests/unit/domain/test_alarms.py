"""What the events of an attempt show: its learners, and incidents that end nothing."""

from __future__ import annotations

from dataclasses import replace

from ffdl_batch.domain.incidents.incident import Incident
from ffdl_batch.domain.incidents.stalled_learners import alarms, idle_warning
from ffdl_batch.domain.job.learners import describe_restart, gpu_devices, learner_list, started_again
from ffdl_batch.domain.launch.launch_file import LaunchFile, LearnerCommand, Seat
from ffdl_batch.domain.launch.learner_text import describe_end, name_learner
from ffdl_batch.domain.outcome.controller_events import Event, EventKind, Scalar
from ffdl_batch.domain.outcome.controller_events import EventKind as K

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
    assert describe_restart(one, LAUNCH) == said
    assert describe_restart(one, None) == "learner 2 ended with exit code 7 and was started again (1)"


def test_started_again_numbers_restarts_and_excludes_starts_of_next_run() -> None:
    again = [began(1, 2), ended(1, 2, 8, restarted=True)]
    found = started_again(told(*FAILED, *again, began(1, 2), ended(0, 1, 9, restarted=True), began(0, 1)))
    assert [(one.learner_id, one.number) for one in found] == [(2, 1), (2, 2), (1, 1)]
    assert [one.learner_id for one in started_again(told(*FAILED, *again, NODES[1], began(1, 2)))] == [2]


def test_gpu_devices_are_files_unless_learners_can_open_others_too() -> None:
    confined: Told = (0, K.DEVICES, {"host": "n1.site", "gpus": "0", "files": "/dev/nvidia2"})
    open_to_all: Told = (1, K.DEVICES, {"host": "n2.site", "gpus": "3", "files": "/dev/nvidia0,/dev/nvidia1"})
    assert gpu_devices(told(*NODES, confined, open_to_all)) == ("n1:/dev/nvidia2", "n2:3")
    assert gpu_devices(told(*NODES)) == ()


def test_learner_list_shows_role_node_state_and_end_of_each_learner() -> None:
    events = told(*FAILED, began(1, 2), ended(1, 2, 7), ended(0, 1, 143, ended_by="stop"))
    one, two, three = learner_list(LAUNCH, events, is_over=True)
    assert (one.number, one.role, one.index, one.name) == (1, "worker", 0, "learner-training-7-0")
    assert (one.node, one.state, one.exit_code, one.ended_by, one.restarts) == ("n1", "ended", 143, "stop", 0)
    assert (two.node, two.state, two.exit_code, two.ended_by, two.restarts) == ("n2", "ended", 7, "", 1)
    assert (three.role, three.service, three.state, three.exit_code) == ("ps", True, "lost", None)
    states = [each.state for each in learner_list(LAUNCH, told(*FAILED), is_over=False)]
    assert states == ["running", "restarting", "running"]
    assert [(each.state, each.node) for each in learner_list(LAUNCH, [], is_over=False)] == [("waiting", "")] * 3


def test_learners_have_whole_name_of_kubernetes_node() -> None:
    node = "ip-10-0-0-1.eu-central-1.compute.internal"
    pod: dict[str, Scalar] = {"host": "training-7-1-0-abcde", "machine": node}
    events = told(*((rank, K.STARTED, pod) for rank in (0, 1)), *FAILED[2:], began(1, 2))
    assert {one.node for one in learner_list(LAUNCH, events, is_over=False)} == {node}
    (again,) = started_again(events)
    assert f"(worker 1, on {node})" in describe_restart(again, LAUNCH)


def test_learner_list_shows_only_latest_run() -> None:
    claims = [Event(1, at, "head", K.CLAIMED, {"restart": n}) for n, at in enumerate((50.0, 200.0))]
    found = learner_list(LAUNCH, [claims[0], *told(*FAILED), claims[1]], is_over=False)
    assert [each.state for each in found] == ["waiting"] * 3


def test_name_learner_includes_only_details_that_job_has() -> None:
    assert name_learner(LAUNCH, 3, "n2.site") == "learner 3 (ps 0, on n2.site)"
    assert name_learner(LAUNCH, 3, "") == "learner 3 (ps 0)"
    assert name_learner(replace(LAUNCH, nodes=1), 3, "n2") == "learner 3 (ps 0)"
    assert name_learner(replace(LAUNCH, seats=(), learners_per_node=2), 3, "n2") == "learner 3 (on n2)"
    assert name_learner(replace(LAUNCH, seats=(), nodes=1), 3, "n2") == "learner 3"
    assert describe_end(3, None) == "ended with exit code 3"
    assert describe_end(139, None) == "ended with exit code 139 (128 + 11: SIGSEGV)"
    assert (describe_end(None, 9), describe_end(None, 99)) == ("was killed by SIGKILL", "was killed by signal 99")


def event(seq: int, kind: EventKind, **fields: Scalar) -> Event:
    return Event(seq, 1000.0 + seq, "node-0", kind, fields)


def pace(seq: int, learner: int, step_s: float, *, steady: bool = True) -> Event:
    return event(seq, EventKind.PACE, learner_id=learner, host=f"n{learner}", step_s=step_s, steady=steady)


def found_in(*events: Event) -> list[Incident]:
    return list(alarms("training-x", 1, events))


def hang(seq: int, learner: int, silent_s: Scalar) -> Event:
    return event(seq, EventKind.HANG, learner_id=learner, host=f"n{learner}", silent_s=silent_s, idle=False)


def test_hang_alarm_names_stack_end_and_file_of_all_stacks() -> None:
    stack = "Thread 1 (idle)\n    wait (threading.py:355)\n    all_reduce (train.py:12)"
    more: dict[str, Scalar] = {"silent_s": 1800.4, "idle": True, "stack": stack, "file": "stacks-1800s.txt"}
    [found] = found_in(event(1, EventKind.STARTED), event(3, EventKind.HANG, learner_id=2, host="n1", **more))
    assert (found.kind, found.episode, found.learner, found.nodes) == ("user.hang", "hang-1", 2, ("n1",))
    assert (found.at, found.code) == (1003.0, "000")
    assert found.message == "learner 2 on n1 gave no sign of life for 1800 s, and computes nothing"
    assert found.evidence[1].text == "all stacks: stacks-1800s.txt in its $LOG_DIR"
    assert found.evidence[-1].text.endswith("all_reduce (train.py:12)")


def test_hang_alarms_number_repeated_hangs_and_merge_simultaneous_ones() -> None:
    """A collective operation that never ends has all of them, and nobody wants 64 mails of it."""
    again = found_in(hang(100, 1, 60.0), hang(400, 1, 60.0))
    assert [(one.episode, one.at) for one in again] == [("hang-1", 1100.0), ("hang-2", 1400.0)]
    together = [hang(100, 3, 60.0), hang(103, 1, 60.0), hang(109, 2, 60.0), hang(160, 4, 60.0)]
    [found] = found_in(*together)
    assert (found.learner, found.nodes, found.at) == (3, ("n3",), 1100.0)
    assert [one.episode for one in found_in(*together, hang(300, 1, 60.0))] == ["hang-1", "hang-2"]


def test_alarms_ignore_values_that_are_not_numbers() -> None:
    """Events are in files that are the user's."""
    [found] = found_in(hang(1, 1, "long"))
    assert "no sign of life for 0 s" in found.message
    assert found_in(pace(1, 1, float("nan")), pace(2, 2, 1.0), pace(3, 3, float("inf"))) == []


EQUAL = [pace(1, 1, 1.0), pace(2, 2, 1.0), pace(3, 3, 1.0)]


def test_straggler_alarm_is_absent_for_equal_or_single_learner_or_if_all_slow_down_together() -> None:
    """Nodes look a minute apart: what one tells is compared when the others have looked, too."""
    changed = [pace(70, 1, 3.0, steady=False), pace(80, 2, 3.0, steady=False), pace(120, 3, 3.0, steady=False)]
    settled = [pace(130, 1, 3.0), pace(140, 2, 3.0), pace(180, 3, 3.0)]
    assert found_in(*EQUAL, *changed, *settled) == []
    assert found_in(pace(1, 1, 9.0)) == []
    assert found_in(pace(1, 1, 1.0), pace(2, 2, 1.4), pace(3, 3, 1.2)) == []


def test_straggler_alarm_waits_until_slowdown_is_steady() -> None:
    before = [*EQUAL, pace(70, 1, 3.0, steady=False)]
    assert found_in(*before) == []
    [found] = found_in(*before, pace(130, 1, 3.0))
    assert (found.learner, found.at) == (1, 1130.0)


def test_straggler_alarm_reports_slow_learner_once_even_if_it_reported_first() -> None:
    [found] = found_in(pace(1, 1, 1.0), pace(2, 2, 1.1), pace(3, 3, 1.9), pace(4, 4, 1.0), pace(5, 3, 2.5))
    assert (found.kind, found.episode, found.learner, found.nodes) == ("user.straggler", "straggler-3", 3, ("n3",))
    assert "1.9 s a step, 1.9 times as long as the others (1 s)" in found.message
    [first] = found_in(pace(1, 1, 3.0), pace(2, 2, 1.0))
    assert (first.learner, first.nodes, first.at) == (1, ("n1",), 1002.0)


def test_alarms_report_each_warning_of_idle_gpus() -> None:
    first, second = found_in(
        event(1, EventKind.IDLE, host="n1", message="each GPU on n1 was idle"), event(2, EventKind.IDLE, host="n2")
    )
    assert (first.kind, first.episode, first.nodes, first.code) == ("user.idle_gpus", "idle-1", ("n1",), "000")
    assert first.message == "each GPU on n1 was idle"
    assert (second.episode, second.nodes, second.message) == ("idle-2", ("n2",), "GPUs are idle")
    assert found_in(event(1, EventKind.IDLE, host="n1", message="")) == []  # they are used again


def test_idle_warning_ignores_times_that_no_clock_has() -> None:
    for at in (1e300, -1.0, "soon"):
        event: Told = (0, K.IDLE, {"host": "n1", "message": "idle", "since": 100.0, "ends_at": at})
        assert idle_warning(told(*NODES, event)) == ""
