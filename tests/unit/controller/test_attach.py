"""The helper beside a running learner, with a shell of the contract as the learner."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ffdl_batch.controller.attach import session as sessions
from ffdl_batch.controller.attach.helper import LearnerTable, parse_rocm, parse_smi
from ffdl_batch.controller.attach.session import NoSession, start
from ffdl_batch.controller.attach.session_relay import collect
from ffdl_batch.controller.learner import agents
from ffdl_batch.controller.learner.agents import Agent, find_agents, members, read
from ffdl_batch.domain.launch.attach_protocol import (
    ARRIVAL_S,
    BEGIN,
    ERRORS,
    EXIT,
    HOLD,
    INPUT,
    INPUT_END,
    INTERACTIVE_COMMAND,
    LOOK,
    OUTPUT,
    READY,
    REFUSED,
    TABLE,
    FrameReader,
    encode_frame,
)
from ffdl_batch.host.processes import all_processes, descendants, send, session_members
from ffdl_batch.host.signals import release_signals
from ffdl_batch.runtimes.learner_contract import SHELL
from tests.unit.controller.rig import LIMIT_S, until

JOB = "training-0a1b2c3d4"


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent that forks slowly on a busy machine is none that does not answer."""
    monkeypatch.setattr(sessions, "START_S", LIMIT_S)


@contextmanager
def running(place: Path, number: int, command: str = "sleep 600") -> Iterator[subprocess.Popen[bytes]]:
    """A learner of attempt 2, which sleeps by default."""
    env = {
        "PATH": os.environ["PATH"], "JOB_STATE_DIR": str(place), "MODEL_DIR": str(place), "TRAINING_ID": JOB,
        "LEARNER_ID": str(number), "FFDL_ATTEMPT": "2", "TRAINING_COMMAND": command, "CUDA_VISIBLE_DEVICES": "0",
    }  # fmt: skip
    with subprocess.Popen(list(SHELL), env=env, start_new_session=True, preexec_fn=release_signals) as process:  # noqa: PLW1509
        try:
            yield process
        finally:
            for pid in session_members(process.pid, all_processes()):
                send(pid, signal.SIGKILL)  # some end by themselves meanwhile


def agent_of(number: int) -> Agent:
    """Its agent, once it is there."""
    until(lambda: number in find_agents(JOB, 2, [number]), "there is no agent")
    return find_agents(JOB, 2, [number])[number]


@pytest.fixture(scope="module")
def learner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[subprocess.Popen[bytes]]:
    """Learner 3."""
    with running(tmp_path_factory.mktemp("learner"), 3) as process:
        yield process


@pytest.fixture(scope="module")
def agent(learner: subprocess.Popen[bytes]) -> Agent:
    return agent_of(3)


def test_find_agents_matches_job_attempt_and_learner(agent: Agent, learner: subprocess.Popen[bytes]) -> None:
    assert agent.session == learner.pid
    for job, attempt, learners in ((JOB, 1, [3]), (JOB, 2, [1, 2]), ("training-other0000", 2, [3])):
        assert find_agents(job, attempt, learners) == {}


def test_members_excludes_process_of_agent(agent: Agent, learner: subprocess.Popen[bytes]) -> None:
    found = members(agent, all_processes())
    assert learner.pid in found
    assert agent.pid not in found


@pytest.mark.parametrize("word", ["", " ", "a b", "'", '"', "$(id)", "`id`", "-n", "\n", "äß€", "\x01\x7f", "*", "{a}"])
def test_agent_passes_any_argument_unchanged(agent: Agent, word: str) -> None:
    assert collect(start(agent, ["printf", "%s|", word], {}), LIMIT_S) == (0, f"{word}|".encode())


def test_agent_starts_command_without_ignored_signals(agent: Agent) -> None:
    """A shell without job control has whatever it starts in the background ignore INT."""
    status, text = collect(start(agent, ["grep", "SigIgn", "/proc/self/status"], {}), LIMIT_S)
    assert status == 0
    assert int(text.split()[1], 16) & ~(0b11 << 31) == 0  # 32 and 33 are glibc's own: make has its children ignore them


def test_agent_passes_variables_and_exit_status(agent: Agent) -> None:
    session = start(agent, ["bash", "-c", 'echo "$COLOUR$LEARNER_ID"; exit 9'], {"COLOUR": "a'b "})
    assert collect(session, LIMIT_S) == (9, b"a'b 3\n")


