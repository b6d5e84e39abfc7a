"""Commands of one learner that run in another one, by a mailbox in the directory that they share. Real shells."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ffdl_batch.controller.rendezvous.launch_agent import MAIL, install
from tests.unit.controller.rig import LIMIT_S, until

PREFIX = "learner-training-abc"
SHELLS = [shell for shell in ("dash", "bash") if shutil.which(shell)]


class Learners:
    """Two learners, of which the second serves."""

    def __init__(self, place: Path, shell: str) -> None:
        self.state = place / "job state"
        self.state.mkdir()
        self.agent = install(str(self.state), [f"{PREFIX}-0", f"{PREFIX}-1"])
        self.box = self.state / MAIL / f"{PREFIX}-1"
        self.log = place / "log of learner 2"
        self.shell = shell
        with self.log.open("wb") as log:
            argv = [shell, self.agent, "--serve", f"{PREFIX}-1"]
            self.server = subprocess.Popen(
                argv, env=self.environment(2), stdout=log, stderr=log, start_new_session=True
            )

    def environment(self, learner_id: int) -> dict[str, str]:
        return {"PATH": os.environ["PATH"], "LEARNER_NAME_PREFIX": PREFIX, "LEARNER_ID": str(learner_id)}

    def ask(self, *argv: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [self.shell, self.agent, *argv], env=self.environment(1), stderr=subprocess.PIPE, text=True
        )

    def run(self, *argv: str) -> tuple[int, str]:
        process = self.ask(*argv)
        _, errors = process.communicate(timeout=LIMIT_S)
        return process.returncode, errors

    def end(self) -> None:
        os.killpg(self.server.pid, signal.SIGKILL)
        self.server.wait()


@pytest.fixture(params=SHELLS)
def learners(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Learners]:
    made = Learners(tmp_path, request.param)
    yield made
    made.end()


def test_launch_agent_runs_command_in_other_learner_and_returns_status(learners: Learners) -> None:
    status, errors = learners.run(f"{PREFIX}-1", "echo", "learner $LEARNER_ID says 'a  b';", "exit 3")
    assert (status, errors) == (3, "")
    assert learners.log.read_text() == "learner 2 says a  b\n"
    until(lambda: list(learners.box.iterdir()) == [], "the mailbox to be cleared")


@pytest.mark.parametrize(
    "options",
    [(), ("-x",), ("-o", "BatchMode=yes", "-q", "-n"), ("-l", "alice", "-p", "22")],
    ids=["none", "hydra", "options", "user and port"],
)
def test_launch_agent_ignores_ssh_options(learners: Learners, options: tuple[str, ...]) -> None:
    assert learners.run(*options, f"{PREFIX}-1.{PREFIX}", "true") == (0, "")
    assert learners.run(*options, f"{PREFIX}-1", "false") == (1, "")


def test_launch_agent_runs_commands_concurrently(learners: Learners) -> None:
    """Two that wait for each other."""
    wait = "cd '{}'; : > {}; i=0; until [ -e {} ] || [ $i -ge 2000 ]; do sleep 0.05; i=$((i+1)); done; [ $i -lt 2000 ]"
    for process in [learners.ask(f"{PREFIX}-1", wait.format(learners.state, *names)) for names in ("ab", "ba")]:
        process.communicate(timeout=LIMIT_S)
        assert process.returncode == 0


def test_launch_agent_terminates_command_when_caller_is_terminated(learners: Learners) -> None:
    mark = learners.state / "ended"
    asking = learners.ask(
        f"{PREFIX}-1", f"trap 'echo told > \"{mark}\"; exit 0' TERM; echo begun; while :; do sleep 0.1; done"
    )
    until(lambda: "begun" in learners.log.read_text(), "the command to begin")
    asking.send_signal(signal.SIGTERM)
    asking.communicate(timeout=LIMIT_S)
    assert asking.returncode == 128 + signal.SIGTERM
    until(mark.exists, "the command to end")


STUBBORN = "(trap '' TERM; echo $$; exec sleep {}) & setsid sh -c 'sleep {}' & (sleep {}; :) & echo begun; wait"


def sleeping(seconds: str) -> list[int]:
    """Processes that were started with such a number of seconds."""
    found = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if place.read_bytes().split(b"\0")[:2] == [b"sleep", seconds.encode()]:
                found.append(int(place.parent.name))
    return found


def test_launch_agent_kills_all_descendants_when_caller_is_terminated(learners: Learners) -> None:
    """Not what catches TERM, has a session of its own, or lost its parent; and nobody else ends."""
    seconds, others = (f"{number}.{os.getpid()}" for number in (601, 602))
    bystander = learners.ask(f"{PREFIX}-1", f"echo there; exec sleep {others}")
    asking = learners.ask(f"{PREFIX}-1", STUBBORN.format(seconds, seconds, seconds))
    until(lambda: {"begun", "there"} <= set(learners.log.read_text().split()), "the commands to begin")
    until(lambda: len(sleeping(seconds)) == 3, "all processes")
    until(lambda: len(sleeping(others)) == 1, "the other one's, too")
    try:
        asking.send_signal(signal.SIGTERM)
        asking.communicate(timeout=LIMIT_S)
        until(lambda: not sleeping(seconds), "their end")
        assert len(sleeping(others)) == 1
        until(lambda: len(list(learners.box.iterdir())) == 2, "the mailbox to be cleared")  # the other's
    finally:
        for pid in (*sleeping(seconds), *sleeping(others)):
            os.kill(pid, signal.SIGKILL)
    bystander.communicate(timeout=LIMIT_S)
    assert bystander.returncode == 128 + signal.SIGKILL


def test_launch_agent_leaves_background_processes_after_command_exits(learners: Learners) -> None:
    """Daemons of MPI leave whoever started them."""
    seconds = f"603.{os.getpid()}"
    assert learners.run(f"{PREFIX}-1", f"sleep {seconds} & exit 0") == (0, "")
    until(lambda: sleeping(seconds), "what was left to become what it is")
    (left,) = sleeping(seconds)
    os.kill(left, signal.SIGKILL)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("nobody", "true"), f"this job has no learner nobody; it has {PREFIX}-0 {PREFIX}-1"),
        (("../../etc", "true"), "'../../etc' is not a learner"),
        ((f"{PREFIX}-1",), "usage:"),
        ((), "usage:"),
    ],
)
def test_launch_agent_rejects_unknown_learner_and_missing_command(
    learners: Learners, argv: tuple[str, ...], message: str
) -> None:
    status, errors = learners.run(*argv)
    assert (status, message in errors) == (255, True), errors
