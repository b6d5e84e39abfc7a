"""Tests the credentials of a Unix socket's peer, with ids of any size, and the user of a loopback peer."""

from __future__ import annotations

import os
import socket
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from ffdl_batch.host import users
from ffdl_batch.host.users import Credentials, read_credentials, read_loopback_uid


def test_credentials_of_own_socket_are_those_of_this_process() -> None:
    one, other = socket.socketpair()
    with one, other:
        assert read_credentials(one) == Credentials(os.getpid(), os.geteuid(), os.getegid())


@pytest.mark.parametrize("number", [0, 2**31 - 1, 2**31, 2**31 + 5, 2**32 - 2])
def test_credentials_hold_every_user_and_group_number(number: int) -> None:
    class Connection:
        def getsockopt(self, _level: int, _name: int, size: int) -> bytes:
            packed = struct.pack("@iII", 77, number, number)
            assert len(packed) == size
            return packed

    assert read_credentials(Connection()) == Credentials(77, number, number)


def accepted(server: str, client: str, tmp: list[socket.socket]) -> socket.socket:
    """A connection of this process to itself; `server` and `client` are addresses. The server's end."""
    family = socket.AF_INET6 if ":" in server else socket.AF_INET
    listener = socket.create_server((server, 0), family=family, dualstack_ipv6=server == "::")
    near = socket.socket(socket.AF_INET6 if ":" in client else socket.AF_INET)
    tmp += [listener, near]
    near.connect((client, listener.getsockname()[1]))
    tmp.append(listener.accept()[0])
    return tmp[-1]


@pytest.fixture
def sockets() -> Iterator[list[socket.socket]]:
    """Sockets that are closed after the test."""
    made: list[socket.socket] = []
    yield made
    for one in made:
        one.close()


@pytest.mark.parametrize(
    ("server", "client"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("127.0.0.1", "127.1.2.3"),
        ("127.0.0.1", "::ffff:127.0.0.1"),
        ("::1", "::1"),
        ("::", "127.0.0.1"),
        ("::", "::1"),
    ],
)
def test_uid_of_loopback_peer_is_that_of_this_process(server: str, client: str, sockets: list[socket.socket]) -> None:
    if client == "127.1.2.3":
        server = client  # each address of 127.0.0.0/8 is one of this machine
    connection = accepted(server, client, sockets)
    assert read_loopback_uid(connection) == os.getuid()
    sockets[1].shutdown(socket.SHUT_WR)
    assert read_loopback_uid(connection) == os.getuid(), "a peer that has sent everything is still there"


def test_uid_of_loopback_peer_is_not_known_after_it_closed_its_end(sockets: list[socket.socket]) -> None:
    connection = accepted("127.0.0.1", "127.0.0.1", sockets)
    sockets[1].close()
    assert connection.recv(1) == b""
    assert read_loopback_uid(connection) is None, "the kernel lists the rest of the connection as root's"
    connection.close()
    assert read_loopback_uid(connection) is None


def test_uid_of_other_connections_is_not_known(sockets: list[socket.socket]) -> None:
    sockets += socket.socketpair()
    sockets.append(socket.socket(socket.AF_UNIX))
    sockets.append(socket.create_server(("127.0.0.1", 0)))
    sockets.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    assert [read_loopback_uid(one) for one in sockets] == [None] * len(sockets)


class Far:
    """A connection from another machine, or with ends that the test chooses."""

    def __init__(self, peer: object, own: object) -> None:
        self._peer, self._own = peer, own

    def getpeername(self) -> object:
        return self._peer

    def getsockname(self) -> object:
        return self._own


HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
ROW = "   0: {} {} {} 00000000:00000000 00:00000000 00000000 {:>5}        0 {} 1 0000000047745ebd 20 4 30 10 -1\n"


def in_table(port: int) -> str:
    """127.0.0.1 with a port, as the kernel writes it on this machine."""
    return f"{int.from_bytes(bytes([127, 0, 0, 1]), sys.byteorder):08X}:{port:04X}"


@pytest.mark.parametrize(
    ("rows", "uid"),
    [
        ([(5, 6, "01", 1234, 99)], 1234),
        ([(5, 6, "01", 4294967294, 99)], 4294967294),
        ([(5, 6, "08", 0, 99)], 0),
        ([(6, 5, "01", 1, 99)], None),  # the server's own end
        ([(5, 6, "06", 0, 0)], None),  # closed
        ([(5, 7, "01", 1, 99), (4, 6, "01", 1, 99)], None),
        ([], None),
    ],
)
def test_uid_of_loopback_peer_is_that_of_its_row(
    tmp_path: Path, rows: list[tuple[int, int, str, int, int]], uid: int | None
) -> None:
    table = HEAD + "".join(
        ROW.format(in_table(peer), in_table(own), state, owner, inode) for peer, own, state, owner, inode in rows
    )
    (tmp_path / "tcp").write_text(table)
    assert read_loopback_uid(cast(socket.socket, Far(("127.0.0.1", 5), ("127.0.0.1", 6))), str(tmp_path)) == uid


def test_uid_of_peer_on_another_machine_is_not_looked_up(tmp_path: Path) -> None:
    row = ROW.format(in_table(5), in_table(6), "01", 1234, 99)
    (tmp_path / "tcp").write_text(HEAD + row)
    near, mapped = ("127.0.0.1", 6), ("::ffff:127.0.0.1", 6, 0, 0)
    for peer in (("10.0.0.1", 5), ("fe80::1", 5, 0, 2), ("::2", 5, 0, 0), ("::ffff:10.0.0.1", 5, 0, 0)):
        for own in (near, mapped):
            assert read_loopback_uid(cast(socket.socket, Far(peer, own)), str(tmp_path)) is None
    assert read_loopback_uid(cast(socket.socket, Far(("127.0.0.1", 5), ("10.0.0.1", 6))), str(tmp_path)) is None
    assert read_loopback_uid(cast(socket.socket, Far(("127.0.0.1", 5), mapped)), str(tmp_path)) == 1234


@pytest.mark.parametrize("table", ["", "x" * 200, "\0" * 50, "\xff" * 90, "garbage\n" * 9, HEAD + "0: a b c\n"])
def test_damaged_table_has_no_uid(tmp_path: Path, table: str) -> None:
    (tmp_path / "tcp").write_text(table, encoding="latin-1")
    (tmp_path / "tcp6").mkdir()
    assert read_loopback_uid(cast(socket.socket, Far(("127.0.0.1", 5), ("127.0.0.1", 6))), str(tmp_path)) is None


def test_table_is_read_within_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other, wanted = ROW.format(in_table(1), in_table(2), "01", 1, 9), ROW.format(in_table(5), in_table(6), "01", 7, 9)
    monkeypatch.setattr(users, "_TABLE_BYTES", 10 * len(other))
    for number, uid in ((9, 7), (10, None)):
        (tmp_path / "tcp").write_text(other * number + wanted)
        found = read_loopback_uid(cast(socket.socket, Far(("127.0.0.1", 5), ("127.0.0.1", 6))), str(tmp_path))
        assert found == uid, number
