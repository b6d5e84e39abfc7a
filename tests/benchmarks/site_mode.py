"""What the hub adds to a request, and how long a user waits for a daemon that does not run. It needs root.

The same requests go to the user's daemon directly, as on the hub's host, and through the hub over HTTPS. A connection
serves all requests of its thread, as `ffdl` uses one for a command.
"""

from __future__ import annotations

import json
import shutil
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.client import HTTPSConnection
from pathlib import Path

from tests.benchmarks.figures import Figure
from tests.benchmarks.footprint import REST_S
from tests.benchmarks.knobs import Knobs
from tests.benchmarks.usage import private_mib
from tests.site.rig import ADA, ADDRESS, CROWD, Host, Hub, Spawner

READ, WRITE = ("GET", "/api/v1/jobs", ""), ("PUT", "/api/v1/secrets/bench", '{"value": "x"}')
REQUESTS, THREADS = 300, 8
PLAIN = """
import http.client, json, os, signal, socket, struct, sys, threading, time
place, method, path, body, requests, threads = sys.argv[1:]
def dial():
    connection = http.client.HTTPConnection("ffdl", timeout=120)
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(place)
    return connection
"""
"""The beginning of a program of the user."""
ASK = """
def send(times):
    connection = dial()
    for _ in range(int(requests)):
        began = time.perf_counter()
        connection.request(method, path, body or None, {"Content-Type": "application/json"} if body else {})
        reply = connection.getresponse()
        reply.read()
        assert reply.status == 200, reply.status
        times.append(time.perf_counter() - began)
times, began = [], time.perf_counter()
running = [threading.Thread(target=send, args=(times,)) for _ in range(int(threads))]
for thread in running: thread.start()
for thread in running: thread.join()
print(json.dumps([times, time.perf_counter() - began]))
"""
START = """
began = time.perf_counter()
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asking:
    asking.connect(path)
    asking.send(f"ensure {os.getuid()}\\n".encode())
    assert asking.recv(600).startswith(b"ok ")
connection = dial()
pid = struct.unpack("=iII", connection.sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
connection.request("GET", "/api/v1/health")
assert connection.getresponse().status == 200
print(json.dumps(time.perf_counter() - began))
connection.close()
process = os.pidfd_open(pid)
signal.pidfd_send_signal(process, signal.SIGTERM)
import select
assert select.select([process], [], [], 60)[0]
"""
"""Asks for the own daemon until it has answered, and ends it."""


def measure_site(knobs: Knobs) -> list[Figure]:
    """Measure requests of one user, and starts of the daemon."""
    with _site(knobs.site_users) as (host, hub):
        place = str(host.place / f"run/users/{ADA}/daemon.sock")

        def program(text: str, *arguments: str) -> object:
            return json.loads(host.python(PLAIN + text, place, *arguments, uid=ADA))

        spawner = str(host.place / "run/spawner.sock")
        starts = [float(str(program(START, "", spawner, "", "", ""))) for _ in range(knobs.rounds)]
        host.ask(ADA, f"ensure {ADA}\n")
        argv = ("POST", "/api/v1/tokens", '{"name": "bench", "scopes": ["read", "write"]}')
        token = json.loads(host.python(PLAIN + _ONE, place, *argv, "", "", uid=ADA))["secret"]
        figures = [Figure("site", "start of a daemon until its first answer", "ffdl", "s", starts, "<= 1")]
        for what, request in (("read", READ), ("write", WRITE)):
            direct = program(ASK, *request, str(REQUESTS), "1")
            times, _ = _through_hub(hub, token, request, 1)
            assert isinstance(direct, list)
            figures.append(_milliseconds(f"{what}, own socket", direct[0]))
            figures.append(_milliseconds(f"{what}, hub", times, "<= 5 more at p50"))
        direct = program(ASK, *READ, str(REQUESTS), str(THREADS))
        assert isinstance(direct, list)
        times, took_s = _through_hub(hub, token, READ, THREADS)
        rates = (("own socket", len(direct[0]) / direct[1]), ("hub", len(times) / took_s))
        figures += [Figure("site", f"reads by {THREADS} threads, {who}", "ffdl", "1/s", [rate]) for who, rate in rates]
        return figures + _measure_crowd(host, knobs.site_users)


