"""A network between two places, measured with sockets alone.

    probe.py serve ADDRESS PORT                           until the other one says that it is done
    probe.py measure ADDRESS PORT SECONDS ROUNDTRIPS

The second prints {"stream_mb_s": [...], "tcp_us": [...], "udp_us": [...], "udp_lost": [n]}: what one TCP stream of
SECONDS carried, in 10^6 bytes a second, as the receiver counted them, and the time of each round trip of 64 bytes.
Each end keeps to a processor of its own, also where both nodes are one machine. Standard library alone: it runs in any
learner's image.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import sys
import threading
import time

PATIENCE_S = 30.0
WARM_UP = 50
UDP_PATIENCE_S = 1.0
_SMALL, _LARGE = 64, 1 << 18
_STREAM, _ECHO, _DONE = b"s", b"e", b"d"
_COUNT = struct.Struct("!Q")


def serve(address: str, port: int) -> None:
    """Answer one measuring client, connection after connection."""
    with socket.create_server((address, port)) as listener, _datagrams() as echo:
        echo.bind((address, port))
        threading.Thread(target=_echo_datagrams, args=(echo,), daemon=True).start()
        listener.settimeout(PATIENCE_S)
        kind = b""
        while kind != _DONE:
            connection = listener.accept()[0]
            with connection:
                connection.settimeout(PATIENCE_S)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                kind = connection.recv(1)
                if kind == _STREAM:
                    connection.sendall(_COUNT.pack(_drain(connection)))
                while kind == _ECHO and (message := _receive(connection, _SMALL)):
                    connection.sendall(message)


def measure(address: str, port: int, seconds: float, trips: int) -> dict[str, list[float]]:
    """Everything, one after the other."""
    tcp = _tcp_trips(address, port, trips)
    udp, lost = udp_trips(address, port, trips)
    rate = _stream(address, port, seconds)
    _connect(address, port, _DONE).close()
    return {"stream_mb_s": [rate], "tcp_us": tcp, "udp_us": udp, "udp_lost": [float(lost)]}


def _connect(address: str, port: int, kind: bytes) -> socket.socket:
    """A connection of that kind, once somebody listens."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            connection = socket.create_connection((address, port), timeout=PATIENCE_S)
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.sendall(kind)
            return connection


def _stream(address: str, port: int, seconds: float) -> float:
    block = bytes(_LARGE)
    with _connect(address, port, _STREAM) as connection:
        began = time.perf_counter()
        while time.perf_counter() - began < seconds:
            connection.sendall(block)
        connection.shutdown(socket.SHUT_WR)
        (received,) = _COUNT.unpack(_receive(connection, _COUNT.size))
        return float(received) / 1e6 / (time.perf_counter() - began)


def _tcp_trips(address: str, port: int, trips: int) -> list[float]:
    message, taken = bytes(_SMALL), []
    with _connect(address, port, _ECHO) as connection:
        for _ in range(WARM_UP + trips):
            began = time.perf_counter()
            connection.sendall(message)
            _receive(connection, _SMALL)
            taken.append(1e6 * (time.perf_counter() - began))
    return taken[WARM_UP:]


def udp_trips(address: str, port: int, trips: int) -> tuple[list[float], int]:
    """Times of those that came back in time, and how many did not."""
    taken, lost = [], 0
    with _datagrams() as sender:
        sender.connect((address, port))
        for number in range(WARM_UP + trips):
            message = _COUNT.pack(number).ljust(_SMALL, b".")
            began = time.perf_counter()
            sender.send(message)
            if not _answered(sender, message, began + UDP_PATIENCE_S):
                lost += 1
            elif number >= WARM_UP:
                taken.append(1e6 * (time.perf_counter() - began))
    return taken, lost


def _answered(sender: socket.socket, message: bytes, deadline: float) -> bool:
    """Whether this message comes back; one of before that is late does not count."""
    while (left := deadline - time.perf_counter()) > 0:
        sender.settimeout(left)
        try:
            if sender.recv(_SMALL) == message:
                return True
        except TimeoutError:
            return False
    return False


def _datagrams() -> socket.socket:
    return socket.socket(socket.AF_INET, socket.SOCK_DGRAM)


def _echo_datagrams(echo: socket.socket) -> None:
    while True:
        message, peer = echo.recvfrom(_SMALL)
        echo.sendto(message, peer)


def _drain(connection: socket.socket) -> int:
    """How many bytes come until the other one has said all."""
    buffer, received = bytearray(_LARGE), 0
    while count := connection.recv_into(buffer):
        received += count
    return received


def _receive(connection: socket.socket, size: int) -> bytes:
    """Exactly so many bytes, or none where the other one has said all."""
    message = b""
    while len(message) < size:
        part = connection.recv(size - len(message))
        if not part:
            return b""
        message += part
    return message


def _keep_to(place: int) -> None:
    processors = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {processors[place]})


if __name__ == "__main__":
    _keep_to(-1 if sys.argv[1] == "serve" else 0)
    if sys.argv[1] == "serve":
        serve(sys.argv[2], int(sys.argv[3]))
    else:
        host, number, how_long, how_often = sys.argv[2:]
        print(json.dumps(measure(host, int(number), float(how_long), int(how_often))))
