"""A daemon, controllers and learners that run out of file descriptors or memory."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.controller_rig import rig
from tests.contract.daemon_rig import UnixHttp
from tests.crash.world import WorldOptions
from tests.faults.fault_rig import FaultWorld, fault_world

DESCRIPTORS = 64
MIB = 1 << 20


@contextlib.contextmanager
def connections(world: FaultWorld, count: int) -> Iterator[None]:
    """So many that only sit there."""
    with contextlib.ExitStack() as held:
        for _ in range(count):
            one = held.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            one.settimeout(120.0)
            one.connect(world.environment()["FFDL_SOCKET"])
        yield


def test_daemon_recovers_after_running_out_of_file_descriptors(tmp_path: Path) -> None:
    with fault_world(tmp_path, WorldOptions("local")) as world:
        world.start({resource.RLIMIT_NOFILE: DESCRIPTORS})
        running = world.submit_running()
        pid = world.daemon_pid
        with connections(world, DESCRIPTORS + 16):
            refused = world.run("ffdl", "list")
            assert refused.code == 75 and "connections" in refused.text and "ulimit -n" in refused.text, refused
            world.tell()
            world.wait(lambda: world.in_database(running) == "COMPLETED", "work that goes on meanwhile")
        world.wait(world.answers, "the daemon to let somebody in again")
        world.await_ends(running, world.submit())
        assert world.daemon_pid == pid
        assert "raise its limit (ulimit -n, LimitNOFILE=)" in world.log
        assert "Traceback" not in world.log
        assert len(world.log.splitlines()) < 60


def test_commands_report_descriptor_limit_that_keeps_daemon_from_starting_jobs(tmp_path: Path) -> None:
    with fault_world(tmp_path, WorldOptions("local")) as world:
        world.start({resource.RLIMIT_NOFILE: 16})
        job = world.submit()
        world.wait(lambda: "ulimit -n" in world.job(job).pending_reason, "the limit as the reason for waiting")
        for command in (("list",), ("show", job), ("daemon", "status")):
            said = world.run("ffdl", *command).text
            assert "ulimit -n" in said and "ffdl daemon restart" in said, said
            assert "does not answer" not in said and "unreachable" not in said, said
        assert "raise the limit (ulimit -n)" in world.log
        world.stop()
        world.start()
        world.await_ends(job)


# Fewer than 12 files are too few for /bin/sh (dash), which starts the commands.
TOO_LOW = [
    *((resource.RLIMIT_NOFILE, count) for count in (12, 13, 15)),
    *((resource.RLIMIT_AS, mib * MIB) for mib in (60, 80)),
]


def test_list_reports_resource_limit_too_low_to_start_daemon(tmp_path: Path) -> None:
    """It starts one, which has the same limits: its traceback is no answer, and no warning of the interpreter's is."""
    with fault_world(tmp_path, WorldOptions("local")) as world:
        for limit, value in TOO_LOW:
            refused = world.run("ffdl", "list", limits={limit: value})
            assert (refused.code, len(refused.text.splitlines())) == (75, 1), (value, refused)
            wanted = ("ulimit -n",) if limit == resource.RLIMIT_NOFILE else ("ulimit -v", "ulimit -u or -v")
            assert any(cure in refused.text for cure in wanted), (value, refused)
            assert "Traceback" not in refused.text and "Warning" not in refused.text, (value, refused)
            assert "clients" not in refused.text and "by itself" not in refused.text, (value, refused)
        assert world.run("ffdl", "list").code == 0


def test_submit_names_daemon_restart_when_daemon_memory_limit_is_reached(tmp_path: Path) -> None:
    with fault_world(tmp_path, WorldOptions("local")) as world:
        world.start()
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        # Less than a thread's stack.
        resource.prlimit(world.daemon_pid, resource.RLIMIT_AS, (world.memory_bytes() + 4 * MIB, hard))
        refused = world.submit_by_command()
        assert refused.code == 75 and "ffdl daemon restart" in refused.text, refused
        resource.prlimit(world.daemon_pid, resource.RLIMIT_AS, (hard, hard))
        world.await_ends(world.submit())
        assert "Traceback" not in world.log


def test_controllers_run_learner_with_20_file_descriptors(tmp_path: Path) -> None:
    with rig(tmp_path) as run:
        limited = tmp_path / "limited"
        limited.write_text(f'#!/bin/sh\nulimit -n 20\nexec {sys.executable} "$@"\n')
        limited.chmod(0o755)
        run.python = str(limited)
        run.write("ulimit -n; exit 3")
        assert run.run() == 3
        assert (run.final().error_code, run.log()) == ("C201", "20\n")


