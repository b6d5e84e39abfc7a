"""Real head and node controllers with real learners on this machine: how attempts end."""

from __future__ import annotations

import os
import signal
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from ffdl_batch.attempt.conclusion import EXIT_PLATFORM
from ffdl_batch.domain.launch.devices import DEVICE_OPTIONS, Devices
from ffdl_batch.domain.launch.launch_file import (
    Copy,
    EnvDelivery,
    HostVariables,
    LearnerCommand,
    Seat,
    Stores,
    decode,
    encode,
)
from ffdl_batch.domain.outcome.controller_events import EventKind, Outcome
from tests.contract.controller_rig import LIMITS, Rig, job_id, patient_run, two_nodes  # noqa: F401

PATIENT = replace(LIMITS, kill_wait_s=20)
"""Time to store after a TERM, also on a machine that does much else."""


def test_successful_attempt_stores_results_and_writes_state_and_final_record(run: Rig) -> None:
    (run.base / "input" / "deep").mkdir(parents=True)
    (run.base / "input" / "deep" / "x").write_text("42\n")
    run.write(
        "python3 main.py; echo out > $RESULT_DIR/result.txt; ./tool.sh; cat $DATA_DIR/deep/x",
        model={"main.py": "print('from the model')\n", "tool.sh": "#!/bin/sh\necho tool ran >&2\n", "sub/x.txt": "x"},
        copies=(Copy(str(run.base / "input"), run.attempt.data),),
        echo_output=True,
    )
    assert run.run() == 0, run.errors
    final = run.final()
    assert (final.outcome, final.stored, final.exit_code, final.native_id) == (Outcome.COMPLETED, True, 0, "7")
    assert (run.store / "result.txt").read_text() == "out\n"
    assert (run.store / "learner-1" / "training-log.txt").read_text() == "from the model\ntool ran\n42\n"
    assert run.output == run.log(), "the learner's output is echoed"
    assert zipfile.is_zipfile(run.store / "_submitted_code" / "model.zip")
    state = Path(run.attempt.state)
    for phase in ("load-model", "load-data", "learner", "store-results", "store-logs"):
        assert (state / f"{phase}.start").exists()
        assert int((state / f"{phase}.start_time").read_text()) > 10**12
        assert (state / f"{phase}.exit").read_text() == "0\n"
    assert (state / job_id()).exists()
    assert (state / "latest-log").read_text() == run.log()
    assert (run.base / "doorbell" / job_id()).exists()
    assert Path(run.attempt.heartbeat(0)).exists()
    assert Path(run.attempt.marks(1)).read_text().splitlines()[0].split()[1:] == ["0", "0"]
    assert not list(run.base.glob("ffdl-*"))
    kinds = [e.kind for e in run.events("head")]
    assert kinds == [EventKind.CLAIMED, EventKind.STARTED, EventKind.FINAL]
    assert run.processes() == []


@pytest.mark.parametrize("name", ["node17", ""])
def test_controller_starts_under_the_name_that_the_scheduler_gives_its_node(run: Rig, name: str) -> None:
    """Slurm releases nodes by NodeName, which may differ from the name of the host."""
    run.write("true", host=HostVariables(machine="SLURMD_NODENAME"))
    run.start(**({"SLURMD_NODENAME": name} if name else {}))
    assert run.await_end() == 0, run.errors
    (started,) = [event for event in run.events("node-0") if event.kind is EventKind.STARTED]
    assert started.node == (name or os.uname().nodename.partition(".")[0])


def test_final_record_has_exit_status_and_log_tail_of_failed_learner(run: Rig) -> None:
    run.write("for i in $(seq 30); do echo line $i; done; printf 'step 1\\rstep 2\\n\\033[31mred\\033[0m\\n'; exit 3")
    assert run.run() == 3
    final = run.final()
    assert (final.outcome, final.stored, final.exit_code, final.error_code) == (Outcome.FAILED, True, 3, "C201")
    assert len(final.log_tail) == 20
    assert final.log_tail[-3:] == ("line 30", "step 2", "red")
    assert (run.store / "learner-1" / "training-log.txt").exists()
    assert (Path(run.attempt.state) / "learner.exit").read_text() == "3\n"


DAMAGES = (
    (
        "cd state; rm .began-1; mkfifo .began-1",
        "rm events/node-0.jsonl; mkfifo events/node-0.jsonl",
        "rm events/head.jsonl; mkfifo events/head.jsonl",
        "for name in stop.json control.json launch.json; do rm $name; mkfifo $name; done",
    ),
    ("cd state; rm .began-1; mkdir .began-1", "rm events/node-0.jsonl; mkdir events/node-0.jsonl", "mkdir final.json"),
    ("ln -sf /dev/zero state/.began-1", "yes >events/node-0.jsonl & sleep 0.1; kill $!"),
    ("rm -r state", "rm -r events; ln -s /dev events"),
)
"""What a learner does to the files of its attempt, all of a row in one attempt."""


