"""`ffdl port-forward` to learners of the local backend: real daemon, a learner without a network, real sockets."""

from __future__ import annotations

import hashlib
import os
import pwd
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from ffdl_batch.host.users import user_name
from tests import preloaded
from tests.contract.daemon_rig import LIMIT_S
from tests.contract.test_daemon_logs import Desk, desk_in
from tests.contract.test_debugging import start
from tests.preloaded import FFDL

SIZE = 3 << 20
SERVE = f"""\
import hashlib, os, pathlib, socketserver

class Answer(socketserver.StreamRequestHandler):
    def handle(self):
        word = self.rfile.readline()
        if word == b"sum\\n":
            self.wfile.write(hashlib.sha256(self.rfile.read()).hexdigest().encode())
        elif word == b"much\\n":
            self.wfile.write(bytes({SIZE}))
        else:
            self.wfile.write(os.readlink("/proc/self/ns/net").encode())

class Server(socketserver.ThreadingTCPServer):
    daemon_threads, request_queue_size = True, 100

with Server(("127.0.0.1", 0), Answer) as server:
    print("ready", server.server_address[1], flush=True)
    server.serve_forever()
"""


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    with desk_in(tmp_path_factory.mktemp("ports"), {"hang.py": SERVE}, max_jobs=4) as made:
        yield made


@pytest.fixture(scope="module")
def lone(desk: Desk) -> str:
    """A learner without a network, which serves on its loopback interface."""
    return start(desk, "lone", "none")


@pytest.fixture(scope="module")
def port(desk: Desk, lone: str) -> int:
    return int(desk.run("logs", lone).split()[-1])


@contextmanager
def forwarded(argv: Sequence[str], env: dict[str, str]) -> Iterator[int]:
    """The local port, while the command runs."""
    pipe = subprocess.PIPE
    with preloaded.Popen(argv, env=env, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe) as made:
        assert made.stdout is not None and made.stderr is not None
        line = made.stdout.readline().decode()
        found = re.match(r"Forwarding 127\.0\.0\.1:(\d+) to port \d+ of learner 1 of ", line)
        assert found, line + made.stderr.read().decode()
        try:
            yield int(found[1])
        finally:
            made.send_signal(signal.SIGINT)
            assert made.wait(LIMIT_S) == 130, made.stderr.read()


def ask(port: int, data: bytes) -> bytes:
    """The answer to what is sent on a connection whose output ends then."""
    with socket.create_connection(("127.0.0.1", port), LIMIT_S) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(1 << 16), b""))


def test_port_forward_reaches_loopback_of_learner_without_network(desk: Desk, lone: str, port: int) -> None:
    with forwarded([*FFDL, "port-forward", lone, f"0:{port}"], desk.site.environment()) as local:
        net = desk.run("exec", lone, "--", "readlink", "/proc/self/ns/net").strip()
        assert ask(local, b"net\n").decode() == net != str(Path("/proc/self/ns/net").readlink())
        assert not listens_elsewhere(local)


def listens_elsewhere(port: int) -> bool:
    """Whether any socket but one of 127.0.0.1 listens on the port."""
    lines = Path("/proc/net/tcp").read_text() + Path("/proc/net/tcp6").read_text()
    listening = [line.split()[1] for line in lines.splitlines() if line.split()[3] == "0A"]
    return [one for one in listening if one.endswith(f":{port:04X}")] != [f"0100007F:{port:04X}"]


def test_port_forward_carries_several_connections_while_one_is_not_read(desk: Desk, lone: str, port: int) -> None:
    data = [os.urandom(SIZE) for _ in range(4)]
    sums: list[bytes] = [b""] * len(data)

    def send(number: int, local: int) -> None:
        sums[number] = ask(local, b"sum\n" + data[number])

    with forwarded([*FFDL, "port-forward", lone, f"0:{port}"], desk.site.environment()) as local:
        with socket.create_connection(("127.0.0.1", local), LIMIT_S) as unread:
            unread.sendall(b"much\n")
            threads = [threading.Thread(target=send, args=(number, local)) for number in range(len(data))]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert sums == [hashlib.sha256(one).hexdigest().encode() for one in data]
            assert sum(len(piece) for piece in iter(lambda: unread.recv(1 << 16), b"")) == SIZE
        for _ in range(100):  # closed connections make room
            assert ask(local, b"net\n").startswith(b"net:")


