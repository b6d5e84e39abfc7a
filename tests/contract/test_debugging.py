"""Commands inside running learners of the local backend: real daemon, real learners, the command line."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import preloaded
from tests.command_lines import command_lines
from tests.contract.daemon_rig import LIMIT_S, until
from tests.contract.test_daemon_logs import Desk, desk_in
from tests.preloaded import FFDL

HANG = """\
import os, sys, time

def stuck_in_the_barrier():
    print("ready", flush=True)
    while True:
        time.sleep(0.05)

stuck_in_the_barrier()
"""
MANIFEST = """\
name: {name}
framework:
  name: custom
  version: python-numpy
  command: python3 hang.py
cpus: 1
memory: 100MB
learners: {learners}
batch:
  network: {network}
  env: {{COLOUR: "dark blue"}}
"""


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    with desk_in(tmp_path_factory.mktemp("debugging"), {"hang.py": HANG}, max_jobs=4) as made:
        yield made


def start(desk: Desk, name: str, network: str, learners: int = 1) -> str:
    """A job all of whose learners hang."""
    manifest = desk.base / f"{name}.yml"
    manifest.write_text(MANIFEST.format(name=name, network=network, learners=learners))
    job_id = desk.run("submit", "--parsable", str(manifest), str(desk.base / "model")).strip()
    desk.await_state(job_id, "PROCESSING")
    logs = [Path(desk.show(job_id)["logs"], f"learner-{n}", "training-log.txt") for n in range(1, learners + 1)]
    until(lambda: all(log.is_file() and "ready" in log.read_text() for log in logs), f"{logs} to say ready")
    return job_id


@pytest.fixture(scope="module")
def lone(desk: Desk) -> str:
    """A learner without a network."""
    return start(desk, "lone", "none")


@pytest.fixture(scope="module")
def pair(desk: Desk) -> str:
    """Two learners on the host's network."""
    return start(desk, "pair", "host", 2)


def long(seconds: int) -> str:
    """So many seconds for `sleep`, by which its process is known: no other run of the tests has the same."""
    return f"{seconds}.{os.getpid()}"


