"""The ports of a job on a node that it shares with others."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.attempt.phase_files import PhaseFailed
from ffdl_batch.controller.rendezvous.learner_addresses import LOOKS, await_free, is_taken, ports_on
from ffdl_batch.domain.launch.launch_file import LaunchFile, Network, Seat
from tests.unit.controller.rig import launch_file

HOST = launch_file(learners=3, nodes=2, ports=12000, seats=(Seat(1), Seat(0), Seat(1)), network=Network(level="host"))


def listen(server: socket.socket, host: str) -> int:
    """The port at which it listens, which nobody else gets by chance: the system gives away those above 32768."""
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    for port in range(10_000 + os.getpid() % 10_000, 32_768):
        with suppress(OSError):
            server.bind((host, port))
            server.listen(1)
            return port
    raise AssertionError("all ports are taken")


@pytest.fixture(params=["127.0.0.1", "", "::"])
def listener(request: pytest.FixtureRequest) -> Iterator[socket.socket]:
    """Somebody who listens at a port that was free."""
    family = socket.AF_INET6 if ":" in request.param else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as made:
        listen(made, request.param)
        yield made


def port_of(one: socket.socket) -> int:
    return int(one.getsockname()[1])


@pytest.mark.parametrize(
    ("launch", "node", "env", "ports"),
    [
        (HOST, 1, {}, [12000, 12001, 12002]),  # learner 1 is on node 1
        (HOST, 0, {"LR": "1"}, [12001]),
        (HOST, 1, {"MASTER_PORT": "7"}, []),
        (HOST, 0, {"TF_CONFIG": ""}, []),
        (replace(HOST, network=Network(level="job")), 1, {}, []),
        (replace(HOST, ports=0), 1, {}, []),
        (replace(HOST, learners=1, seats=(), nodes=1), 0, {}, []),
    ],
)
def test_ports_on_lists_ports_that_node_must_have_free(
    tmp_path: Path, launch: LaunchFile, node: int, env: dict[str, str], ports: list[int]
) -> None:
    attempt = AttemptDir(str(tmp_path))
    Path(attempt.environment).write_text(json.dumps(env))
    assert ports_on(launch, node, attempt) == ports


def test_port_is_taken_while_another_socket_listens(listener: socket.socket) -> None:
    port = port_of(listener)
    assert is_taken(port)
    listener.close()
    assert not is_taken(port)


def test_port_is_free_with_connections_in_time_wait() -> None:
    """An earlier run's: its end keeps them for a minute."""
    with socket.socket() as server:
        port = listen(server, "127.0.0.1")
        with socket.create_connection(("127.0.0.1", port)) as client:
            accepted, _ = server.accept()
            accepted.close()  # who closes first keeps the connection (TIME_WAIT)
            assert client.recv(1) == b""
    with socket.socket() as plain, pytest.raises(OSError, match="in use"):
        plain.bind(("127.0.0.1", port))
    assert not is_taken(port)


def test_await_free_names_taken_port_after_all_retries(listener: socket.socket) -> None:
    rests: list[int] = []
    with pytest.raises(PhaseFailed, match=rf"port {port_of(listener)} of node .* submit the job again") as caught:
        await_free([port_of(listener)], lambda: rests.append(1))
    assert (caught.value.code, len(rests)) == ("S101", LOOKS)


def test_await_free_returns_when_port_becomes_free(listener: socket.socket) -> None:
    rests: list[int] = []

    def rest() -> None:
        rests.append(1)
        if len(rests) == 2:
            listener.close()

    await_free([port_of(listener)], rest)
    assert len(rests) == 2
