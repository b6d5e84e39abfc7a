"""Two pods of one attempt, each with a tree of its own: the test brings each what the other's controllers said."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from ffdl_batch.domain.launch.limits import Limits
from ffdl_batch.domain.outcome.continuation import Interruption
from ffdl_batch.domain.outcome.controller_events import HEAD, EventKind, Outcome, decode_events
from ffdl_batch.host.processes import send
from tests.contract.pod_rig import LIMITS, PodRig, TinyMirror, pods
from tests.contract.test_pod_signals import TRAINING

HEAD_EVENTS = f"events/{HEAD}.jsonl"

MEET = """
import os, socket, sys, time
rank, port = int(os.environ["RANK"]), int(os.environ["MASTER_PORT"])
if rank == 0:
    server = socket.create_server((os.environ["MASTER_ADDR"], port))
    print("heard", server.accept()[0].recv(100).decode(), flush=True)
else:
    own = socket.gethostbyname("learner-x-1").encode()
    for _ in range(1200):
        try:
            socket.create_connection(("learner-x-0", port)).sendall(own)
            break
        except ConnectionRefusedError:
            time.sleep(0.1)
open(os.environ["RESULT_DIR"] + f"/rank-{rank}", "w").write("done")
"""


@pytest.fixture
def gang(tmp_path: Path) -> Iterator[list[PodRig]]:
    with pods(tmp_path, 2) as made:
        yield made


class Courier:
    """The daemon's part: what a pod said becomes the other's annotation."""

    def __init__(self, gang: list[PodRig]) -> None:
        self._gang = gang
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.bring: Callable[[int], bool] = lambda _index: True

    def _run(self) -> None:
        while not self._done.wait(0.1):
            self._turn()

    def _turn(self) -> None:
        for pod in self._gang:
            if pod.sidecar is None or not self.bring(pod.index):
                continue
            files = TinyMirror().apply(pod.frames()).files
            said = {name: files.get(name, b"").decode() for name in (f"events/node-{pod.index}.jsonl", HEAD_EVENTS)}
            if not any(event.kind is EventKind.FINAL for event in decode_events(said[HEAD_EVENTS])):
                del said[HEAD_EVENTS]
            for other in self._gang:
                if other is not pod and any(said.values()):
                    other.annotate("siblings", json.dumps(said))

    @contextmanager
    def at_work(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._done.set()
            self._thread.join()


def begin(gang: list[PodRig], command: str, limits: Limits = LIMITS) -> None:
    port = 20_000 + os.getpid() % 10_000  # another test run on this machine has another
    for pod in gang:
        pod.write(command, model={"meet.py": MEET, "train.py": TRAINING}, learners=2, limits=limits, ports=port)
        pod.start()
    for pod in gang:
        pod.start_learner()


def test_pod_gang_learners_start_when_all_pods_are_ready_and_complete_as_one_job(gang: list[PodRig]) -> None:
    courier, allowed = Courier(gang), threading.Event()
    courier.bring = lambda _index: allowed.is_set()
    with courier.at_work():
        begin(gang, "python3 meet.py")
        for pod in gang:
            pod.wait_for_event(EventKind.READY)
        assert not [e for pod in gang for e in pod.events() if e.kind is EventKind.LEARNER_STARTED]
        allowed.set()
        assert [pod.end() for pod in reversed(gang)] == [(0, 0), (0, 0)], [pod.log() for pod in gang]
    final = gang[0].final()
    assert (final.outcome, final.stored) == (Outcome.COMPLETED, True), final
    assert "heard 127.0.1.2" in gang[0].log()
    for pod in gang:
        assert (Path(pod.attempt.results) / f"rank-{pod.index}").read_text() == "done"
        said = TinyMirror().apply(pod.frames()).files
        assert said[f"events/node-{pod.index}.jsonl"] == Path(pod.attempt.event_file(f"node-{pod.index}")).read_bytes()
        assert f"events/node-{1 - pod.index}.jsonl" not in said, "another's words are not said again"
    word = [json.loads(line) for line in gang[1].message.read_text().splitlines()]
    assert word[-1]["kind"] == EventKind.ENDED.value


@pytest.mark.parametrize("failing", [0, pytest.param(1, marks=pytest.mark.full)])
def test_pod_gang_ends_other_learner_when_one_fails(gang: list[PodRig], failing: int) -> None:
    with Courier(gang).at_work():
        fails = "until [ -e /job/go ]; do sleep 0.1; done; exit 5"
        begin(gang, f'if [ "$RANK" = {failing} ]; then {fails}; fi; exec sleep 300')
        for pod in gang:
            pod.wait_for_event(EventKind.LEARNER_STARTED)
        (Path(gang[failing].attempt.state) / "go").touch()
        codes = [pod.end() for pod in gang]
    assert codes[failing][0] == 5, (codes, gang[0].errors, gang[1].errors)
    (ended,) = [e for e in gang[1 - failing].events() if e.kind is EventKind.LEARNER_ENDED]
    assert ended.fields["ended_by"] == "stop"
    final = gang[0].final()
    assert (final.outcome, final.exit_code, final.error_code) == (Outcome.FAILED, 5, "C201"), final
    assert f"learner {failing + 1}" in final.message


def test_pod_gang_time_limit_signals_learners_of_all_pods(gang: list[PodRig]) -> None:
    limits = Limits(grace_s=8, kill_wait_s=2, heartbeat_s=0.5, time_s=16)  # the learners begin in the first half
    with Courier(gang).at_work():
        begin(gang, "exec python3 train.py", limits)
        assert [pod.end()[0] for pod in gang] == [0, 0]
    final = gang[0].final()
    assert (final.outcome, final.interruption) == (Outcome.HALTED, Interruption.TIMEOUT.value)
    assert all("asked by SIGUSR2" in pod.log() for pod in gang)


def test_pod_gang_fails_with_s106_when_controller_of_one_pod_dies(gang: list[PodRig]) -> None:
    with Courier(gang).at_work():
        begin(gang, "echo at work; exec sleep 300")
        for pod in gang:
            pod.wait_for_log("at work")
            pod.wait_for_event(EventKind.LEARNER_STARTED)
        gang[1].kill_sidecar()
        gang[1].start()
        assert gang[1].end()[0] == 74, gang[1].errors
        gang[0].end()
    final = gang[0].final()
    assert (final.outcome, final.error_code) == (Outcome.FAILED, "S106"), final
    assert "was started again" in final.message
    assert not gang[0].processes() and not gang[1].processes()


def test_pod_gang_head_does_not_complete_when_other_pod_vanishes(gang: list[PodRig]) -> None:
    with Courier(gang).at_work():
        begin(gang, "exec sleep 300", replace(LIMITS, grace_s=5))
        for pod in gang:
            pod.wait_for_event(EventKind.LEARNER_STARTED)
        for pid in gang[1].processes():
            send(pid, signal.SIGKILL)  # the end of one is the end of others
        gang[0].delete()  # what the Job's controller does about the pods that are left
        gang[0].end()
    final = gang[0].final()
    assert final.outcome is not Outcome.COMPLETED
