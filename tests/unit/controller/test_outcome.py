"""How an attempt ended, from events."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from ffdl_batch.attempt.conclusion import StepEnd, conclude, exit_status, may_run_again
from ffdl_batch.attempt.event_journal import Journal
from ffdl_batch.controller.become import VICTIM, VICTIM_SCORE
from ffdl_batch.controller.head.final_record import left_to_others
from ffdl_batch.controller.learner.learner import first_host, placeholder_devices
from ffdl_batch.controller.learner.out_of_memory import (
    OomCounters,
    describe_memory,
    read_counters,
    was_out_of_memory,
)
from ffdl_batch.controller.own_program import module_argv
from ffdl_batch.domain.data.staging_protocol import Transfer
from ffdl_batch.domain.data.store_kinds import StoreAddress, StoreKind
from ffdl_batch.domain.launch.launch_file import LaunchFile, Pod
from ffdl_batch.domain.outcome.controller_events import (
    Event,
    EventKind,
    FinalRecord,
    GoesOn,
    Outcome,
    Scalar,
    decode_events,
)
from tests.unit.controller.rig import launch_file

K = EventKind


def launch(learners: int = 1) -> LaunchFile:
    return launch_file(learners=learners, nodes=learners)


def ev(kind: EventKind, at: float = 1.0, source: str = "node-0", **fields: Scalar) -> Event:
    return Event(int(at * 10), at, source, kind, fields)


def ended(learner: int = 1, at: float = 2.0, **fields: Scalar) -> Event:
    return ev(K.LEARNER_ENDED, at, "node-0", learner_id=learner, **{"exit_code": 0, "ended_by": "", **fields})


STORED = ev(K.STORED, 3.0, learner_id=1)


@pytest.mark.parametrize(
    ("events", "terminated", "outcome", "code"),
    [
        ([ended(), STORED], False, Outcome.COMPLETED, "000"),
        ([ended(), STORED], True, Outcome.COMPLETED, "000"),
        ([ended()], False, Outcome.FAILED, "S106"),
        ([ended()], True, Outcome.CANCELLED, "000"),
        ([ended(), ev(K.FAULT, 3.0, code="S303", message="full")], False, Outcome.FAILED, "S303"),
        ([ended(exit_code=3), STORED], False, Outcome.FAILED, "C201"),
        ([ended(exit_code=137, out_of_memory=True), STORED], False, Outcome.FAILED, "C202"),
        ([ended(exit_code=255, code="S103", detail="x")], False, Outcome.FAILED, "S103"),
        ([ended(exit_code=143, ended_by="term"), STORED], True, Outcome.CANCELLED, "000"),
        ([ended(ended_by="term"), STORED], False, Outcome.CANCELLED, "000"),
        ([ended(ended_by="halt"), STORED], False, Outcome.HALTED, "000"),
        ([ended(exit_code=143, ended_by="time"), STORED], False, Outcome.TIMED_OUT, "C203"),
        ([ev(K.FAULT, code="S301", message="zip")], False, Outcome.FAILED, "S301"),
        ([ev(K.FAULT, code="", message="halted", ended_by="halt")], False, Outcome.HALTED, "000"),
        ([], True, Outcome.CANCELLED, "000"),
        ([], False, Outcome.FAILED, "S106"),
        ([ended(), STORED, ev(K.LEARNER_STARTED, 4.0, learner_id=1)], False, Outcome.FAILED, "S106"),
    ],
)
def test_conclude_derives_outcome_and_error_code_from_events(
    events: list[Event], terminated: bool, outcome: Outcome, code: str
) -> None:
    found = conclude(launch(), events, terminated)
    assert (found.outcome, found.error_code) == (outcome, code)


LEFT = ev(K.LEARNER_ENDED, 2.0, "node-2", learner_id=3, exit_code=143, ended_by="released")
LEFT_STORED = ev(K.STORED, 2.5, "node-2", learner_id=3)


@pytest.mark.parametrize(
    ("more", "outcome", "code"),
    [
        ([LEFT_STORED], Outcome.COMPLETED, "000"),
        ([], Outcome.FAILED, "S106"),
        ([ev(K.FAULT, 2.5, "node-2", code="S303", message="full")], Outcome.FAILED, "S303"),
        ([LEFT_STORED, ev(K.FAULT, 3.5, "node-2", code="S106", message="died")], Outcome.COMPLETED, "000"),
        ([LEFT_STORED, ended(2, 4.0, exit_code=1)], Outcome.FAILED, "C201"),
    ],
)
def test_learner_that_left_only_needs_to_be_stored(more: list[Event], outcome: Outcome, code: str) -> None:
    events = [LEFT, ended(1, 3.0), ended(2, 3.0), STORED, ev(K.STORED, 3.0, learner_id=2), *more]
    found = conclude(launch(3), events, terminated=False)
    assert (found.outcome, found.error_code) == (outcome, code)


def test_checkpoint_is_confirmed_without_learner_that_left() -> None:
    reports = [
        ev(K.CHECKPOINT, 4.0, source, asked=asked, confirmed=asked, answered=asked, took_s=1.0)
        for source, asked in (("node-0", True), ("node-2", False))
    ]
    ends = [ended(number, 3.0, asked="halt") for number in (1, 2)]
    found = conclude(launch(3), [LEFT, LEFT_STORED, ev(K.ASKED, 2.8, reason="halt"), *ends, *reports], terminated=False)
    assert (found.outcome, found.checkpoint.confirmed, found.checkpoint.missing) == (Outcome.HALTED, True, "")


@pytest.mark.parametrize(
    ("events", "code", "said"),
    [
        ([ev(K.STARTED, host="n1")], "C202", "more than 96 MiB; the controller of node 0 (n1) died"),
        ([ev(K.FAULT, code="S106", message="n2 is silent")], "C202", "more than 96 MiB; n2 is silent"),
        ([ended()], "S106", "a node controller died while storing"),
        ([ended(exit_code=1)], "C201", "learner 1 ended with exit code 1"),
    ],
)
def test_conclude_blames_memory_for_controller_that_died_before_training_was_done(
    events: list[Event], code: str, said: str
) -> None:
    found = conclude(launch(), events, False, step=StepEnd("more than 96 MiB", "task 0: Out Of Memory"))
    assert (found.error_code, found.message.startswith(said)) == (code, True), found.message
    assert found.message.endswith("; the step printed: task 0: Out Of Memory") == (code != "C201")


LOADED = ev(K.PHASE, phase="load-data", status="ended", exit=0)


@pytest.mark.parametrize(
    ("events", "terminated", "outcome", "code", "interruption"),
    [
        ([LOADED], False, Outcome.HALTED, "000", "staged"),
        ([LOADED], True, Outcome.CANCELLED, "000", ""),
        ([LOADED, ev(K.FAULT, 3.0, code="S302", message="gone")], False, Outcome.FAILED, "S302", ""),
        ([ev(K.PHASE, phase="load-data", status="ended", exit=1)], False, Outcome.FAILED, "S106", ""),
        ([ev(K.PHASE, phase="load-model", status="ended", exit=0)], False, Outcome.FAILED, "S106", ""),
    ],
)
def test_conclude_derives_outcome_of_attempt_that_only_stages(
    events: list[Event], terminated: bool, outcome: Outcome, code: str, interruption: str
) -> None:
    found = conclude(replace(launch(), only_stages=True), events, terminated)
    assert (found.outcome, found.error_code, found.interruption) == (outcome, code, interruption)
    assert conclude(launch(), events, terminated).interruption == ""


def test_conclude_reports_first_failed_learner() -> None:
    events = [ended(2, 2.0, exit_code=5), ended(1, 3.0, exit_code=6), ended(3, 3.5, exit_code=143, ended_by="stop")]
    found = conclude(launch(3), events, False)
    assert (found.learner_id, found.exit_code) == (2, 5)


def test_conclude_names_node_without_end_event() -> None:
    events = [ended(1), STORED, ev(K.STARTED, source="node-1", host="n7")]
    assert "node 1 (n7)" in conclude(launch(2), events, False).message


MISSING = ended(exit_code=255, code="S103", detail="no image")
STOPPED = "node 1 (n1) ended before all nodes were ready"


def fault(node: int, code: str = "", at: float = 2.0, **fields: Scalar) -> Event:
    return ev(K.FAULT, at, f"node-{node}", code=code, **{"message": f"{code} of node {node}", **fields})


def gave_up(node: int, why: str, at: float = 2.0) -> Event:
    """A node that ended before its learner started, because of `why`."""
    return fault(node, at=at, ended_by=why, message=STOPPED if why == "stop" else why)


@pytest.mark.parametrize(
    ("events", "terminated", "outcome", "code", "message"),
    [
        ([gave_up(0, "stop")], False, Outcome.FAILED, "S106", STOPPED),
        ([gave_up(0, "failure")], False, Outcome.FAILED, "S106", "failure"),
        ([gave_up(0, "stop"), gave_up(1, "stop", 3.0)], False, Outcome.FAILED, "S106", STOPPED),
        ([gave_up(0, "stop"), ended(2, ended_by="stop")], False, Outcome.FAILED, "S106", STOPPED),
        # what happened to another node wins, whoever said so first
        ([gave_up(0, "stop", 1.0), fault(1, "S302", 9.0)], False, Outcome.FAILED, "S302", "S302 of node 1"),
        ([fault(0, "S106", 1.0), fault(1, "S101", 9.0)], False, Outcome.FAILED, "S101", "S101 of node 1"),
        ([fault(0, "S106", 1.0), fault(1, "S104", 9.0)], True, Outcome.FAILED, "S104", "S104 of node 1"),
        ([fault(0, "S302", 3.0), fault(1, "S105", 2.0)], False, Outcome.FAILED, "S105", "S105 of node 1"),
        ([gave_up(0, "stop"), MISSING], False, Outcome.FAILED, "S103", "no image"),
        ([fault(1, "S106"), MISSING], False, Outcome.FAILED, "S103", "no image"),
        # somebody asked for the end
        ([gave_up(0, "stop")], True, Outcome.CANCELLED, "000", "ended from outside before the learners had finished"),
        ([gave_up(0, "stop", 1.0), gave_up(1, "term")], False, Outcome.CANCELLED, "000",
         "ended from outside before the learners had finished"),
        ([gave_up(0, "stop", 1.0), gave_up(1, "halt")], False, Outcome.HALTED, "000", "halt"),
        ([gave_up(0, "term", 1.0), gave_up(1, "halt")], False, Outcome.HALTED, "000", "halt"),
        # one learner was at work when the other's node was asked
        ([fault(1, "S302"), ended(1, asked="halt")], False, Outcome.FAILED, "S302", "S302 of node 1"),
        ([gave_up(1, "halt"), ended(1, asked="halt")], False, Outcome.HALTED, "000",
         "halted on request; no checkpoint was confirmed"),
        ([gave_up(1, "warned"), ended(1, asked="warned", exit_code=143, ended_by="warned")], False, Outcome.TIMED_OUT,
         "C203", "the time limit was reached; no checkpoint was confirmed"),
    ],
)  # fmt: skip
def test_conclude_derives_outcome_when_nodes_end_before_learners_start(
    events: list[Event], terminated: bool, outcome: Outcome, code: str, message: str
) -> None:
    found = conclude(launch(2), events, terminated)
    assert (found.outcome, found.error_code, found.message) == (outcome, code, message)


def test_conclude_ignores_faults_of_earlier_runs() -> None:
    events = [fault(1, "S101", 1.0), ev(K.STARTED, 2.0, "node-1"), gave_up(0, "stop", 3.0)]
    assert conclude(launch(2), events, False).error_code == "S106"


@pytest.mark.parametrize(
    ("final", "status", "again"),
    [
        (FinalRecord("1", Outcome.COMPLETED, 0.0, True, 0), 0, False),
        (FinalRecord("1", Outcome.COMPLETED, 0.0, False, 0), 74, False),
        (FinalRecord("1", Outcome.FAILED, 0.0, True, 3), 3, False),
        (FinalRecord("1", Outcome.FAILED, 0.0, True, None, 9), 137, False),
        (FinalRecord("1", Outcome.FAILED, 0.0, False, error_code="S106"), 74, True),
        (FinalRecord("1", Outcome.CANCELLED, 0.0, True), 143, True),
        (FinalRecord("1", Outcome.HALTED, 0.0, True), 0, False),
        (FinalRecord("1", Outcome.TIMED_OUT, 0.0, True), 124, False),
        (FinalRecord("1", Outcome.HALTED, 0.0, True, goes_on=GoesOn.REQUEUE), 0, True),
        (FinalRecord("1", Outcome.TIMED_OUT, 0.0, True, goes_on=GoesOn.REQUEUE), 124, True),
        (FinalRecord("1", Outcome.HALTED, 0.0, True, goes_on=GoesOn.SUCCESSOR), 0, False),
        (FinalRecord("1", Outcome.HALTED, 0.0, False, goes_on=GoesOn.PLATFORM), 0, False),
    ],
)
def test_exit_status_and_rerun_follow_final_record(final: FinalRecord, status: int, again: bool) -> None:
    assert (exit_status(final), may_run_again(final)) == (status, again)


@pytest.mark.parametrize(
    ("before", "after", "code", "expected"),
    [
        (OomCounters(1, 5), OomCounters(2, 6), 137, True),
        (OomCounters(1, 5), OomCounters(1, 6), 137, False),
        (OomCounters(None, 5), OomCounters(None, 6), -9, True),
        (OomCounters(None, 5), OomCounters(None, 6), 137, True),
        (OomCounters(None, 5), OomCounters(None, 6), 1, False),
        (OomCounters(1, 5), OomCounters(None, 6), -9, True),
        (OomCounters(None, 5), OomCounters(2, 6), -9, True),
        (OomCounters(None, None), OomCounters(None, None), -9, False),
        (OomCounters(1, 5), OomCounters(2, 6), 0, False),
    ],
)
def test_out_of_memory_is_detected_from_oom_counters_and_exit_status(
    before: OomCounters, after: OomCounters, code: int, expected: bool
) -> None:
    assert was_out_of_memory(before, after, code) is expected


V1, V2 = "4:memory:/job/step\n0::/\n", "0::/job/step\n"
HALF = "128 MiB on this node, 64 MiB of it in /dev/shm or other files in memory"


def memory_tree(base: Path, cgroup: str, files: Mapping[str, str]) -> tuple[str, str]:
    """Directories like /proc and /sys/fs/cgroup with these files."""
    vmstat = "nr_free_pages 1\noom_kill 7\n"
    below = "cg/memory" if cgroup == V1 else "cg"
    written = {"proc/self/cgroup": cgroup, "proc/vmstat": vmstat} | {f"{below}/{name}": files[name] for name in files}
    for path, content in written.items():
        (base / path).parent.mkdir(parents=True, exist_ok=True)
        (base / path).write_text(content)
    return str(base / "proc"), str(base / "cg")


@pytest.mark.parametrize(
    ("cgroup", "file", "text"),
    [
        (V2, "job/step/memory.events", "oom 3\noom_kill 2\n"),
        (V1, "job/step/memory.oom_control", "oom_kill_disable 0\noom_kill 2\n"),
    ],
    ids=["v2", "v1"],
)
def test_read_counters_supports_cgroup_v1_and_v2(tmp_path: Path, cgroup: str, file: str, text: str) -> None:
    assert read_counters(*memory_tree(tmp_path, cgroup, {file: text})) == OomCounters(2, 7)


@pytest.mark.parametrize(
    ("cgroup", "files", "said"),
    [
        (V2, {"job/step/memory.max": "max\n", "job/memory.max": f"{128 << 20}\n"}, "128 MiB on this node"),
        (V2, {"job/step/memory.max": f"{128 << 20}\n", "job/step/memory.stat": f"shmem {64 << 20}\n"}, HALF),
        (V2, {"job/step/memory.max": f"{96 << 30}\n"}, "96.0 GiB on this node"),
        (V2, {"job/step/memory.max": "max\n"}, ""),
        (
            V1,
            {"job/memory.limit_in_bytes": f"{128 << 20}\n", "job/step/memory.stat": f"total_shmem {64 << 20}\n"},
            HALF,
        ),
        (V1, {"job/memory.limit_in_bytes": "9223372036854771712\n"}, ""),
    ],
)
def test_describe_memory_reads_smallest_limit_of_job_and_files_in_memory(
    tmp_path: Path, cgroup: str, files: Mapping[str, str], said: str
) -> None:
    assert describe_memory(*memory_tree(tmp_path, cgroup, files)) == said


@pytest.mark.parametrize(("options", "more"), [((), 0), ((VICTIM,), VICTIM_SCORE)])
def test_program_that_becomes_restarted_learner_is_preferred_victim(options: tuple[str, ...], more: int) -> None:
    own = int(Path("/proc/self/oom_score_adj").read_text())
    argv = [*module_argv("ffdl_batch.controller.become"), *options, "cat", "/proc/self/oom_score_adj"]
    assert int(subprocess.run(argv, check=True, capture_output=True).stdout) == min(1000, own + more)


@pytest.mark.parametrize(
    ("text", "first"),
    [("n1", "n1"), ("n[03-07,9],m1", "n03"), ("a,b", "a"), ("", ""), ("r[1-2]n[5,6]", "r1n5"), ("n[1]-ib,x", "n1-ib")],
)
def test_first_host_expands_slurm_host_list(text: str, first: str) -> None:
    assert first_host(text) == first


@pytest.mark.parametrize(
    ("devices", "learners", "shares"),
    [("0,1,2,3", 2, ["0,1", "2,3"]), ("", 2, ["", ""]), ("0,1,2", 2, ["0", "1"]), ("GPU-a", 1, ["GPU-a"])],
)
def test_placeholder_devices_splits_devices_among_learners(devices: str, learners: int, shares: list[str]) -> None:
    assert placeholder_devices(devices, learners) == shares


def test_journal_continues_after_last_complete_line(tmp_path: Path) -> None:
    path = tmp_path / "head.jsonl"
    Journal(str(path), "head").append(K.STARTED, host="a")
    with path.open("a") as file:
        file.write('{"seq":2,"torn')
    again = Journal(str(path), "head")
    assert [e.seq for e in again.earlier] == [1]
    again.append(K.FINAL, outcome="completed")
    assert [(e.seq, e.kind) for e in decode_events(path.read_text())] == [(1, K.STARTED), (2, K.FINAL)]


def test_journal_keeps_events_until_write_succeeds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "later" / "events" / "head.jsonl"
    journal = Journal(str(path), "head")
    journal.append(K.STARTED, host="a")
    assert "tried again" in capsys.readouterr().err
    path.parent.parent.mkdir()
    journal.append(K.FINAL, outcome="failed")
    assert [e.seq for e in decode_events(path.read_text())] == [1, 2]


def at_work(node: int, at: float = 1.0) -> list[Event]:
    """The controller of a node has begun, and its one learner."""
    source, host = f"node-{node}", f"n{node + 1}"
    return [ev(K.STARTED, at, source, host=host), ev(K.LEARNER_STARTED, at + 0.1, source, learner_id=node + 1)]


def own_end(node: int, at: float = 5.0, **fields: Scalar) -> Event:
    return ev(K.LEARNER_ENDED, at, f"node-{node}", learner_id=node + 1, **{"exit_code": 1, "ended_by": "", **fields})


def test_conclude_blames_lost_node_when_peer_learner_fails() -> None:
    """The controller of node 1 was killed, and with it what it had started; the peer's connection broke."""
    found = conclude(launch(2), [*at_work(0), *at_work(1), own_end(0)], False)
    assert (found.outcome, found.error_code, found.learner_id) == (Outcome.FAILED, "S106", 0)
    assert "the controller of node 1 (n2) died without a report" in found.message
    assert found.message.endswith("; meanwhile learner 1 ended with exit code 1")