def _measure_crowd(host: Host, users: int) -> list[Figure]:
    """Start the daemons of many users at once, as after a reboot, and add up their private memory."""
    began = time.perf_counter()
    argv = host.inside([sys.executable, "-I", "-c", CROWD_PROGRAM, str(host.place / "run"), str(CROWD), str(users)])
    done = subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True, cwd="/")
    took_s = time.perf_counter() - began
    time.sleep(REST_S)
    memory = [private_mib(pid) for pid in json.loads(done.stdout)]
    together_gb = sum(memory) * 1.048576 / 1000
    return [
        Figure("site", f"{users} users ask at once, until all have an answer", "ffdl", "s", [took_s]),
        Figure("site", f"private memory of each of {users} daemons", "ffdl", "MiB", memory, "<= 50"),
        Figure("site", f"private memory of {users} daemons together", "ffdl", "GB", [together_gb], "<= 12"),
    ]


CROWD_PROGRAM = """
import http.client, json, os, socket, struct, sys, time
run, first, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
def ask(uid):
    os.setgid(7100); os.setgroups([]); os.setuid(uid)
    while True:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asking:
            try:
                asking.settimeout(60)
                asking.connect(run + "/spawner.sock")
                asking.send(f"ensure {uid}\\n".encode())
                if asking.recv(600).startswith(b"ok "):
                    break
            except OSError:
                pass
        time.sleep(0.5)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(f"{run}/users/{uid}/daemon.sock")
        connection.sendall(b"GET /api/v1/health HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n")
        assert connection.recv(12) == b"HTTP/1.1 200"
        return struct.unpack("=iII", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
readers = []
for uid in range(first, first + count):
    reading, writing = os.pipe()
    if os.fork() == 0:
        try:
            os.write(writing, str(ask(uid)).encode())
        finally:
            os._exit(0)
    os.close(writing)
    readers.append(reading)
print(json.dumps([int(os.read(reading, 20)) for reading in readers]))
"""
"""Asks for the daemon of each user as that user, all at once, until it answers; prints the process ids."""
_ONE = """
connection = dial()
connection.request(method, path, body, {"Content-Type": "application/json"})
print(connection.getresponse().read().decode())
"""


def _milliseconds(measure: str, seconds: list[float], aim: str = "") -> Figure:
    return Figure("site", measure, "ffdl", "ms", [1000 * value for value in seconds], aim)


@contextmanager
def _site(crowd: int) -> Iterator[tuple[Host, Hub]]:
    """A host with spawner and hub, with limits that no benchmark reaches."""
    with ExitStack() as ends:
        place = Path(tempfile.mkdtemp(prefix="ffdl-site-"))
        ends.callback(shutil.rmtree, place)
        host = Host(place, crowd, {"FFDL_IDLE_EXIT_S": "3600"})
        ends.callback(host.close)
        host.configure(starts_per_minute=1000)
        spawner = Spawner(host)
        ends.callback(spawner.close)
        hub = Hub(host, requests_per_minute=1_000_000)
        ends.callback(hub.close)
        yield host, hub


def _through_hub(hub: Hub, token: str, request: tuple[str, str, str], threads: int) -> tuple[list[float], float]:
    """Seconds of each request, and of all together."""
    times: list[float] = []
    context = ssl.create_default_context(cafile=str(hub.certificate))

    def send() -> None:
        _send(HTTPSConnection(ADDRESS, hub.port, context=context), token, request, times)

    running = [threading.Thread(target=send) for _ in range(threads)]
    began = time.perf_counter()
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    if len(times) != REQUESTS * threads:
        raise RuntimeError(f"{REQUESTS * threads - len(times)} requests through the hub failed")
    return times, time.perf_counter() - began


def _send(connection: HTTPSConnection, token: str, request: tuple[str, str, str], times: list[float]) -> None:
    method, path, body = request
    headers = {"Authorization": f"Bearer {token}"} | ({"Content-Type": "application/json"} if body else {})
    try:
        connection.connect()
        for _ in range(REQUESTS):
            began = time.perf_counter()
            connection.request(method, path, body or None, headers)
            reply = connection.getresponse()
            reply.read()
            if reply.status != 200:
                return
            times.append(time.perf_counter() - began)
    finally:
        connection.close()
