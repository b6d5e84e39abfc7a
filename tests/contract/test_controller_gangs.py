"""Learners that need each other: nodes that start together, and services."""

from __future__ import annotations

import dataclasses
import os
import signal
import socket
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from ffdl_batch.controller.rendezvous.launch_agent import NAME
from ffdl_batch.domain.launch.launch_file import LaunchFile, Network, Seat, decode, encode
from ffdl_batch.domain.outcome.controller_events import Event, EventKind, Outcome
from tests.contract.controller_rig import LIMITS, Rig, job_id, patient_run, two_nodes  # noqa: F401

NAMES = "learner-of-gang"
HOST = Network(level="host")
LATE = """
import os, time
real = os.scandir
def scandir(path="."):
    if str(path).endswith("/data") and os.environ.get("FFDL_NODE_RANK") == "1":
        while not os.path.exists(os.environ["GO"]):
            time.sleep(0.02)
        {then}
    return real(path)
os.scandir = scandir
"""
"""Node 1 looks for its data as long as a file is missing."""
DOUBTS = """
if "node" in sys.orig_argv:
    from ffdl_batch.controller.node import supervisor
    supervisor.DOUBT_S = {seconds}
"""


def change(run: Rig, **changes: object) -> LaunchFile:
    path = Path(run.attempt.launch)
    launch = dataclasses.replace(decode(path.read_text()), **changes)  # type: ignore[arg-type]
    path.write_text(encode(launch))
    return launch


def tell_learners(run: Rig, **env: str) -> None:
    """Put more variables into the contract."""
    launch = decode(Path(run.attempt.launch).read_text())
    change(run, learner=dataclasses.replace(launch.learner, env={**launch.learner.env, **env}))


def make_late(run: Rig, then: str = "pass") -> None:
    """Node 1 waits for ``go`` before it is ready; then it does what `then` says."""
    (run.base / "data").mkdir(exist_ok=True)
    change(run, needs_dirs=(str(run.base / "data"),))
    run.have_controllers_do(LATE.format(then=then))
    run.env["GO"] = str(run.base / "go")


def of_kind(run: Rig, kind: EventKind, source: str = "node-0") -> list[Event]:
    return [event for event in run.events(source) if event.kind is kind]


def when_up(run: Rig, *learners: int) -> str:
    """A command of a learner that waits until these have said that they are up."""
    logs = (f"'{run.attempt.training_log(number)}'" for number in learners)
    return "".join(f"until grep -q up {log}; do sleep 0.05; done; " for log in logs)


def end_step(run: Rig) -> None:
    """As a scheduler ends a step: its signal goes to every node controller."""
    for rank in (0, 1):
        os.kill(int(of_kind(run, EventKind.STARTED, f"node-{rank}")[-1].fields["pid"] or 0), signal.SIGTERM)


def last_ends(run: Rig) -> Mapping[object, object]:
    """Why each learner ended, as far as its node said."""
    return {f["learner_id"]: f["ended_by"] for rank in (0, 1) for f in run.ended(f"node-{rank}")}


# ---------------------------------------------------------------------------------------------------------- rendezvous


def test_learners_on_two_nodes_get_names_roles_ports_and_hosts_file(run: Rig) -> None:
    two_nodes(
        run, 'echo "$WHO $CUDA_VISIBLE_DEVICES"; cat "$HOSTS"', learners=3, names=NAMES, ports=12000, network=HOST,
        seats=(Seat(0, "chief", 0, gpus=2), Seat(0, "worker", 0, gpus=1), Seat(1, "worker", 1, gpus=1)),
    )  # fmt: skip
    tell_learners(
        run,
        WHO="{name} {role}/{role_index} {machine_rank}/{machines} {local_rank} {local_index} {port} {master_port}",
        HOSTS="{hosts_file}",
        TF_CONFIG="{tf_config}",
        ADDRESSES="{address} {master_addr}",
    )
    assert run.run(CUDA_VISIBLE_DEVICES="4,5,6,7") == 0, run.errors
    logs = [run.log(number).splitlines() for number in (1, 2, 3)]
    assert [lines[0] for lines in logs] == [
        f"{NAMES}-0 chief/0 0/3 0 0 12001 12000 4,5",
        f"{NAMES}-1 worker/0 1/3 0 1 12002 12000 6",
        f"{NAMES}-2 worker/1 2/3 0 0 12001 12000 4",
    ]
    addresses = [of_kind(run, EventKind.READY, f"node-{rank}")[0].fields["address"] for rank in (0, 1)]
    expected = [f"{addresses[node]} {NAMES}-{n} {NAMES}-{n}.{NAMES}" for n, node in enumerate((0, 0, 1))]
    assert all(sorted(lines[3:6]) == sorted(expected) for lines in logs)
    assert [lines[3] for lines in logs] == expected  # each has its own line first
    assert logs[0][6:] == Path("/etc/hosts").read_text().splitlines()
    state = Path(run.attempt.state)
    assert (state / ".hostfile").read_text() == "".join(f"{NAMES}-{n} slots={2 if n == 0 else 1}\n" for n in range(3))
    assert os.access(state / NAME, os.X_OK)
    assert sorted(path.name for path in (state / ".mail").iterdir()) == [f"{NAMES}-{n}" for n in range(3)]