def test_conclude_reports_fault_that_lost_node_recorded() -> None:
    fenced = fault(1, "S106", 4.0, message="the learners were killed: n2 was cut off")
    found = conclude(launch(2), [*at_work(0), *at_work(1), fenced, own_end(0)], False)
    assert (found.error_code, found.message) == ("S106", "the learners were killed: n2 was cut off")


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ([own_end(0), own_end(1, 6.0, exit_code=143, ended_by="stop")], "C201"),  # its end was seen
        ([own_end(0, out_of_memory=True)], "C202"),
        ([own_end(0, code="S105", detail="no shell")], "S105"),
        ([own_end(0, asked="term")], "C201"),
    ],
)
def test_conclude_blames_learner_that_failed_by_itself(more: list[Event], code: str) -> None:
    assert conclude(launch(2), [*at_work(0), *at_work(1), *more], False).error_code == code


def test_conclude_blames_learner_if_controller_died_in_earlier_run() -> None:
    before = [*at_work(0), *at_work(1), own_end(0, 2.0, exit_code=143, ended_by="term")]
    now = [*at_work(0, 10.0), ev(K.STARTED, 10.0, "node-1", host="n2"), own_end(0, 12.0)]
    assert conclude(launch(2), [*before, *now], False).error_code == "C201"