def test_port_forward_reports_refused_connection_and_serves_the_next(desk: Desk, lone: str) -> None:
    with preloaded.Popen(
        [*FFDL, "port-forward", lone, "0:1"], env=desk.site.environment(), stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as made:  # fmt: skip
        assert made.stdout is not None and made.stderr is not None
        local = int(made.stdout.readline().split()[1].rpartition(b":")[2])
        for _ in range(2):
            assert ask(local, b"") == b""
            assert made.stderr.readline() == b"ffdl: port 1 of learner 1: Connection refused\n"
        made.send_signal(signal.SIGINT)
        assert made.wait(LIMIT_S) == 130


def test_port_forward_refuses_other_users_of_the_machine(desk: Desk, lone: str, port: int) -> None:
    argv, pipe = [*FFDL, "port-forward", lone, f"0:{port}"], subprocess.PIPE
    with preloaded.Popen(argv, env=desk.site.environment(), stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe) as made:
        assert made.stdout is not None and made.stderr is not None
        try:
            local = int(made.stdout.readline().split()[1].rpartition(b":")[2])
            answers = [(ask_as_other(local), ask(local, b"net\n")[:4]) for _ in range(3)]
        finally:
            made.send_signal(signal.SIGINT)
        errors = made.stderr.read().decode().splitlines()
    assert answers == [(b"", b"net:")] * 3
    why = f"a connection of another user of this machine was refused: {user_name(OTHER_UID)}"
    assert errors.count(f"ffdl: port {port} of learner 1: {why}") == 1, "each user is reported once"


OTHER_UID = pwd.getpwnam("nobody").pw_uid
ASK_AS = """\
import os, socket, sys
uid, port = map(int, sys.argv[1:])
os.setgroups([]); os.setgid(uid); os.setuid(uid)
connection = socket.socket(); connection.connect(("127.0.0.1", port))
try:
    connection.sendall(b"net\\n")
    connection.shutdown(socket.SHUT_WR)
    sys.stdout.buffer.write(connection.recv(100))
except OSError:  # it was closed before all was sent
    pass
"""


def ask_as_other(port: int) -> bytes:
    """The answer that a process of another user gets; none if the connection is closed."""
    argv = [sys.executable, "-I", "-c", ASK_AS, str(OTHER_UID), str(port)]
    return preloaded.run(argv, cwd="/", capture_output=True, check=True, timeout=LIMIT_S).stdout


def test_port_forward_ends_with_learner(desk: Desk) -> None:
    job_id = start(desk, "ending", "none")
    with preloaded.Popen(
        [*FFDL, "port-forward", job_id, "0:1"], env=desk.site.environment(), stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as made:  # fmt: skip
        assert made.stdout is not None and made.stderr is not None
        assert made.stdout.readline().startswith(b"Forwarding ")
        desk.run("cancel", job_id)
        assert (made.wait(LIMIT_S), b"learner 1 has ended" in made.stderr.read()) == (1, True)
    desk.await_state(job_id, "CANCELLED")
    done = desk.try_to("port-forward", job_id, "0:1")
    assert (done.returncode, "only a running learner can be entered" in done.stderr) == (1, True)


def test_port_forward_refuses_wrong_and_busy_ports(desk: Desk, lone: str) -> None:
    for word in ("0", "8888:0", "x", "1:2:3", "70000", ""):
        done = desk.try_to("port-forward", lone, word)
        assert (done.returncode, "must be PORT or LOCAL:PORT" in done.stderr) == (2, True), word
    with socket.create_server(("127.0.0.1", 0)) as busy:
        done = desk.try_to("port-forward", lone, str(busy.getsockname()[1]))
    assert (done.returncode, "cannot listen on port" in done.stderr) == (69, True), done.stderr