def test_learners_start_only_after_all_nodes_are_ready_in_every_run(run: Rig) -> None:
    """Also not because of what nodes said in a run before."""
    two_nodes(run, f"echo up; [ -e '{run.base}/enough' ] || sleep 600", names=NAMES)
    make_late(run)
    for number in (1, 2):
        head = run.start()
        run.wait(lambda: len(of_kind(run, EventKind.READY)) == number, "the first node to be ready")  # noqa: B023
        time.sleep(1.0)
        assert [len(of_kind(run, EventKind.LEARNER_STARTED, f"node-{rank}")) for rank in (0, 1)] == [number - 1] * 2
        (run.base / "go").touch()
        run.wait(lambda: len(of_kind(run, EventKind.LEARNER_STARTED, "node-1")) == number, "the start")  # noqa: B023
        if number == 1:
            run.wait(lambda: run.log(1) == run.log(2) == "up\n", "both learners")
            end_step(run)
            assert head.wait(timeout=240) == 143, run.errors
            (run.base / "go").unlink()
            (run.base / "enough").touch()
    assert run.await_end() == 0, run.errors
    for number in (0, 1):
        first = min(of_kind(run, EventKind.LEARNER_STARTED, f"node-{rank}")[number].at for rank in (0, 1))
        assert first >= max(of_kind(run, EventKind.READY, f"node-{rank}")[number].at for rank in (0, 1))


@pytest.mark.parametrize(
    ("then", "code", "told"),
    [
        pytest.param(
            'raise FileNotFoundError(2, "No such file or directory", path)', "S302", "does not exist",
            id="its data is missing",
        ),
        pytest.param(
            'raise LookupError("in no known way")', "S106", "LookupError: in no known way", id="it fails oddly"
        ),
    ],
)  # fmt: skip
def test_attempt_fails_before_learner_start_when_node_is_not_ready(run: Rig, then: str, code: str, told: str) -> None:
    two_nodes(run, "echo up; sleep 600", names=NAMES)
    make_late(run, then)
    head = run.start()
    run.wait(lambda: bool(of_kind(run, EventKind.READY)), "the first node to be ready")
    (run.base / "go").touch()
    assert head.wait(timeout=240) == 74
    for source in ("node-0", "node-1"):
        assert of_kind(run, EventKind.LEARNER_STARTED, source) == []
    assert (run.log(1), run.final().stored) == ("", False)
    assert (run.final().outcome, run.final().error_code) == (Outcome.FAILED, code)
    assert told in run.final().message


def test_attempt_fails_before_learner_start_when_scratch_is_blocked(run: Rig) -> None:
    two_nodes(run, "echo up; sleep 600", names=NAMES)
    (run.base / f"ffdl-{job_id()}-1-1").write_text("in the way of node 1's scratch directory")
    assert run.run() == 74, run.errors
    assert (run.final().error_code, run.log(1)) == ("S105", "")
    assert of_kind(run, EventKind.LEARNER_STARTED) == []


def test_attempt_fails_with_s101_before_learner_start_when_port_is_taken(run: Rig) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen(1)
        port = other.getsockname()[1]
        two_nodes(run, "echo up; sleep 600", names=NAMES, ports=port, network=HOST)
        assert run.run() == 74, run.errors
        assert run.final().error_code == "S101"
        assert f"port {port} of node" in run.final().message
        for source in ("node-0", "node-1"):
            assert of_kind(run, EventKind.LEARNER_STARTED, source) == []


def test_halt_request_ends_wait_for_other_nodes(run: Rig) -> None:
    two_nodes(run, "echo up; sleep 600", names=NAMES)
    make_late(run)
    head = run.start()
    run.wait(lambda: bool(of_kind(run, EventKind.READY)), "the first node to be ready")
    run.say("halt")
    run.wait(lambda: bool(of_kind(run, EventKind.ENDED)), "the first node's end")
    (run.base / "go").touch()
    head.wait(timeout=240)
    assert run.final().outcome is Outcome.HALTED
    assert run.log(1) == ""


# ------------------------------------------------------------------------------------------------------------ services