def test_conclude_prefers_learner_that_could_not_start_over_earlier_failure() -> None:
    late = own_end(1, 9.0, exit_code=255, began=False, code="S107", detail="refused on n2")
    found = conclude(launch(2), [*at_work(0), *at_work(1), own_end(0, 3.0), late], False)
    assert (found.error_code, found.message) == ("S107", "refused on n2")


def test_conclude_names_every_unfit_node_grouped_by_reason() -> None:
    hosts = [ev(K.STARTED, source=f"node-{n}", host=f"n{n}") for n in range(4)]
    said = [fault(n, "S107", 2.0 + n, message=f"node n{n} has no network: no vxlan") for n in range(3)]
    other = fault(3, "S107", 8.0, message="node n3 has no network: no prolog")
    found = conclude(launch(4), [*hosts, *said, other, fault(2, "S302", 9.0)], False)
    both = "node n0 has no network: no vxlan (and so on n1, n2); node n3 has no network: no prolog"
    assert (found.error_code, found.message) == ("S107", both)


FULL = ev(K.FAULT, 3.0, code="S303", message="no space left")
CLOSED = ev(K.FAULT, 3.0, code="C205", message="no space left")


@pytest.mark.parametrize(
    ("events", "outcome", "code", "says"),
    [
        ([ended(ended_by="halt"), FULL], Outcome.HALTED, "S305", True),
        ([ended(ended_by="halt"), CLOSED], Outcome.HALTED, "C205", True),
        ([ended(), CLOSED], Outcome.FAILED, "C205", False),
        ([ended(exit_code=3), CLOSED], Outcome.FAILED, "C201", False),
        ([ended(ended_by="halt"), STORED], Outcome.HALTED, "000", False),
        ([ended(exit_code=3), FULL], Outcome.FAILED, "C201", False),
        ([ended(exit_code=143, ended_by="time"), FULL], Outcome.TIMED_OUT, "C203", False),
    ],
)
def test_conclude_reports_upload_failure_only_after_halt(
    events: list[Event], outcome: Outcome, code: str, says: bool
) -> None:
    found = conclude(launch(), events, False)
    assert (found.outcome, found.error_code, found.message.endswith("; no space left")) == (outcome, code, says)