def test_open_pipe_rejects_file_that_is_no_pipe(agent: Agent, tmp_path: Path) -> None:
    """Whoever is in the learner may have put something else in the agent's place."""
    with (tmp_path / "precious").open("w") as file, pytest.raises(OSError, match="is not a pipe"):
        sessions._open_pipe(os.getpid(), file.fileno(), os.O_WRONLY)
    assert (tmp_path / "precious").read_text() == ""


def test_start_reports_agent_that_does_not_answer(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "START_S", 0.2)
    os.kill(agent.pid, signal.SIGSTOP)
    try:
        with pytest.raises(NoSession, match=r"learner 3 started nothing in 0\.2 s"):
            start(agent, ["true"], {})
    finally:
        os.kill(agent.pid, signal.SIGCONT)
    with pytest.raises(NoSession, match="cannot be reached"):
        start(Agent(3, 1 << 22, 1 << 22), ["true"], {})


def test_glance_measures_cpu_between_two_samples(agent: Agent) -> None:
    first = start(agent, ["bash", "-c", "while :; do :; done"], {})
    try:
        look, busy = LearnerTable(agent), dict[str, Any]()

        def is_busy() -> bool:
            for row in look.look()["processes"]:  # it may not have become that yet
                if row["command"].startswith("bash -c while"):
                    busy.update(row)
            return bool(busy.get("cpu_percent"))

        until(is_busy)
        assert (busy["threads"], busy["memory_bytes"] > 0, busy["gpu_memory_bytes"]) == (1, True, None)
    finally:
        first.kill()
        first.let_go()


def test_glance_hides_start_script_of_learner(agent: Agent) -> None:
    commands: list[str] = []

    def is_alone() -> bool:
        """The learner has begun, and what an earlier session swept up with is gone."""
        commands[:] = [row["command"] for row in LearnerTable(agent).look()["processes"]]
        return "sleep 600" in commands and not [one for one in commands if "_ffdl" in one or "FFDL" in one]

    until(is_alone, "the learner's command and nothing of ours")
    assert any(one.startswith("bash ") and "sleep 600" in one for one in commands)


def test_parse_smi_reads_gpu_and_process_memory() -> None:
    cards = "0, NVIDIA A100-SXM4-40GB, 87, 30211, 40960\n1, NVIDIA A100-SXM4-40GB, [N/A], 4, 40960\n"
    gpus, use = parse_smi(f"{cards}\n77, 30000\n77, 5\n8, [N/A]\n")
    found = [(gpu["index"], gpu["busy_percent"], gpu["used_bytes"]) for gpu in gpus]
    assert found == [("0", 87, 30211 << 20), ("1", None, 4 << 20)]
    assert use == {77: 30005 << 20, 8: 0}
    assert parse_smi("") == ([], {})


CARDS = {
    f"card{number}": {
        "GPU use (%)": str(10 * number),
        "VRAM Total Memory (B)": str(64 << 30),
        "VRAM Total Used Memory (B)": str(number << 30),
        "PCI Bus": f"0000:C{number}:00.0",
        "Unique ID": f"0x592c190172fd5d4{number}",
        "Card Series": "AMD Instinct MI210",
    }
    for number in (1, 2, 3)
}
ROCM_TEXT = "WARNING: AMD GPU device(s) is/are in a low-power state.\n\n" + json.dumps(CARDS) + "\n\n"


@pytest.mark.parametrize(
    ("names", "devices", "used"),
    [
        ("0", "/sys/devices/pci0000:c0/0000:c2:00.0\n", [("0", 20, 2 << 30)]),
        ("0,1", "/sys/a/0000:c3:00.0\n/sys/a/0000:c1:00.0\n", [("0", 10, 1 << 30), ("1", 30, 3 << 30)]),
        ("GPU-592c190172fd5d43", "", [("GPU-592c190172fd5d43", 30, 3 << 30)]),
        ("2", "/sys/a/0000:c1:00.0\n", [("2", 30, 3 << 30)]),
        ("7", "", []),
    ],
)
def test_parse_rocm_reads_gpus_of_learner(names: str, devices: str, used: list[tuple[str, int, int]]) -> None:
    found = parse_rocm(ROCM_TEXT + devices, names)
    assert [(gpu["index"], gpu["busy_percent"], gpu["used_bytes"]) for gpu in found] == used
    assert all((gpu["name"], gpu["total_bytes"]) == ("AMD Instinct MI210", 64 << 30) for gpu in found)


@pytest.mark.parametrize("text", ["", "\n\n", "bash: rocm-smi: command not found\n", "{\n\n", "[]\n\n/sys/x\n"])
def test_parse_rocm_of_other_output_has_no_gpus(text: str) -> None:
    assert parse_rocm(text, "0") == []