@pytest.mark.parametrize("damages", DAMAGES)
def test_failure_is_attributed_to_learner_that_replaced_files_of_attempt(run: Rig, damages: tuple[str, ...]) -> None:
    run.write('cd "$JOB_STATE_DIR/.."; ' + "".join(f"({damage}); " for damage in damages) + "exit 3")
    assert run.run() == 3, run.errors
    final = run.final()
    assert (final.outcome, final.exit_code, final.error_code) == (Outcome.FAILED, 3, "C201"), final.message
    assert [event.kind for event in run.events()][-1] is EventKind.ENDED


HASTY = """
from ffdl_batch.controller.head import step
step.LOOK_S, step.LINGERS_S = 0.1, 0.5
"""
"""The head waits for a lingering launcher a second, so the learner need not live for long."""
FORGED = (
    '"kind":"stored","x_learner_id":1',
    '"kind":"phase","x_phase":"load-data","x_status":"ended","x_exit":0',
    '"kind":"fault","x_code":"S106","x_message":"m"',
    '"kind":"learner_ended","x_learner_id":1,"x_exit_code":0',
    '"kind":"ended"',
    '"kind":"ended","x_code":"S106"',
    '"kind":"final","x_outcome":"COMPLETED"',
)


@pytest.mark.parametrize("nodes", [1, 2])
def test_failure_is_attributed_to_learner_that_appended_events(run: Rig, nodes: int) -> None:
    """The step is not ended before its time, and only the controllers' own events count."""
    run.have_controllers_do(HASTY)
    forge = (
        "import os, time\n"
        "for name in ('node-0', 'node-1', 'head'):\n"
        "    path = f'{os.environ[\"JOB_STATE_DIR\"]}/../events/{name}.jsonl'\n"
        f"    for number, forged in enumerate({FORGED}):\n"
        '        line = \'{"seq":%d,"at":%f,"source":"%s",%s,"format":1}\\n\'\n'
        "        open(path, 'a').write(line % (99 + number, time.time(), name, forged))\n"
    )
    command = "python3 forge.py; sleep 3; exit 3"
    if nodes == 2:
        two_nodes(run, command, {"forge.py": forge})
    else:
        run.write(command, model={"forge.py": forge})
    assert run.run() == 3, run.errors
    final = run.final()
    assert (final.outcome, final.exit_code, final.error_code) == (Outcome.FAILED, 3, "C201"), final.message
    assert "is killed" not in run.errors
    for source in ("head", *(f"node-{number}" for number in range(nodes))):
        assert all(event.seq < 99 for event in run.events(source)), source


def test_final_record_names_signal_that_killed_learner(run: Rig) -> None:
    run.write("kill -ABRT $$")
    assert run.run() == 128 + signal.SIGABRT
    final = run.final()
    assert (final.exit_signal, final.error_code, final.exit_code) == (signal.SIGABRT, "C201", None)
    assert "SIGABRT" in final.message


def test_attempt_fails_with_s105_when_shell_is_missing(run: Rig) -> None:
    launch = run.write("true")
    run.write("true", learner=replace(launch.learner, argv=("no-such-shell", "-c", "true")))
    assert run.run() == 127
    final = run.final()
    assert final.error_code == "S105"
    assert "no-such-shell" in final.message
    assert run.ended()[0]["began"] is False


def test_attempt_fails_with_s103_when_runtime_reports_image_error(run: Rig) -> None:
    complaint = "could not open image /i.sif: no such file"
    argv = ("sh", "-c", f"echo 'FATAL: {complaint}' >&2; exit 255")
    env = run.write("true").learner.env
    run.write("true", learner=LearnerCommand(argv, env, delivery=EnvDelivery.FILE, protected=()))
    assert run.run() == 255
    assert run.final().error_code == "S103"
    assert complaint in run.final().message


def test_attempt_fails_with_s302_when_data_cannot_be_copied(run: Rig) -> None:
    run.write("touch $RESULT_DIR/ran", copies=(Copy(str(run.base / "nowhere"), run.attempt.data),))
    assert run.run() == 74
    final = run.final()
    assert (final.outcome, final.error_code, final.stored) == (Outcome.FAILED, "S302", False)
    assert "nowhere" in final.message
    assert not (Path(run.attempt.results) / "ran").exists()
    assert (Path(run.attempt.state) / "load-data.exit").read_text() == "1\n"