def ask(world: FaultWorld, size: int, *, chunked: bool = False) -> tuple[int, bytes]:
    """Status and body of the answer to a submission of so many bytes; 0 where the connection was dropped."""
    body = b'{"submissions":[{"manifest":"' + b"x" * size + b'"}]}'
    connection = UnixHttp(Path(world.environment()["FFDL_SOCKET"]))
    try:
        parts = (body[at : at + MIB] for at in range(0, len(body), MIB))
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/api/v1/jobs", parts if chunked else body, headers, encode_chunked=chunked)
        answer = connection.getresponse()
        return answer.status, answer.read()
    except OSError:
        return 0, b""
    finally:
        connection.close()


def test_daemon_survives_http_request_larger_than_its_memory(tmp_path: Path) -> None:
    with fault_world(tmp_path, WorldOptions("local")) as world:
        world.start()
        running = world.submit_running()
        # What it has taken of the address space by now, and a little more than a request may have.
        taken = world.memory_bytes()
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.prlimit(world.daemon_pid, resource.RLIMIT_AS, (taken + 140 * MIB, hard))
        status, answer = ask(world, 200 * 10**6)
        assert status == 413 and b"larger than 128 MB" in answer  # by what it announces: nothing of it was read
        told = False
        for chunked in (True, False):
            status, answer = ask(world, 120 * 10**6, chunked=chunked)
            assert status in (0, 503), (status, answer)
            assert not answer or b"memory" in answer
            told = told or status == 503
        world.wait(world.answers, "the daemon")
        # Address space that was used once comes back in parts (glibc's arenas): here, memory is there again.
        resource.prlimit(world.daemon_pid, resource.RLIMIT_AS, (hard, hard))
        assert world.job(running).state == "PROCESSING"
        world.tell()
        world.await_ends(running, world.submit())
        # Where it is the parser that finds none, the web server closes the connection with a word of its own.
        words = ("no memory", "not enough memory", "Invalid HTTP request")
        assert told or any(word in world.log for word in words), world.log


@pytest.fixture
def small_memory() -> Iterator[Path]:
    """A control group of 96 MiB; what is written into its file ``cgroup.procs`` is in it."""
    if os.geteuid() != 0:
        pytest.skip("only root can make control groups; the test run as root does")
    version1 = Path("/sys/fs/cgroup/memory")
    group = (version1 if version1.is_dir() else Path("/sys/fs/cgroup")) / f"ffdl-test-{os.getpid()}"
    group.mkdir()
    try:
        (group / ("memory.limit_in_bytes" if version1.is_dir() else "memory.max")).write_text(str(96 * MIB))
        yield group
    finally:
        end = time.monotonic() + 60.0
        while (group / "cgroup.procs").read_text().strip() and time.monotonic() < end:
            time.sleep(0.05)
        group.rmdir()


@pytest.fixture
def memory_file() -> Iterator[Path]:
    """A name in /dev/shm: what is written there belongs to no process."""
    path = Path(f"/dev/shm/ffdl-test-{os.getpid()}")
    yield path
    path.unlink(missing_ok=True)


FILLS_ITSELF = "python3 -c 'x = bytearray(300 << 20)'"
FILLS_FILE = "dd if=/dev/zero of={} bs=1M count=300"


CONTROLLER_FILLS_ITSELF = "if 'node' in sys.orig_argv: bytearray(300 << 20)"


@pytest.mark.parametrize(
    ("command", "code"),
    [(FILLS_ITSELF, ""), (FILLS_FILE, ""), (f"{FILLS_FILE} & wait %1", ""), ("true", CONTROLLER_FILLS_ITSELF)],
)
def test_head_controller_reports_c202_when_job_exceeds_memory(
    tmp_path: Path, small_memory: Path, memory_file: Path, command: str, code: str
) -> None:
    with rig(tmp_path) as run:
        run.have_controllers_do(code)
        limited = tmp_path / "limited"
        limited.write_text(f'#!/bin/sh\necho $$ > {small_memory}/cgroup.procs\nexec {sys.executable} "$@"\n')
        limited.chmod(0o755)
        run.python = str(limited)
        run.write(command.format(memory_file))
        assert run.run() != 0
        assert run.final().error_code == "C202"
        assert "more memory than" in run.final().message and "96 MiB on this node" in run.final().message
