"""Requests for a checkpoint, ends from outside and the kernel's kills, for a learner in another container."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from ffdl_batch.domain.outcome.continuation import Interruption
from ffdl_batch.domain.outcome.controller_events import EventKind, Outcome
from ffdl_batch.host.processes import NAME, all_processes, name_of
from tests.contract.pod_rig import PodRig, pods

TRAINING = """
import os, signal, sys, time
def save(number, frame):
    print("asked by", signal.Signals(number).name, flush=True)
    open(os.environ["CHECKPOINT_DIR"] + "/ckpt", "w").write("state")
    sys.exit(0)
signal.signal(signal.SIGUSR2, save)
signal.signal(signal.SIGHUP, lambda number, frame: print("heard HUP", flush=True))
print("training", flush=True)
while True:
    time.sleep(0.05)
"""
DEAF = "trap '' USR2; echo deaf; while :; do sleep 0.1; done"


@pytest.fixture
def pod(tmp_path: Path) -> Iterator[PodRig]:
    with pods(tmp_path) as made:
        yield made[0]


def begin(pod: PodRig, command: str, says: str) -> None:
    """A learner that runs, and has printed `says`."""
    pod.write(command, model={"train.py": TRAINING})
    pod.start()
    pod.start_learner()
    pod.wait_for_log(says)
    pod.wait_for_event(EventKind.LEARNER_STARTED)


def control(action: str) -> str:
    return json.dumps({"format": 1, "attempt": 1, "requested_action": action, "drill": ""})


def test_pod_halt_signals_learner_and_confirms_checkpoint(pod: PodRig) -> None:
    begin(pod, "echo up; python3 train.py; true", "training")
    pod.annotate("control", control("halt"))
    assert pod.end() == (0, 0), pod.errors
    final = pod.final()
    assert (final.outcome, final.interruption) == (Outcome.HALTED, Interruption.HALT.value)
    assert final.checkpoint.confirmed
    assert "asked by SIGUSR2\n" in pod.log()
    assert (Path(pod.attempt.state) / "halt").exists()


def test_pod_deletion_requests_checkpoint_as_preemption_and_shim_ignores_term(pod: PodRig) -> None:
    """What the hook of the learner's container does, and TERM, of which an image may make what it likes."""
    begin(pod, "exec python3 train.py", "training")
    assert pod.container is not None
    pod.delete()
    pod.container.send_signal(signal.SIGTERM)
    assert pod.end() == (0, 0), pod.errors
    final = pod.final()
    assert (final.outcome, final.interruption) == (Outcome.HALTED, Interruption.PREEMPTION.value), final
    assert final.checkpoint.confirmed


def test_pod_cancel_kills_unresponsive_learner_and_its_processes(pod: PodRig) -> None:
    begin(pod, f"setsid sleep 300 & {DEAF}", "deaf")
    pod.wait(lambda: len(pod.learner_pids()) >= 3, "what it started")
    pod.annotate("control", control("cancel"))
    code, _ = pod.end()
    assert code != 0
    assert pod.final().outcome is Outcome.CANCELLED
    assert pod.processes() == []


def test_pod_forwards_each_numbered_signal_once(pod: PodRig) -> None:
    begin(pod, "exec python3 train.py", "training")
    pod.annotate("signal", "1 HUP")
    pod.wait_for_log("heard HUP")
    pod.annotate("signal", "1 HUP\n")  # the same number in other words
    pod.annotate("control", control(""))
    pod.wait(lambda: Path(pod.attempt.control).exists(), "the control cell")
    pod.annotate("signal", "2 HUP")
    pod.wait(lambda: pod.log().count("heard HUP") == 2, "the second one")
    pod.annotate("signal", "3 URG")
    assert pod.end() == (0, 0), pod.errors
    assert pod.log().count("heard HUP") == 2
    assert pod.final().interruption == Interruption.PREEMPTION.value


def test_pod_reports_out_of_memory_when_container_counter_increases(pod: PodRig) -> None:
    group = pod.base / "group"
    group.mkdir()
    counter = group / "memory.events"
    counter.write_text("low 0\noom 0\noom_kill 2\n")
    pod.cgroup = group
    begin(pod, "echo here; while [ ! -e /job/now ]; do sleep 0.05; done; kill -9 $$", "here")
    counter.write_text("low 0\noom 1\noom_kill 3\n")
    (Path(pod.attempt.state) / "now").touch()
    assert pod.end()[0] == 137, pod.errors
    final = pod.final()
    assert final.error_code == "C202", final
    (ended,) = [e for e in pod.events() if e.kind is EventKind.LEARNER_ENDED]
    assert ended.fields["out_of_memory"] is True


def test_pod_attempt_fails_when_learner_container_is_killed(pod: PodRig) -> None:
    begin(pod, "echo here; sleep 300", "here")
    for pid in pod.learner_pids():
        os.kill(pid, signal.SIGKILL)
    code, status = pod.end()
    assert code == -9
    assert status == 137, pod.errors
    final = pod.final()
    assert final.outcome is Outcome.FAILED
    assert "the learner's container was killed" in pod.log()


def test_pod_controllers_ignore_signals_of_learner_and_are_not_named_after_python(pod: PodRig) -> None:
    begin(
        pod,
        'echo up; until [ -e "$JOB_STATE_DIR/pids" ]; do sleep 0.1; done; kill $(cat "$JOB_STATE_DIR/pids"); exit 5',
        "up",
    )
    assert pod.sidecar is not None
    table = all_processes()
    started = [int(str(e.fields["pid"])) for e in pod.events() if e.kind is EventKind.STARTED]
    controllers = [pod.sidecar.pid, table[started[0]].parent, *started]
    assert {name_of(pid) for pid in controllers} == {NAME}
    ready = Path(pod.attempt.state) / "pids.new"
    ready.write_text(" ".join(map(str, controllers)))
    ready.rename(Path(pod.attempt.state) / "pids")
    assert pod.end()[0] == 5, pod.errors
    final = pod.final()
    assert (final.outcome, final.error_code, final.exit_code) == (Outcome.FAILED, "C201", 5), final
    assert "SIGTERM from process" in pod.errors