def test_attempt_fails_with_c103_when_store_directory_cannot_be_created(run: Rig) -> None:
    (run.base / "file").write_text("in the way")
    run.write("true", make_dirs=(str(run.base / "file" / "results"),))
    assert run.run() == 74
    final = run.final()
    assert (final.outcome, final.error_code) == (Outcome.FAILED, "C103")
    assert f"{run.base / 'file' / 'results'} cannot be made on {os.uname().nodename}: Not a directory" in final.message


def test_attempt_fails_with_s303_when_results_cannot_be_stored(run: Rig) -> None:
    (run.base / "file").write_text("in the way")
    run.write("echo x > $RESULT_DIR/x", stores=Stores(results=str(run.base / "file" / "below"), logs=str(run.store)))
    assert run.run() == 74
    final = run.final()
    assert (final.outcome, final.stored, final.error_code, final.exit_code) == (Outcome.FAILED, False, "S303", 0)
    assert "store-results" in final.message
    assert (run.store / "learner-1" / "training-log.txt").exists(), "the log is stored all the same"


def test_user_signals_reach_learner_process_that_handles_them(run: Rig) -> None:
    """What sbatch's --signal asks for; the shell above the process does not catch it and is left alone."""
    numbers = [signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP, signal.SIGALRM, signal.SIGQUIT]
    program = (
        "import os, signal, time\n"
        f"for number in {[int(number) for number in numbers]}:\n"
        "    signal.signal(number, lambda number, _: print(f'caught {number};', flush=True))\n"
        "print('up', flush=True)\n"
        f"while not os.path.exists('{run.base}/go'): time.sleep(0.05)\n"
    )
    run.write("python3 main.py | cat; exit 0", model={"main.py": program})
    head = run.start_until("up")
    for number in numbers:
        head.send_signal(number)
        run.wait_for_log(f"caught {int(number)};")
    (run.base / "go").touch()
    assert head.wait(timeout=240) == 0
    assert run.log().splitlines() == ["up", *(f"caught {int(number)};" for number in numbers)]
    assert run.final().outcome is Outcome.COMPLETED
    assert run.ended()[0]["ended_by"] == ""


def test_user_signal_without_handler_leaves_learner_running(run: Rig) -> None:
    """Controllers take waiting signals in ascending order: after SIGALRM, SIGUSR1 has been handled."""
    go = run.base / "go"
    run.write(f"trap 'echo caught' ALRM; echo up; until [ -e '{go}' ]; do sleep 0.05; done; echo done")
    head = run.start_until("up")
    head.send_signal(signal.SIGUSR1)
    head.send_signal(signal.SIGALRM)
    run.wait_for_log("caught")
    go.touch()
    assert head.wait(timeout=240) == 0
    assert run.log().splitlines() == ["up", "caught", "done"]


def test_sigterm_ends_learner_and_stores_partial_results(run: Rig) -> None:
    run.write("echo partial > $RESULT_DIR/part; echo up; sleep 600", limits=PATIENT)
    head = run.start_until("up")
    head.send_signal(signal.SIGTERM)
    assert head.wait(timeout=240) == 143
    assert (run.final().outcome, run.final().stored) == (Outcome.CANCELLED, True)
    assert run.ended()[0]["ended_by"] == "term"
    assert (run.store / "part").read_text() == "partial\n"
    assert run.processes() == []


def test_background_processes_end_with_learner_and_ended_event_is_last_and_unique(run: Rig) -> None:
    run.write("sleep 300 & (setsid sleep 301 &) ; trap '' TERM; (while :; do sleep 0.1; done) & echo done")
    assert run.run() == 0
    assert run.log().startswith("done\n")
    assert run.processes() == []
    kinds = [event.kind for event in run.events()]
    assert kinds[-1] is EventKind.ENDED
    assert kinds.count(EventKind.ENDED) == kinds.count(EventKind.CHECKPOINT) == 1


def test_learners_get_their_ids_ranks_and_assigned_gpus(run: Rig) -> None:
    run.write("echo $LEARNER_ID $RANK $LOCAL_RANK $CUDA_VISIBLE_DEVICES", learners=2, learners_per_node=2)
    assert run.run(CUDA_VISIBLE_DEVICES="4,5,6,7") == 0
    assert (run.log(1), run.log(2)) == ("1 0 0 4,5\n", "2 1 1 6,7\n")


@pytest.fixture
def dev(tmp_path: Path) -> Path:
    """Plain files in the place of two GPUs."""
    directory = tmp_path / "dev"
    directory.mkdir()
    for name in ("nvidia0", "nvidia1"):
        (directory / name).touch()
    return directory


