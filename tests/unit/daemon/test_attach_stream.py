"""The stream to a helper that the daemon starts: what a client sees of its begin and its end."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ffdl_batch.client import RequestRefused
from ffdl_batch.client.attach import AttachRequest, Helper, run
from ffdl_batch.client.connection.attach_stream import AttachStream
from ffdl_batch.client.connection.http_client import DirectChannel, Request, Wire
from ffdl_batch.daemon.connections import Peer, PeerProtocol
from ffdl_batch.daemon.quiet_server import QuietServer, uvicorn_config
from ffdl_batch.daemon.routes import attach
from ffdl_batch.domain.launch.attach_protocol import EXIT, OUTPUT, READY, UPGRADE, AttachPlan, encode_frame
from ffdl_batch.host.fast_dataclass import dataclass
from tests.command_lines import command_lines
from tests.contract.daemon_rig import until
from tests.unit.daemon.conftest import OWN_UID, Desk

PATH = "/api/v1/jobs/j/attach/stream?learner=1"


def frames(*made: bytes) -> str:
    """A program that prints these frames."""
    return f"import sys; sys.stdout.buffer.write({b''.join(made)!r}); sys.stdout.flush(); "


@dataclass
class Served:
    """A daemon whose plan is a program of Python."""

    place: Path
    end: Callable[[], object]
    plan: AttachPlan

    def use(self, code: str, host: str = "") -> None:
        """Set the program."""
        self.plan = AttachPlan((sys.executable, "-c", code), (1,), node="n1", host=host)

    def dial(self) -> DirectChannel:
        connected = socket.socket(socket.AF_UNIX)
        connected.connect(str(self.place))
        return DirectChannel(connected)

    def helper(self) -> Helper:
        """A stream."""
        return Helper(self.plan, AttachStream(Wire(self.dial).upgrade(Request("GET", PATH), UPGRADE)))


@pytest.fixture
def served(desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    monkeypatch.setattr(PeerProtocol, "identify", lambda _, transport: Peer(1, OWN_UID, transport.abort))
    server = QuietServer(uvicorn_config(desk.app))
    made = Served(tmp_path / "d.sock", lambda: loop.call_soon_threadsafe(server.end), AttachPlan((), (1,)))
    monkeypatch.setattr(attach, "plan_attach", lambda *_: (made.plan,))
    desk.context.is_caught_up = lambda: True
    loop, listening = asyncio.new_event_loop(), socket.socket(socket.AF_UNIX)
    listening.bind(str(made.place))
    listening.listen(8)
    thread = threading.Thread(target=loop.run_until_complete, args=(server.serve(sockets=[listening]),))
    thread.start()
    yield made
    made.end()
    thread.join(60)
    assert not thread.is_alive()
    loop.close()


def is_running(mark: str) -> bool:
    return any(mark.encode() in line for _, line in command_lines())


def test_exit_status_and_output_of_command_arrive(served: Served, capfd: pytest.CaptureFixture[str]) -> None:
    status = encode_frame(EXIT, json.dumps({"status": 7}).encode())
    served.use(frames(encode_frame(READY, b"{}"), encode_frame(OUTPUT, b"out\n"), status) + "sys.stdin.read()")
    with served.helper() as helper:
        assert run(helper, AttachRequest(do="stack")) == 7
    assert capfd.readouterr().out == "out\n"


@pytest.mark.parametrize(
    ("code", "message", "exit_code"),
    [
        ("import sys; sys.stderr.write('srun: error: Job is down\\n'); sys.exit(1)", "broke off: srun: error: Job", 1),
        ("print('Welcome to n1')", "Welcome to n1", 1),
        (frames(encode_frame("M", b"no agent")) + "sys.exit(75)", "no agent", 75),
        (frames(encode_frame("M", b"no agent")) + "sys.exit(69)", "no agent", 1),
        ("import os; os.kill(os.getpid(), 9)", "broke off", 1),
    ],
)
def test_helper_that_refuses_or_fails_is_explained(served: Served, code: str, message: str, exit_code: int) -> None:
    served.use(code)
    with served.helper() as helper, pytest.raises(RequestRefused, match=message) as refused:
        helper.begin(AttachRequest(("true",)))
    assert refused.value.problem.exit_code == exit_code


def test_helper_that_cannot_be_started_is_refused_before_the_upgrade(served: Served, desk: Desk) -> None:
    served.plan = AttachPlan(("no-such-srun",), (1,), node="n1")
    with pytest.raises(RequestRefused, match=r"there is no no-such-srun on .* to run a command on n1") as refused:
        served.helper()
    assert refused.value.problem.exit_code == 69
    served.use("", host="far")
    with pytest.raises(RequestRefused, match="processes of far, and this is"):
        served.helper()
    served.plan = AttachPlan((sys.executable,), (2,))
    with pytest.raises(RequestRefused, match="learner 1 of j is no longer running"):
        served.helper()
    assert desk.context.streams == 0


def test_request_without_upgrade_is_explained(desk: Desk) -> None:
    answer = desk.ask("GET", PATH)
    assert answer.status == 426 and "Upgrade: ffdl-attach" in answer.json["problem"]["message"]


def test_client_that_goes_away_ends_helper_that_writes_without_end(served: Served, desk: Desk) -> None:
    mark = f"mark-{os.getpid()}-a"
    served.use(f"'{mark}'; import os, sys, threading; "
               "threading.Thread(target=lambda: (sys.stdin.buffer.read(), os._exit(0))).start()\n"
               "while True: os.write(1, b'O AAAA\\n' * 1000)")  # fmt: skip
    with served.helper() as helper:
        helper.send("B", b"{}")
        until(lambda: next(helper.take()), "output")
        assert desk.context.streams == 1 and is_running(mark)
    until(lambda: desk.context.streams == 0 and not is_running(mark), "the helper to end")


def test_helper_that_ignores_end_of_its_input_is_killed(
    served: Served, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attach, "END_S", 0.5)
    mark = f"mark-{os.getpid()}-b"
    served.use(f"'{mark}'; import time; {frames(encode_frame(READY, b'{}'))} time.sleep(1000)")
    with served.helper() as helper:
        helper.begin(AttachRequest(("true",)))
        assert is_running(mark)
    until(lambda: desk.context.streams == 0 and not is_running(mark), "the helper to end")


def test_end_of_daemon_ends_stream_and_helper(served: Served) -> None:
    mark = f"mark-{os.getpid()}-c"
    served.use(f"'{mark}'; {frames(encode_frame(READY, b'{}'))} sys.stdin.read()")
    with served.helper() as helper:
        helper.begin(AttachRequest(("true",)))
        assert is_running(mark)
        served.end()
        with pytest.raises(RequestRefused, match="broke off"):
            for _ in helper.take():
                time.sleep(0)
    until(lambda: not is_running(mark), "the helper to end")
