"""Tests the credentials of a Unix socket's peer, with ids of any size."""

from __future__ import annotations

import os
import socket
import struct

import pytest

from ffdl_batch.host.users import Credentials, read_credentials


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