def test_learners_get_gpu_options_and_devices_event_lists_files(run: Rig, dev: Path) -> None:
    files = {"nvidia": (f"{dev}/nvidia[0-9]",), "amd": ("/none",)}
    argv = ("bash", "-c", 'echo "$0 $* $CUDA_VISIBLE_DEVICES"', DEVICE_OPTIONS)
    learner = replace(run.write("true").learner, argv=argv)
    devices = Devices(gpus=2, gpu_files=files, options={"nvidia": ("--nv", "--more")})
    run.write("true", learner=learner, learners=2, seats=(Seat(0, gpus=1), Seat(0, gpus=1)), devices=devices)
    assert run.run(CUDA_VISIBLE_DEVICES="0,1") == 0, run.errors
    assert (run.log(1), run.log(2)) == ("--nv --more 0\n", "--nv --more 1\n")
    (told,) = (event.fields for event in run.events() if event.kind is EventKind.DEVICES)
    assert (told["vendor"], told["gpus"], told["message"]) == ("nvidia", "0,1", "")
    assert told["files"] == f"{dev}/nvidia0,{dev}/nvidia1"


def test_attempt_fails_with_s108_when_gpu_device_file_is_missing(run: Rig, dev: Path) -> None:
    (dev / "nvidia1").unlink()
    devices = Devices(gpus=2, gpu_files={"nvidia": (f"{dev}/nvidia[0-9]",)})
    run.write("echo begun", devices=devices)
    assert run.run(CUDA_VISIBLE_DEVICES="0,1") == EXIT_PLATFORM
    final = run.final()
    assert (final.outcome, final.error_code, final.stored) == (Outcome.FAILED, "S108", False)
    assert f"{dev}/nvidia1 (ENOENT)" in final.message and os.uname().nodename in final.message
    assert (run.log(1), run.ended()) == ("", [])


def test_learners_with_gpu_shares_get_the_same_device(run: Rig) -> None:
    seats = (Seat(0, gpus=1), Seat(0, gpus=1), Seat(0))
    run.write('echo "<$CUDA_VISIBLE_DEVICES>"', learners=3, seats=seats, devices=Devices(gpus=1, shared=True))
    assert run.run(CUDA_VISIBLE_DEVICES="0") == 0, run.errors
    assert [run.log(number) for number in (1, 2, 3)] == ["<0>\n", "<0>\n", "<>\n"]


BLIND = """
import os, time
real = os.scandir
def scandir(path="."):
    if str(path).endswith("/data") and os.environ.get("FFDL_NODE_RANK") == "1":
        while "up" not in open(os.environ["FIRST"]).read():
            time.sleep(0.05)
        raise FileNotFoundError(2, "No such file or directory", path)
    return real(path)
os.scandir = scandir
"""


def test_two_node_attempt_stores_results_of_both_learners(run: Rig) -> None:
    two_nodes(run, "echo $NODE_RANK > $RESULT_DIR/$LEARNER_ID; cat $MODEL_DIR/main.py > /dev/null")
    assert run.run() == 0, run.errors
    assert sorted(p.name for p in run.store.iterdir()) == ["1", "2", "_submitted_code", "learner-1", "learner-2"]
    assert run.final().stored
    assert (Path(run.attempt.state) / "learner.exit").read_text() == "0\n"
    assert len(run.ended("node-1")) == 1


def test_invalid_model_fails_two_node_attempt_without_stored_results(run: Rig) -> None:
    two_nodes(run, "touch $RESULT_DIR/ran")
    run.archive({"../x": "x"})
    assert run.run() == 74
    final = run.final()
    assert (final.outcome, final.error_code, final.stored) == (Outcome.FAILED, "S301", False)
    assert "points outside" in final.message
    assert not run.store.exists() and not (Path(run.attempt.results) / "ran").exists()


def test_missing_data_directory_on_second_node_stops_learner_on_first(run: Rig) -> None:
    two_nodes(run, "echo up; sleep 600")
    # What the first node found in an earlier run does not speak for the second.
    launch = replace(decode(Path(run.attempt.launch).read_text()), needs_dirs=(str(run.base / "data"),))
    Path(run.attempt.launch).write_text(encode(launch))
    (run.base / "data").mkdir()
    run.have_controllers_do(BLIND)
    run.env["FIRST"] = run.attempt.training_log(1)
    assert run.run() == 74, run.errors
    assert run.ended("node-0")[0]["ended_by"] == "stop"
    assert run.ended("node-1") == []
    assert run.final().error_code == "S302"
    assert "data does not exist on node" in run.final().message


@pytest.mark.parametrize("text", ["", "{}", '{"format": 99}', "[1"])
def test_head_controller_exits_78_for_invalid_launch_file(run: Rig, text: str) -> None:
    Path(run.attempt.launch).write_text(text)
    assert run.run() == 78
    assert "launch" in run.errors
    assert [p.name for p in Path(run.attempt.path).iterdir()] == ["launch.json"]
