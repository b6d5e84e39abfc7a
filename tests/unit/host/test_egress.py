"""Bounds of connections: which addresses they permit, and that no library gets past them."""

from __future__ import annotations

import http.client
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator

import pytest

from ffdl_batch.host import egress

HERE = "127.0.0.1"


@pytest.mark.parametrize(
    ("address", "is_allowed"),
    [
        ("192.0.2.7", True),
        ("10.0.0.1", True),
        ("2001:db8::1", True),
        ("::ffff:192.0.2.7", True),
        ("127.0.0.1", False),
        ("127.9.9.9", False),
        ("::1", False),
        ("::ffff:127.0.0.1", False),
        ("169.254.169.254", False),
        ("::ffff:169.254.169.254", False),
        ("fe80::1%eth0", False),
        ("0.0.0.0", False),
        ("::", False),
        ("224.0.0.1", False),
        ("255.255.255.255", False),
        ("localhost", False),
        ("", False),
    ],
)
def test_default_bounds_leave_out_host_itself_and_its_link(address: str, is_allowed: bool) -> None:
    assert egress.is_allowed(address, ()) is is_allowed


def test_named_networks_permit_exactly_their_addresses() -> None:
    networks = ("192.0.2.0/24", "2001:db8::/32", "127.0.0.1/32")
    allowed = ("192.0.2.255", "::ffff:192.0.2.1", "2001:db8::9", "127.0.0.1")
    assert [one for one in (*allowed, "192.0.3.0", "127.0.0.2", "::1") if egress.is_allowed(one, networks)] == [
        *allowed
    ]


@pytest.fixture
def port() -> Iterator[int]:
    """A port of this host that answers."""
    with socket.create_server((HERE, 0)) as server:
        yield server.getsockname()[1]


@pytest.mark.parametrize("host", [HERE, "localhost", "0.0.0.0", "0177.0.0.1", "2130706433"])
def test_bounded_thread_does_not_reach_its_host_by_any_spelling_and_other_threads_do(port: int, host: str) -> None:
    def connect() -> None:
        socket.create_connection((host, port), 5).close()

    with egress.bounded(()):
        for attempt in (connect, lambda: urllib.request.urlopen(f"http://{host}:{port}/", timeout=5)):
            with pytest.raises(OSError, match="egress in /etc/ffdl/site"):
                attempt()
        other = threading.Thread(target=connect)
        other.start()
        other.join()
        with egress.bounded((f"{HERE}/32",)):
            socket.create_connection((HERE, port), 5).close()
        with pytest.raises(PermissionError):
            http.client.HTTPConnection(HERE, port).connect()
    connect()


def test_bounded_thread_reaches_unix_sockets() -> None:
    name = b"\0ffdl-egress-test"
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client, egress.bounded(()):
        server.bind(name)
        server.listen()
        client.connect(name)


CHILD = """
import asyncio, os, socket, sys, threading
from ffdl_batch.host import egress
egress.bound_process(os.environ.get(egress.VARIABLE))
port, failures = int(sys.argv[1]), []
def plain():
    try:
        socket.create_connection(("127.0.0.1", port), 5).close()
    except PermissionError:
        failures.append("plain")
async def tasks():
    try:
        await asyncio.open_connection("localhost", port)
    except PermissionError:
        failures.append("tasks")
plain()
asyncio.run(tasks())
thread = threading.Thread(target=plain); thread.start(); thread.join()
print(len(failures))
"""


@pytest.mark.parametrize(("networks", "refused"), [(None, "0"), ((), "3"), (("127.0.0.0/8", "::1/128"), "0")])
def test_child_process_is_bounded_in_all_threads_and_tasks(
    port: int, networks: tuple[str, ...] | None, refused: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(port)],
        env=egress.child_environment(networks), check=True, stdout=subprocess.PIPE, text=True, timeout=60,
    )  # fmt: skip
    assert done.stdout == f"{refused}\n"


@pytest.mark.parametrize(
    ("networks", "invalid"),
    [(["192.0.2.0/24", "::1/128", "192.0.2.1"], ""), (["10.0.0.1/8"], "10.0.0.1/8"), (["x"], "x")],
)
def test_first_invalid_network_is_found(networks: list[str], invalid: str) -> None:
    assert egress.first_invalid(networks) == invalid