# ------------------------------------------------------------------------ what an attempt left that reaches no store

STARTED = ev(K.LEARNER_STARTED, 1.5, learner_id=1)


def cut_off() -> LaunchFile:
    """In a pod that reaches no store, and has something to go there."""
    store = Transfer(StoreAddress(StoreKind.S3, container="out"), "out", "/j/a/results")
    return replace(launch(), pod=Pod("/pod", cut_off=True), uploads=(store,))


@pytest.mark.parametrize(
    ("events", "outcome", "later", "status"),
    [
        ([STARTED, ended()], Outcome.COMPLETED, True, 0),
        ([STARTED, ended(exit_code=3)], Outcome.FAILED, True, 3),
        ([STARTED, ended(ended_by="halt")], Outcome.HALTED, True, 0),
        ([STARTED, ended(exit_code=143, ended_by="time")], Outcome.TIMED_OUT, True, None),
        ([STARTED, ended(exit_code=143, ended_by="term")], Outcome.CANCELLED, False, None),
        ([ev(K.FAULT, 3.0, code="S302", message="gone")], Outcome.FAILED, False, None),
    ],
)
def test_pending_upload_is_deferred_unless_cancelled_or_not_started(
    events: list[Event], outcome: Outcome, later: bool, status: int | None
) -> None:
    told = conclude(cut_off(), events, terminated=outcome is Outcome.CANCELLED)
    assert (told.outcome, told.stored) == (outcome, False)
    record = FinalRecord("7", told.outcome, 4.0, told.stored, told.exit_code, told.exit_signal, told.error_code)
    final = left_to_others(cut_off(), record, lambda: events)
    assert final.stores_later is later
    assert status is None or exit_status(final) == status


def test_pending_upload_is_not_deferred_if_pod_reaches_stores() -> None:
    record = FinalRecord("7", Outcome.FAILED, 4.0, False, error_code="S303")
    near = replace(cut_off(), pod=Pod("/pod"))
    assert left_to_others(near, record, lambda: [STARTED, ended()]) == record
