"""`ffdl run` and `ffdl shell` in an allocation of their own, on the local backend: real daemon, real learners."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import preloaded
from tests.contract.daemon_rig import LIMIT_S, until
from tests.contract.test_daemon_logs import Desk, desk_in
from tests.contract.test_debugging import Screen, long, sleepers
from tests.preloaded import FFDL


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    """A daemon that runs one job at a time, and a model with a program."""
    with desk_in(tmp_path, {"hello.py": "print('hello')\n"}, max_jobs=1) as made:
        yield made


def model(desk: Desk) -> str:
    return f"--model={desk.base / 'model'}"


def states(desk: Desk) -> list[str]:
    """Those of all jobs, the oldest first."""
    return [job["state"] for job in json.loads(desk.run("list", "--json"))["jobs"]][::-1]


def begin(desk: Desk, *words: str) -> subprocess.Popen[bytes]:
    pipe = subprocess.PIPE
    return preloaded.Popen(
        [*FFDL, *words], env=desk.site.environment(), stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
    )


def test_run_passes_streams_and_exit_status_and_ends_its_job(desk: Desk) -> None:
    data = os.urandom(1 << 20)
    text = "python3 hello.py >&2; cat; echo $TRAINING_ID >&2; exit 7"
    done = desk.try_to("run", "--cpus", "1", model(desk), "--", "bash", "-c", text, input=data, text=False)
    *said, job_id = done.stderr.decode().splitlines()
    assert (done.returncode, done.stdout == data, said) == (7, True, ["hello"])
    desk.await_state(job_id, "FAILED")
    job = desk.show(job_id)
    assert (job["name"], job["exit_code"], len(job["attempts"])) == ("interactive", 7, 1)
    done = desk.try_to("run", model(desk), "--", "bash", "-c", "echo kept >$RESULT_DIR/file")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    until(lambda: states(desk) == ["FAILED", "COMPLETED"], "the job to be stored")
    (stored,) = [job for job in json.loads(desk.run("list", "--json"))["jobs"] if job["state"] == "COMPLETED"]
    assert Path(desk.show(stored["id"])["results"], "file").read_text() == "kept\n"


@pytest.mark.parametrize("way", ["a killed client", "a closed terminal"])
def test_run_leaves_nothing_when_client_or_terminal_goes_away(desk: Desk, way: str) -> None:
    seconds = long(8500 + len(way))
    text = f"trap '' HUP TERM; setsid -f sleep {seconds}; echo up; exec sleep {seconds}"
    words = ("run", model(desk), "--", "bash", "-c", text)
    if way == "a killed client":
        with begin(desk, *words) as made:
            assert made.stdout is not None and made.stdout.readline() == b"up\n"
            os.kill(made.pid, signal.SIGKILL)
    else:
        screen = Screen(desk, *words)
        screen.await_text("up\r\n")
        screen.hang_up()
    until(lambda: not sleepers(seconds), "what ran in the learner to be gone")
    until(lambda: set(states(desk)) == {"CANCELLED"}, lambda: f"the job to be cancelled: {states(desk)}")


def test_job_ends_when_client_and_its_guard_are_killed(desk: Desk) -> None:
    """The end of the session ends the learner; nothing else is needed."""
    with begin(desk, "run", model(desk), "--", "bash", "-c", "echo up; exec sleep 8600") as made:
        assert made.stdout is not None and made.stdout.readline() == b"up\n"
        children = Path(f"/proc/{made.pid}/task/{made.pid}/children").read_text().split()
        (guard,) = [int(pid) for pid in children if b"cancel" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        os.kill(guard, signal.SIGKILL)
        os.kill(made.pid, signal.SIGKILL)
    until(lambda: states(desk) == ["FAILED"], lambda: f"the job to end: {states(desk)}")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9), (signal.SIGHUP, -1)])
def test_run_shows_pending_reason_and_cancels_pending_job(desk: Desk, number: signal.Signals, code: int) -> None:
    with begin(desk, "run", model(desk), "--", "sleep", "8700") as first:
        until(lambda: states(desk) == ["PROCESSING"], "the first job to run")
        with begin(desk, "run", model(desk), "--", "true") as second:
            assert second.stderr is not None
            line = second.stderr.readline().decode()
            job_id = line.removeprefix("ffdl: ").partition(":")[0]
            assert line == f"ffdl: {job_id}: {json.loads(desk.run('why', '--json', job_id))['why']['sentence']}\n"
            second.send_signal(number)
            assert second.wait(LIMIT_S) == code
        desk.await_state(job_id, "CANCELLED")
        assert states(desk)[0] == "PROCESSING"
        first.send_signal(signal.SIGINT)
        assert first.wait(LIMIT_S) == 128 + signal.SIGINT


def test_shell_allocates_and_ends_with_its_exit_status(desk: Desk) -> None:
    screen = Screen(desk, "shell", model(desk), "--cpus", "1")
    screen.type("stty size; python3 hello.py; exit 9\n")
    screen.await_text(r"33 101\r\nhello\r\n")
    assert screen.close() == 9
    until(lambda: states(desk) == ["FAILED"], "the job to end")


def test_run_sends_current_directory_but_no_home_directory(desk: Desk) -> None:
    here = desk.base / "model"
    for home, files in (("/nowhere", "hello.py\n"), (str(here), "")):
        done = desk.try_to("run", "--", "ls", cwd=here, env={**desk.site.environment(), "HOME": home})
        assert (done.returncode, done.stdout) == (0, files), done.stderr


def test_run_reports_end_of_job_by_another_command(desk: Desk) -> None:
    with begin(desk, "run", model(desk), "--", "bash", "-c", "echo $TRAINING_ID; exec sleep 8800") as made:
        assert made.stdout is not None and made.stderr is not None
        job_id = made.stdout.readline().decode().strip()
        desk.run("cancel", job_id)
        assert (made.wait(LIMIT_S), b"learner 1 has ended" in made.stderr.read()) == (1, True)
    desk.await_state(job_id, "CANCELLED")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("run", "--array=0-3", "--", "true"), "--array is not for interactive jobs"),
        (("run", "--learners=2", "--", "true"), "--learners is not for interactive jobs"),
        (("shell", "--learner=2"), "--learner selects a learner of a running job"),
        (("shell", "--gpus=1", "training-0a1b2c3d4"), "leave out the ID to start a job"),
    ],
)
def test_interactive_commands_refuse_wrong_usage(desk: Desk, words: tuple[str, ...], said: str) -> None:
    done = desk.try_to(*words)
    assert (done.returncode, said in done.stderr, states(desk)) == (2, True, [])
