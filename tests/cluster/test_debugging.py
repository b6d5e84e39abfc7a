"""Commands inside running learners of real containers, from both login nodes."""

from __future__ import annotations

import json
import re
import subprocess
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import pytest

from tests.cluster.executions import wait_until
from tests.cluster.people import Person
from tests.cluster.rig import Cluster

HANG = """\
import os, time

def stuck_in_the_barrier():
    print("ready", os.readlink("/proc/self/ns/net"), os.readlink("/proc/self/ns/pid"), flush=True)
    while True:
        time.sleep(0.05)

stuck_in_the_barrier()
"""
ASK = r"""
readlink /proc/self/ns/net /proc/self/ns/pid
pwd
id -un
grep -lsF hang.py /proc/[0-9]*/cmdline | wc -l
for gpu in /dev/nvidia[0-3]; do (: <$gpu) 2>&1 | grep -o "No such device\|not permitted"; done
grep devices /proc/self/cgroup
head -n 1 /job/model-code/hang.py
exit 7
"""
DRIVER = r"""
import fcntl, os, pty, re, select, struct, sys, termios, time
pid, master = pty.fork()
if pid == 0:
    os.execvp("ffdl", ["ffdl", "shell", *sys.argv[1:]])
def resize(rows, columns):
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))
text = ""
def expect(pattern):
    global text
    end = time.monotonic() + 250
    while not re.search(pattern, text):
        assert time.monotonic() < end, (pattern, text)
        if select.select([master], [], [], 0.2)[0]:
            text += os.read(master, 4096).decode("utf-8", "replace")
    found = re.search(pattern, text)
    text = text[found.end():]
    return found
resize(33, 101)
os.write(master, b"echo is $LEARNER_ID; stty size; tty\n")
expect(r"is 1\r\n33 101\r\n/dev/pts/\d+\r\n")
resize(44, 120)
for _ in range(100):  # a terminal's size and what is typed in it come by two ways
    os.write(master, b"stty size\n")
    if expect(r"(\d+ \d+)\r\n")[1] == "44 120":
        break
else:
    sys.exit("the shell never had the new size")
os.write(master, b"sleep 8200\n")
time.sleep(1)
os.write(master, b"\x03")
os.write(master, b"echo status $?; exit 9\n")
expect(r"status 130\r\n")
try:
    while os.read(master, 4096):
        pass
except OSError:
    pass
print("ended with", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


@dataclass(frozen=True)
class Hanging:
    """A running job; `places` is what its learners said of their network and process namespaces."""

    id: str
    places: tuple[list[str], ...]


def hang(alice: Person, job_id: str, learners: int) -> bool:
    """Whether so many of its learners do."""
    return alice.logs(job_id).count("ready") == learners


@pytest.fixture(scope="module")
def jobs(alice: Person) -> Iterator[dict[str, Hanging]]:
    """A job of level `job` with two learners on two nodes, which hang."""
    with hanging(alice, {"job": 2}) as found:
        yield found


@pytest.fixture(scope="module")
def others(alice: Person) -> Iterator[dict[str, Hanging]]:
    """A job of each of the other levels; both hang."""
    with hanging(alice, {"none": 1, "host": 1}) as found:
        yield found


@contextmanager
def hanging(alice: Person, wanted: Mapping[str, int]) -> Iterator[dict[str, Hanging]]:
    """A job of each level with so many learners, on as many nodes."""
    model = alice.model("hang", {"hang.py": HANG})
    ids = {}
    for level, learners in wanted.items():
        extra = f"batch: {{network: {level}, placement: spread}}" if learners > 1 else f"batch: {{network: {level}}}"
        manifest = alice.manifest(f"hang-{level}", "python3 hang.py", extra, learners=learners)
        ids[level] = alice.submit(manifest, model)
    found = {}
    for level, job_id in ids.items():
        alice.until(job_id, {"PROCESSING"})
        count = wanted[level]
        wait_until(partial(hang, alice, job_id, count), f"{job_id} to hang")
        lines = [alice.logs(job_id, f"--learner={number}") for number in range(1, count + 1)]
        found[level] = Hanging(job_id, tuple(line.split()[1:] for line in lines))
    yield found
    for job in found.values():
        alice.run("ffdl", "cancel", job.id, check=False)


def execute(alice: Person, *words: str, node: str = "ctl") -> subprocess.CompletedProcess[str]:
    """`ffdl exec`, whatever comes of it."""
    return alice.run("ffdl", "exec", *words, node=node, check=False)


@pytest.mark.parametrize(
    ("fixture", "level", "learner", "node"),
    [
        ("jobs", "job", 1, "login2"),
        pytest.param("jobs", "job", 2, "ctl", marks=pytest.mark.full),
        pytest.param("others", "none", 1, "ctl", marks=pytest.mark.full),
        pytest.param("others", "host", 1, "login2", marks=pytest.mark.full),
    ],
)
def test_exec_runs_command_inside_learner_container(
    alice: Person, request: pytest.FixtureRequest, fixture: str, level: str, learner: int, node: str
) -> None:
    job = request.getfixturevalue(fixture)[level]
    done = execute(alice, f"--learner={learner}", job.id, "--", "bash", "-c", ASK, node=node)
    assert (done.returncode, done.stderr) == (7, "")
    net, pid, directory, user, hanging, *rest = done.stdout.splitlines()
    assert ([net, pid], directory, user) == (job.places[learner - 1], "/job/model-code", "alice")
    assert int(hanging) >= 1
    assert sorted(rest[:4]) == ["No such device", "not permitted", "not permitted", "not permitted"]
    assert "step_0" in rest[4]
    assert rest[5] == "import os, time"


@pytest.mark.full
def test_top_lists_processes_of_every_learner(alice: Person, jobs: dict[str, Hanging]) -> None:
    said = json.loads(alice.run("ffdl", "top", "--once", "--json", jobs["job"].id, node="login2").stdout)
    assert [one["learner"] for one in said["learners"]] == [1, 2]
    for one in said["learners"]:
        (found,) = [row for row in one["processes"] if row["command"] == "python3 hang.py"]
        assert (found["memory_bytes"] > 1 << 20, found["pid"] == found["pid_inside"]) == (True, False)
    shown = alice.run("ffdl", "top", "--once", jobs["job"].id).stdout
    shells = shown.count("-c python3 hang.py")
    assert (shells, shown.count("python3 hang.py") - shells, shown.count("learner 2 on ")) == (2, 2, 1)


@pytest.mark.full
def test_stack_shows_function_and_line_of_hanging_learner(alice: Person, jobs: dict[str, Hanging]) -> None:
    said = alice.run("ffdl", "stack", "--learner=2", jobs["job"].id).stdout
    assert re.search(r"learner 2 on n\d:\n(.*\n)*.*stuck_in_the_barrier \(hang.py:6\)", said), said


@pytest.mark.full
def test_shell_forwards_terminal_size_ctrl_c_and_exit_status(alice: Person, others: dict[str, Hanging]) -> None:
    script = alice.write("~/drive.py", textwrap.dedent(DRIVER))
    assert alice.run("python3", script, others["none"].id, node="login2").stdout == "ended with 9\n"


def test_exec_ends_remote_processes_and_step_when_client_is_killed(
    cluster: Cluster, alice: Person, jobs: dict[str, Hanging]
) -> None:
    job = jobs["job"].id
    text = "trap '' HUP; setsid -f sleep 8300; echo up; exec sleep 8300"

    def left() -> int:
        found = execute(alice, job, "--", "bash", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '").stdout
        return found.count("sleep 8300 ")

    with alice.popen("sh", "-c", 'echo $$; exec ffdl exec "$0" -- bash -c "$1"', job, text, node="login2") as started:
        assert started.stdout is not None
        client, up = started.stdout.readline().strip(), started.stdout.readline()
        assert (up, left()) == ("up\n", 2)
        cluster.run("login2", ["kill", "-KILL", client])
        started.wait(300)
    wait_until(lambda: not left(), "both to be gone")

    def is_gone() -> bool:
        return "ffdl-attach" not in alice.run("squeue", "-h", "--steps", "-u", "alice", "-o", "%i %j").stdout

    wait_until(is_gone, "the step to be gone")


@pytest.mark.full
def test_exec_rejects_job_of_another_user(bob: Person, others: dict[str, Hanging]) -> None:
    done = execute(bob, others["none"].id, "--", "true")
    assert (done.returncode, "there is no job" in done.stderr) == (1, True)


@pytest.mark.full
def test_exec_command_ends_when_job_is_cancelled(cluster: Cluster, alice: Person, others: dict[str, Hanging]) -> None:
    job = others["host"].id
    with alice.popen("ffdl", "exec", job, "--", "bash", "-c", "trap '' HUP; echo up; exec sleep 8400") as started:
        assert started.stdout is not None
        assert started.stdout.readline() == "up\n"
        alice.run("ffdl", "cancel", job)
        assert started.wait(300) != 0
        assert re.search("has ended|broke off", started.stdout.read())
    alice.until(job, {"CANCELLED"})
    for node in ("n1", "n2", "n3"):
        assert "sleep 8400 " not in cluster.run(node, ["sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"]).stdout
    done = execute(alice, job, "--", "true")
    assert (done.returncode, f"{job} is CANCELLED" in done.stderr) == (1, True)