def test_why_refused_explains_unreadable_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    scope = tmp_path / "ptrace_scope"
    monkeypatch.setattr(agents, "YAMA", str(scope))
    assert agents._why_refused(os.getpid()) == ""
    scope.write_text("1\n")
    assert f"{scope} is 1 on this node" in agents._why_refused(os.getpid())
    assert agents._why_refused(1 << 22) == "; it has ended"
    scope.write_text("0\n")
    monkeypatch.setattr(os, "getuid", lambda: 4242)
    assert "undumpable" in agents._why_refused(os.getpid())


@pytest.mark.parametrize(("more", "words"), [(0, "1 thread\n"), (1, "2 threads\n"), (2, "3 threads\n")])
def test_facts_of_process_count_its_threads(more: int, words: str) -> None:
    code = f"import sys, threading as t\nfor _ in range({more}): t.Thread(target=t.Event().wait).start()\n"
    waiting = subprocess.Popen([sys.executable, "-c", f"{code}print(flush=True)\nt.Event().wait()"], stdout=-1)
    try:
        assert waiting.stdout is not None and waiting.stdout.readline()
        assert f", {words}" in agents.facts(waiting.pid)
    finally:
        waiting.kill()
        waiting.communicate()


def test_stack_dump_lists_threads_if_py_spy_fails(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agents, "find_program", lambda: "/bin/false")
    code = "import threading, time; threading.Thread(target=time.sleep, args=(600,)).start(); time.sleep(600)"
    hanging = start(agent, [sys.executable, "-c", code], {})
    try:
        until(lambda: "2 threads" in agents.dump(agent)[0])
        text, complete = agents.dump(agent)
        assert not complete
        assert text.startswith(f"learner 3 on {os.uname().nodename}:\nprocess ")
        assert text.count("  thread ") == 2
        assert "no Python stack: py-spy printed: " in text
    finally:
        hanging.kill()
        hanging.let_go()