def sleepers(seconds: str) -> list[int]:
    """Living processes that sleep so long."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (path / "cmdline").read_bytes() == f"sleep\0{seconds}\0".encode():
                found.append(int(path.name))
    return found


def begin(desk: Desk, *words: str) -> subprocess.Popen[bytes]:
    """A command that has printed "up"."""
    made = preloaded.Popen(
        [*FFDL, *words], env=desk.site.environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )  # fmt: skip
    assert made.stdout is not None and made.stdout.readline() == b"up\n"
    return made


def test_exec_runs_command_in_learner_network_directory_and_environment(desk: Desk, lone: str) -> None:
    job = desk.show(lone)
    asked = 'readlink /proc/$$/ns/net; pwd; echo "$COLOUR, $LEARNER_ID, $TRAINING_ID"; cat; echo wrong >&2; exit 7'
    done = desk.try_to("exec", lone, "--", "bash", "-c", asked, input="from here\n")
    net, place, *rest = done.stdout.splitlines()
    assert (done.returncode, done.stderr, rest) == (7, "wrong\n", [f"dark blue, 1, {lone}", "from here"])
    assert place == f"{Path(job['logs']).parent}/model"
    (learner,) = [
        int(process.name)
        for process, line in command_lines()
        if line.endswith(b"hang.py\0") and lone.encode() in (process / "environ").read_bytes()
    ]
    assert net == str(Path(f"/proc/{learner}/ns/net").readlink()) != str(Path("/proc/self/ns/net").readlink())


def test_exec_enters_selected_learner_and_rejects_unknown_one(desk: Desk, pair: str) -> None:
    for number in ("1", "2"):
        assert desk.run("exec", "--learner", number, pair, "--", "printenv", "LEARNER_ID") == f"{number}\n"
    done = desk.try_to("exec", "--learner", "3", pair, "--", "true")
    assert (done.returncode, done.stderr) == (2, f"ffdl: {pair} has learners 1 to 2; there is no learner 3\n")


def test_exec_passes_large_stdin_and_stdout_unchanged(desk: Desk, lone: str) -> None:
    data = os.urandom(3 << 20)
    done = desk.try_to("exec", lone, "--", "bash", "-c", "tee >(sha256sum >&2)", input=data, text=False)
    assert (done.returncode, done.stdout == data) == (0, True)


def test_exec_ends_when_command_does_not_read_stdin(desk: Desk, lone: str) -> None:
    words = ("exec", lone, "--", "bash", "-c", "exec <&-; kill -KILL $$")
    done = desk.try_to(*words, input=bytes(1 << 20), text=False)
    assert (done.returncode, done.stdout, done.stderr) == (128 + signal.SIGKILL, b"", b"")


def test_exec_forwards_interrupt_to_command(desk: Desk, lone: str) -> None:
    text = "trap 'echo caught; exit 5' INT; echo up; while :; do sleep 0.1; done"
    with begin(desk, "exec", lone, "--", "bash", "-c", text) as made:
        assert made.stdout is not None
        made.send_signal(signal.SIGINT)
        assert (made.wait(LIMIT_S), made.stdout.read()) == (5, b"caught\n")


@pytest.mark.parametrize("way", ["the end of the command", "a killed client", "a second interrupt"])
def test_exec_leaves_no_process_after_exit_client_kill_or_second_interrupt(desk: Desk, lone: str, way: str) -> None:
    seconds = long(8000 + len(way))
    text = f"trap '' HUP TERM INT; sleep {seconds} & setsid -f sleep {seconds}; "
    if way == "a second interrupt":  # says when the first one has come through: two at once are one
        text += "trap 'echo heard' INT; echo up; while :; do sleep 0.1; done"
    else:
        text += "echo up; " + ("true" if way == "the end of the command" else f"exec sleep {seconds}")
    with begin(desk, "exec", lone, "--", "bash", "-c", text) as made:
        assert made.stdout is not None
        if way == "a killed client":
            made.kill()
        elif way == "a second interrupt":
            made.send_signal(signal.SIGINT)
            assert made.stdout.readline() == b"heard\n"
            made.send_signal(signal.SIGINT)
        code = made.wait(LIMIT_S)
        assert code == {"the end of the command": 0, "a killed client": -9, "a second interrupt": 130}[way]
    until(lambda: not sleepers(seconds), lambda: f"{sleepers(seconds)} to be gone")


def test_exec_leaves_no_process_when_helper_is_killed(desk: Desk, lone: str) -> None:
    seconds = long(8100)
    with begin(desk, "exec", lone, "--", "bash", "-c", f"trap '' HUP; echo up; sleep {seconds}") as made:
        assert made.stderr is not None
        (helper,) = [int(pid) for pid in Path(f"/proc/{made.pid}/task/{made.pid}/children").read_text().split()]
        os.kill(helper, signal.SIGKILL)
        assert (made.wait(LIMIT_S), b"broke off" in made.stderr.read()) == (1, True)
    until(lambda: not sleepers(seconds), "what ran in the learner to be gone")


def test_top_lists_processes_of_every_learner_once_without_terminal(desk: Desk, pair: str) -> None:
    said = json.loads(desk.run("top", "--json", pair))
    assert [one["learner"] for one in said["learners"]] == [1, 2]
    for one in said["learners"]:
        (found,) = [row for row in one["processes"] if row["command"] == "python3 hang.py"]
        assert (found["memory_bytes"] > 1 << 20, found["gpu_memory_bytes"]) == (True, None)
        assert not [row for row in one["processes"] if row["name"].startswith("ffdl-")]
    shown = desk.run("top", "--learner", "2", pair)
    assert (shown.count(" python3 hang.py"), shown.count("learner 2 on "), "GPU" in shown) == (2, 1, False)
    assert shown.count(" bash -c python3 hang.py") == 1 and "_ffdl" not in shown


def test_top_prints_tables_repeatedly_until_interrupt(desk: Desk, lone: str) -> None:
    with preloaded.Popen(
        [*FFDL, "top", "--json", "--every", "0.1", lone], env=desk.site.environment(), stdout=subprocess.PIPE
    ) as made:
        assert made.stdout is not None
        tables = [json.loads(made.stdout.readline())["learners"] for _ in range(3)]
        made.send_signal(signal.SIGINT)
        assert made.wait(LIMIT_S) == 130
    assert [len(table) for table in tables] == [1, 1, 1]


def test_stack_prints_function_in_which_learner_hangs(desk: Desk, lone: str, pair: str) -> None:
    for job_id in (lone, pair):
        said = desk.run("stack", "--learner", "1", job_id)
        assert re.search(r"learner 1 on \S+:\n(.*\n)*.*stuck_in_the_barrier \(hang.py:6\)", said), said


def test_stack_lists_threads_when_py_spy_is_missing(desk: Desk, lone: str) -> None:
    """The interpreter that the helper runs with has none beside it, and PATH has none."""
    (plan,) = desk.site.ask("GET", f"/api/v1/jobs/{lone}/attach?learner=1")[1]["plans"]
    argv = ["/usr/bin/env", "PATH=/nowhere", str(Path(sys.base_prefix, "bin", "python3")), *plan["argv"][1:]]
    code = (
        "import sys, json; from ffdl_batch.client.attach import *; h = Helper(AttachPlan(tuple(sys.argv[1:]), (1,)))\n"
    )
    code += "with h: sys.exit(run(h, AttachRequest(do='stack')))"
    done = preloaded.run([sys.executable, "-c", code, *argv], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "")
    assert "no Python stack: py-spy is not installed on " in done.stdout
    assert re.search(r"  [RS] \(\w+\), 1 thread\n  thread \d+ 'python3': [RS]", done.stdout), done.stdout


class Screen:
    """A person at a terminal who runs one command; `rows` and `columns` are the terminal's."""

    def __init__(self, desk: Desk, *arguments: str, rows: int = 33, columns: int = 101) -> None:
        self.text = ""
        self.pid, self._master = pty.fork()
        if self.pid == 0:
            os.execvpe(sys.executable, [*FFDL, *arguments], {**desk.site.environment(), "TERM": "vt100"})
        self.resize(rows, columns)

    def resize(self, rows: int, columns: int) -> None:
        """As a window manager does."""
        import fcntl
        import struct
        import termios

        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))

    def type(self, text: str) -> None:
        """Keys."""
        os.write(self._master, text.encode())

    def await_text(self, pattern: str) -> re.Match[str]:
        """Until the screen shows it, behind what was awaited before."""
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline:
            found = re.search(pattern, self.text)
            if found:
                self.text = self.text[found.end() :]
                return found
            if select.select([self._master], [], [], 0.1)[0]:
                try:
                    self.text += os.read(self._master, 4096).decode("utf-8", "replace")
                except OSError:
                    break
        raise AssertionError(f"{pattern!r} did not come; the screen shows {self.text!r}")

    def close(self) -> int:
        """The exit code, once the command has ended."""
        with contextlib.suppress(OSError):
            while os.read(self._master, 4096):
                continue
        os.close(self._master)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def hang_up(self) -> int:
        """The terminal goes away."""
        os.close(self._master)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def test_shell_provides_resizable_terminal_with_interrupt_key(desk: Desk, pair: str) -> None:
    screen = Screen(desk, "shell", "--learner", "2", pair)
    screen.type("echo is $LEARNER_ID $TERM; stty size; tty\n")
    screen.await_text(r"is 2 vt100\r\n33 101\r\n/dev/pts/\d+\r\n")
    screen.resize(44, 120)

    def is_resized() -> bool:
        """A terminal's size and what is typed in it come by two ways, of which either may be the faster one."""
        screen.type("stty size\n")
        return screen.await_text(r"(\d+ \d+)\r\n")[1] == "44 120"

    until(is_resized, "the shell to have the new size")
    seconds = long(8200)
    screen.type(f"sleep {seconds}\n")
    until(lambda: sleepers(seconds), "the shell to sleep")
    screen.type("\x03")
    screen.type("echo status $?; exit 9\n")
    screen.await_text(r"status 130\r\n")
    assert screen.close() == 9