PS_AND_WORKER = (Seat(0, "ps", 0, service=True), Seat(1, "worker", 0))
SAVES = """
import os, signal, sys, time
def save(*_):
    time.sleep(1)
    open(os.path.join(os.environ[sys.argv[2]], "of-service"), "w").write("saved")
    sys.exit(int(sys.argv[3]))
signal.signal(getattr(signal, sys.argv[1]), save)
print("up", flush=True)
time.sleep(600)
"""
CHECKPOINTS = """
import os, signal, sys, time
def save(*_):
    open(os.path.join(os.environ["CHECKPOINT_DIR"], "model"), "w").write("saved")
    sys.exit(0)
signal.signal(signal.SIGUSR2, save)
print("up", flush=True)
time.sleep(600)
"""


def serve(run: Rig, service: str, worker: str, seats: tuple[Seat, ...] = PS_AND_WORKER, **changes: object) -> None:
    two_nodes(run, "", {"ps.py": SAVES, "main.py": CHECKPOINTS}, names=NAMES, seats=seats,
              command=worker, **{"commands": {"ps": service}, **changes})  # fmt: skip


def test_service_is_terminated_only_when_last_worker_completes(run: Rig) -> None:
    seats = (Seat(0, "ps", 0, service=True), Seat(0, "worker", 0), Seat(1, "worker", 1))
    wait = f"if [ $LEARNER_ID = 3 ]; then while [ ! -e '{run.base}/go' ]; do sleep 0.1; done; fi"
    serve(run, "exec python3 ps.py SIGTERM RESULT_DIR 3", f"{when_up(run, 1)}{wait}", seats, learners=3,
          limits=dataclasses.replace(LIMITS, kill_wait_s=60))  # fmt: skip
    head = run.start()
    run.wait(lambda: len(run.ended()) == 1, "the end of the first worker")
    time.sleep(2.5)
    assert last_ends(run) == {2: ""}
    (run.base / "go").touch()
    assert head.wait(timeout=240) == 0, run.errors
    final = run.final()
    assert (final.outcome, final.stored, final.exit_code) == (Outcome.COMPLETED, True, 0)
    assert last_ends(run) == {1: "service", 2: "", 3: ""}
    assert (run.store / "of-service").read_text() == "saved"  # it had the time to do what it does on TERM
    assert (run.store / "learner-1" / "training-log.txt").read_text() == "up\n"
    assert (Path(run.attempt.state) / "learner.exit").read_text() == "0\n"
    assert of_kind(run, EventKind.LEARNER_STARTED)[0].fields["service"] is True


def test_attempt_succeeds_after_killing_service_that_ignores_sigterm(run: Rig) -> None:
    serve(run, "trap '' TERM; echo up; while :; do sleep 0.1; done", when_up(run, 1),
          limits=dataclasses.replace(LIMITS, kill_wait_s=1))  # fmt: skip
    assert run.run() == 0, run.errors
    assert (last_ends(run), run.ended("node-0")[0]["signal"]) == ({1: "service", 2: ""}, signal.SIGKILL)
    assert run.processes() == []


def test_attempt_fails_when_service_fails_while_worker_runs(run: Rig) -> None:
    begun = run.base / "begun"
    run.have_controllers_do(DOUBTS.format(seconds=1))
    serve(run, f"while [ ! -e '{begun}' ]; do sleep 0.05; done; exit 5", f"touch '{begun}'; sleep 600")
    assert run.run() == 5, run.errors
    assert last_ends(run) == {1: "", 2: "stop"}
    assert (run.final().error_code, run.final().exit_code, run.final().stored) == ("C201", 5, True)


def test_attempt_fails_with_s105_when_service_cannot_start(run: Rig) -> None:
    """Nobody trains while it is found out that this has nothing to do with the end of the training."""
    serve(run, "true", "sleep 600", (Seat(0, "ps", 0, service=True), Seat(0, "worker", 0)), nodes=1, step=())
    launch = decode(Path(run.attempt.launch).read_text())
    change(run, learner=dataclasses.replace(launch.learner, argv=(str(run.base / "missing"),)))
    assert run.run() == 127, run.errors
    assert [fields["learner_id"] for fields in run.ended()] == [1]
    assert of_kind(run, EventKind.LEARNER_STARTED) == []
    assert run.final().error_code == "S105"


def test_attempt_succeeds_when_service_fails_just_before_worker_completes(run: Rig) -> None:
    gone = run.base / "gone"
    run.have_controllers_do(DOUBTS.format(seconds=60))
    pid = run.base / "pid"
    service = f"echo $$ > '{pid}'; while [ ! -e '{gone}' ]; do sleep 0.05; done; exit 9"
    worker = f"until [ -s '{pid}' ]; do sleep 0.05; done; touch '{gone}'; "
    serve(run, service, worker + f"while kill -0 $(cat '{pid}') 2> /dev/null; do sleep 0.05; done")
    assert run.run() == 0, run.errors
    assert [fields["exit_code"] for fields in run.ended()] == [9]
    assert run.final().outcome is Outcome.COMPLETED