class Helper:
    """The helper as a process, spoken to in frames."""

    def __init__(self, *learners: int) -> None:
        argv = [sys.executable, "-m", "ffdl_batch.controller", "attach", "--job", JOB, "--attempt", "2"]
        self.process = subprocess.Popen(
            [*argv, "--learners", ",".join(map(str, learners))], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def say(self, kind: str, payload: bytes = b"") -> None:
        self.send(encode_frame(kind, payload))

    def send(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def rest(self) -> list[tuple[str, bytes]]:
        """All that it says until it ends."""
        with self.process:
            assert self.process.stdout is not None
            return FrameReader().feed(self.process.stdout.read())


def test_helper_runs_requested_command(agent: Agent) -> None:
    helper = Helper(3)
    request = encode_frame(BEGIN, json.dumps({"do": "run", "argv": ["cat"]}).encode())
    helper.send(request + encode_frame(INPUT, b"here\n") + encode_frame(INPUT_END))  # all at once
    ready, *said = helper.rest()
    assert (ready[0], json.loads(ready[1])["learners"]) == (READY, [3])
    assert [(kind, payload) for kind, payload in said if kind == OUTPUT] == [(OUTPUT, b"here\n")]
    assert (said[-1][0], json.loads(said[-1][1])) == (EXIT, {"status": 0})


@pytest.mark.parametrize(
    ("command", "status", "said"),
    [
        ("no-such-command", 127, "no-such-command: command not found"),
        ("./none", 127, "./none: no such file"),
        ("/etc", 126, "/etc: is a directory"),
        ("/etc/passwd", 126, "/etc/passwd: is not executable"),
    ],
)
@pytest.mark.parametrize("window", [None, [24, 80]])
def test_helper_reports_command_that_cannot_start_like_shell(
    agent: Agent, command: str, status: int, said: str, window: list[int] | None
) -> None:
    helper = Helper(3)
    request = {"do": "run", "argv": [command, "-x"], **({"window": window} if window else {})}
    helper.send(encode_frame(BEGIN, json.dumps(request).encode()))
    _, *frames = helper.rest()
    text = b"".join(payload for kind, payload in frames if kind in (OUTPUT, ERRORS))
    assert text.decode().strip() == f"ffdl exec: {said} in the learner"
    assert json.loads(frames[-1][1]) == {"status": status}


def sleepers(seconds: str, among: Iterable[int] | None = None) -> list[int]:
    """Living processes that sleep so long."""
    wanted = f"sleep\0{seconds}\0"
    return [pid for pid in all_processes() if read(f"/proc/{pid}/cmdline") == wanted and pid in (among or [pid])]


def test_helper_ends_command_when_learner_shell_ends(tmp_path: Path) -> None:
    """Also where no controller is left that would see to it."""
    seconds = f"601.{os.getpid()}"  # another run of this test may go on beside this one
    with running(tmp_path, 4) as learner:
        agent_of(4)
        helper = Helper(4)
        helper.say(BEGIN, json.dumps({"do": "run", "argv": ["sleep", seconds]}).encode())
        assert helper.process.stdout is not None
        assert helper.process.stdout.readline().startswith(READY.encode())
        until(lambda: sleepers(seconds), "the command was not started")
        until(lambda: sleepers("600", session_members(learner.pid, all_processes())), "the learner has not begun")
        (own,) = sleepers("600", session_members(learner.pid, all_processes()))
        os.kill(own, signal.SIGTERM)
        learner.wait(LIMIT_S)
        (said,) = helper.rest()
        assert said == (REFUSED, b"learner 4 has ended, and with it what ran in it")
        until(lambda: not sleepers(seconds), "the command lives")  # it was killed, and ends when it has its turn


def test_helper_refuses_tables_after_learner_has_ended(tmp_path: Path) -> None:
    with running(tmp_path, 5):
        agent_of(5)
        helper = Helper(5)
        helper.say(BEGIN, json.dumps({"do": "top"}).encode())
        helper.say(LOOK)
        assert helper.process.stdout is not None
        lines = [helper.process.stdout.readline() for _ in range(2)]
    ((ready, _), (kind, table)) = FrameReader().feed(b"".join(lines))
    (one,) = json.loads(table)["learners"]
    assert (ready, kind, one["learner"]) == (READY, TABLE, 5)
    until(lambda: not find_agents(JOB, 2, [5]), "the agent lives")
    helper.say(LOOK)
    ((kind, text),) = helper.rest()
    assert (kind, b"no learner of the job runs on " in text) == (REFUSED, True)


def test_helper_rejects_unknown_request(agent: Agent) -> None:
    helper = Helper(3)
    helper.say(BEGIN, json.dumps({"do": "dance"}).encode())
    (_, (kind, text)) = helper.rest()
    assert (kind, b"cannot do 'dance'" in text) == (REFUSED, True)


def test_helper_exits_0_without_command(agent: Agent) -> None:
    helper = Helper(3)
    assert helper.process.stdin is not None
    helper.process.stdin.close()
    helper.process.stdin = None
    assert (helper.rest(), helper.process.returncode) == ([], 0)


def test_helper_exits_on_invalid_frame(agent: Agent) -> None:
    helper = Helper(3)
    helper.send(b"GET / HTTP/1.1\n")
    assert helper.rest() == []


@contextmanager
def interactive(place: Path, arrival_s: str) -> Iterator[subprocess.Popen[bytes]]:
    """The learner of an interactive job: learner 7."""
    command = INTERACTIVE_COMMAND.replace(f"-t {ARRIVAL_S}", f"-t {arrival_s}")
    with running(place, 7, command) as process:
        yield process


@pytest.mark.parametrize(("command", "code"), [("exit 7", 7), ("true", 0), ("kill -KILL $$", 128 + signal.SIGKILL)])
def test_interactive_learner_ends_with_status_of_its_session(tmp_path: Path, command: str, code: int) -> None:
    with interactive(tmp_path, "600") as process:
        agent = agent_of(7)
        assert collect(start(agent, ["bash", "-c", "echo other session"], {}), LIMIT_S) == (0, b"other session\n")
        session = start(agent, ["bash", "-c", f'printf %s "${{{HOLD}-unset}}"; {command}'], {HOLD: "1"})
        assert collect(session, LIMIT_S) == (code, b"unset")
        assert process.wait(LIMIT_S) == code


def runs_below(shell: int, word: str) -> bool:
    """Whether a process that the shell has started has the word among its arguments."""
    found = [f"/proc/{pid}/cmdline" for pid in descendants(shell, all_processes())]
    return any(word in (read(path) or "").split("\0") for path in found)


def test_interactive_learner_ends_when_shell_of_its_session_is_killed(tmp_path: Path) -> None:
    with interactive(tmp_path, "600") as process:
        session = start(agent_of(7), ["sleep", "600.5"], {HOLD: "1"})
        until(lambda: runs_below(session.shell, "600.5"), "the command was not started")
        session.kill()
        session.let_go()
        # The shell may have seen the end of its command just before its own.
        assert process.wait(LIMIT_S) in (129, 128 + signal.SIGKILL)


def test_interactive_learner_ends_without_session(tmp_path: Path) -> None:
    with interactive(tmp_path, "0.1") as process:
        assert process.wait(LIMIT_S) == 75