def test_shell_ends_when_terminal_is_closed(desk: Desk, lone: str) -> None:
    screen, seconds = Screen(desk, "shell", lone), long(8300)
    screen.type(f"nohup sleep {seconds} >/dev/null &\n")
    screen.type(f"exec sleep {seconds}\n")
    until(lambda: len(sleepers(seconds)) == 2, "both to sleep")
    assert screen.hang_up() != 0
    until(lambda: not sleepers(seconds), "both to be gone")


def test_exec_ends_when_learner_ends(desk: Desk) -> None:
    job_id, seconds = start(desk, "ending", "none"), long(8400)
    text = f"trap '' HUP; setsid -f sleep {seconds}; echo up; exec sleep {seconds}"
    with begin(desk, "exec", job_id, "--", "bash", "-c", text) as made:
        assert made.stderr is not None
        desk.run("cancel", job_id)
        code, said = made.wait(LIMIT_S), made.stderr.read().decode()
    desk.await_state(job_id, "CANCELLED")
    assert (code, said) == (1, "ffdl: learner 1 has ended, and with it what ran in it\n")
    until(lambda: not sleepers(seconds), "what ran in the learner to be gone")
    done = desk.try_to("exec", job_id, "--", "true")
    assert (done.returncode, done.stderr) == (
        1,
        f"ffdl: {job_id} is CANCELLED: only a running learner can be entered "
        "(ffdl logs shows the output of its learners)\n",
    )
