"""Requests for a checkpoint, ends from outside and the kernel's kills, for a learner in another container."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from ffdl_batch.domain.continuation import Interruption
from ffdl_batch.domain.events import EventKind, Outcome
from ffdl_batch.domain.limits import Limits
from tests.contract.pod_rig import LIMITS, PodRig, pods

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


def begin(pod: PodRig, command: str, says: str, limits: Limits = LIMITS) -> None:
    """A learner that runs, and has printed `says`."""
    pod.write(command, model={"train.py": TRAINING}, limits=limits)
    pod.start()
    pod.start_learner()
    pod.wait_for_log(says)
    pod.wait(lambda: any(e.kind is EventKind.LEARNER_STARTED for e in pod.events()), "the event")


def control(wish: str) -> str:
    return json.dumps({"format": 1, "attempt": 1, "wish": wish, "drill": ""})


def test_a_halt_reaches_the_program_that_catches_the_signal(pod: PodRig) -> None:
    begin(pod, "echo up; python3 train.py; true", "training")
    pod.wish("control", control("halt"))
    assert pod.end() == (0, 0), pod.errors
    final = pod.final()
    assert (final.outcome, final.interruption) == (Outcome.HALTED, Interruption.HALT.value)
    assert final.checkpoint.confirmed
    assert "asked by SIGUSR2\n" in pod.log()
    assert (Path(pod.attempt.state) / "halt").exists()


def test_a_pod_that_is_deleted_asks_for_a_checkpoint_first(pod: PodRig) -> None:
    """What the hook of the learner's container does; that is a preemption, whatever the cluster calls it."""
    begin(pod, "exec python3 train.py", "training")
    pod.delete()
    assert pod.end() == (0, 0), pod.errors
    final = pod.final()
    assert (final.outcome, final.interruption) == (Outcome.HALTED, Interruption.PREEMPTION.value), final
    assert final.checkpoint.confirmed


def test_term_to_the_container_is_no_end_of_the_learner(pod: PodRig) -> None:
    """An image may make of TERM what it likes: the shim goes on, and the checkpoint is written."""
    begin(pod, "exec python3 train.py", "training")
    assert pod.container is not None
    pod.delete()
    pod.container.send_signal(signal.SIGTERM)
    assert pod.end() == (0, 0), pod.errors
    assert pod.final().checkpoint.confirmed


def test_a_learner_that_does_not_answer_is_killed_with_all_it_started(pod: PodRig) -> None:
    begin(pod, f"setsid sleep 300 & {DEAF}", "deaf")
    pod.wait(lambda: len(pod.learner_pids()) >= 3, "what it started")
    pod.wish("control", control("cancel"))
    code, _ = pod.end()
    assert code != 0
    assert pod.final().outcome is Outcome.CANCELLED
    assert pod.processes() == []


def test_a_signal_of_the_platform_is_passed_on_once_per_number(pod: PodRig) -> None:
    begin(pod, "exec python3 train.py", "training")
    pod.wish("signal", "1 HUP")
    pod.wait_for_log("heard HUP")
    pod.wish("signal", "1 HUP\n")  # the same number in other words
    pod.wish("control", control(""))
    pod.wait(lambda: Path(pod.attempt.control).exists(), "the control cell")
    pod.wish("signal", "2 HUP")
    pod.wait(lambda: pod.log().count("heard HUP") == 2, "the second one")
    pod.wish("signal", "3 URG")
    assert pod.end() == (0, 0), pod.errors
    assert pod.log().count("heard HUP") == 2
    assert pod.final().interruption == Interruption.PREEMPTION.value


def test_a_time_limit_is_kept_by_the_head(pod: PodRig) -> None:
    limits = Limits(grace_s=8, kill_wait_s=2, heartbeat_s=0.5, time_s=16)  # the learner begins in the first half
    begin(pod, "exec python3 train.py", "training", limits=limits)
    assert pod.end() == (0, 0), pod.errors
    assert pod.final().interruption == Interruption.TIMEOUT.value


def test_want_of_memory_is_known_by_the_container_s_own_counter(pod: PodRig) -> None:
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


def test_without_a_kill_by_the_kernel_there_is_no_want_of_memory(pod: PodRig) -> None:
    group = pod.base / "group"
    group.mkdir()
    (group / "memory.events").write_text("oom_kill 2\n")
    pod.cgroup = group
    pod.write("kill -9 $$")
    assert pod.run()[0] == 137, pod.errors
    assert pod.final().error_code == "C201"


def test_a_container_that_is_killed_whole_ends_the_attempt(pod: PodRig) -> None:
    begin(pod, "echo here; sleep 300", "here")
    for pid in pod.learner_pids():
        os.kill(pid, signal.SIGKILL)
    code, status = pod.end()
    assert code == -9
    assert status == 137, pod.errors
    final = pod.final()
    assert final.outcome is Outcome.FAILED
    assert "the learner's container was killed" in pod.log()