def test_learner_failure_stops_services_and_other_learners(run: Rig) -> None:
    seats = (Seat(0, "ps", 0, service=True), Seat(1, "worker", 0), Seat(0, "worker", 1))
    serve(run, "echo up; sleep 600", f"if [ $LEARNER_ID = 2 ]; then {when_up(run, 1, 3)}exit 6; fi; echo up; sleep 600",
          seats, learners=3)  # fmt: skip
    assert run.run() == run.final().exit_code == 6, run.errors
    assert last_ends(run) == {1: "stop", 2: "", 3: "stop"}
    assert run.final().error_code == "C201"


def test_halt_waits_only_for_service_that_handles_checkpoint_request(run: Rig) -> None:
    seats = (Seat(0, "ps", 0, service=True), Seat(0, "deaf", 0, service=True), Seat(1, "worker", 0))
    commands = {"ps": "exec python3 ps.py SIGUSR2 CHECKPOINT_DIR 4", "deaf": "sleep 600"}
    serve(run, "", "exec python3 main.py", seats, learners=3, commands=commands,
          limits=dataclasses.replace(LIMITS, grace_s=600))  # fmt: skip
    head = run.start()
    run.wait(lambda: "up" in run.log(1) and "up" in run.log(3), "worker and service")
    run.wait(lambda: len(of_kind(run, EventKind.LEARNER_STARTED)) == 2, "that the other service is begun")
    run.say("halt")
    assert head.wait(timeout=240) == 0, run.errors  # in less than the grace
    final = run.final()
    assert (final.outcome, final.checkpoint.confirmed, final.checkpoint.answered) == (Outcome.HALTED, True, True)
    assert last_ends(run) == {1: "", 2: "service", 3: ""}
    assert "had to be ended" not in final.message
    assert (Path(run.job.checkpoints) / "of-service").exists()


def test_node_controller_kill_during_service_shutdown_does_not_rerun_worker(run: Rig) -> None:
    serve_here(run)
    head = run.start()
    run.wait(lambda: "told" in run.log(1), "the service to be told")
    os.kill(run.node_pid(), signal.SIGKILL)
    assert head.wait(timeout=240) == 0, run.errors
    assert (run.store / "trained").read_text() == "trained\n"
    assert (run.final().outcome, run.final().stored) == (Outcome.COMPLETED, True)
    assert run.ended()[-1]["ended_by"] == "service"
    assert run.processes() == []


def test_attempt_fails_with_s106_when_learner_fails_after_peer_controller_dies(run: Rig) -> None:
    """The peer is gone with the controller of its node, and what was connected to it fails."""
    two_nodes(run, "if [ $LEARNER_ID = 2 ]; then sleep 300; fi; while [ ! -e $GONE ]; do sleep 0.05; done; exit 1",
              names=NAMES, network=HOST)  # fmt: skip
    tell_learners(run, GONE=str(run.base / "gone"))
    head = run.start()
    run.wait(lambda: all(of_kind(run, EventKind.LEARNER_STARTED, f"node-{rank}") for rank in (0, 1)), "both learners")
    learner = int(of_kind(run, EventKind.LEARNER_STARTED, "node-1")[-1].fields["pid"] or 0)
    os.kill(int(of_kind(run, EventKind.STARTED, "node-1")[-1].fields["pid"] or 0), signal.SIGKILL)
    os.killpg(learner, signal.SIGKILL)
    (run.base / "gone").touch()
    assert head.wait(timeout=240) != 0
    final = run.final()
    assert (final.outcome, final.error_code, final.exit_code) == (Outcome.FAILED, "S106", None)
    assert "the controller of node 1" in final.message and "died without a report" in final.message
    assert "meanwhile learner 1 ended with exit code 1" in final.message


def serve_here(run: Rig) -> None:
    """A service that takes its time at its end, and a worker, on one node."""
    run.write(
        "", learners=2, learners_per_node=2, names=NAMES, limits=dataclasses.replace(LIMITS, kill_wait_s=300),
        seats=(Seat(0, "ps", 0, service=True), Seat(0, "worker", 0)),
        command=f"{when_up(run, 1)}echo trained >> $RESULT_DIR/trained",
        commands={"ps": "trap 'echo told; sleep 300' TERM; echo up; while :; do sleep 0.1; done"},
    )  # fmt: skip
