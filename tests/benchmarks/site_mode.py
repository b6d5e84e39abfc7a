"""What the hub adds to a request, how long a user waits for a daemon that does not run, and how often Slurm is asked
for many users. It needs root.

The same requests go to the user's daemon directly, as on the hub's host, and through the hub over HTTPS. A connection
serves all requests of its thread, as `ffdl` uses one for a command.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from http.client import HTTPSConnection
from pathlib import Path
from unittest.mock import patch

from ffdl_batch.daemon.loop_intervals import QUIET_LONGEST_S
from ffdl_batch.domain.outcome.observation import NativeId
from ffdl_batch.plugins import AdapterContext, create_adapter
from ffdl_batch.ports.capabilities import SharesListing
from ffdl_batch.services import hub as services_hub
from ffdl_batch.services.monitoring.shared_looks import SharedLooks
from tests.benchmarks.figures import Figure
from tests.benchmarks.footprint import REST_S
from tests.benchmarks.knobs import Knobs
from tests.benchmarks.usage import private_mib
from tests.site.fake_slurm import SiteSlurm
from tests.site.rig import ADA, ADDRESS, BOB, CROWD, HUB, Host, Hub, Spawner

READ, WRITE = ("GET", "/api/v1/jobs", ""), ("PUT", "/api/v1/secrets/bench", '{"value": "x"}')
REQUESTS, THREADS = 300, 8
LIVE_USERS = (1, 50, 500)
LISTED_EVERY_S = 5.0
"""The usual `listing_interval_s` of the hub."""
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


FLOOD = """
import http.client, signal, ssl, sys, threading
host, port, ca, token = sys.argv[1:]
sent, over = [0], threading.Event()
signal.signal(signal.SIGTERM, lambda *_: over.set())
def flood():
    context = ssl.create_default_context(cafile=ca)
    while not over.is_set():
        connection = http.client.HTTPSConnection(host, int(port), timeout=60, context=context)
        try:
            while not over.is_set():
                connection.request("GET", "/api/v1/jobs", headers={"Authorization": "Bearer " + token})
                connection.getresponse().read()
                sent[0] += 1
        except OSError:
            sent[0] += 1
        finally:
            connection.close()
threads = [threading.Thread(target=flood) for _ in range(8)]
for thread in threads: thread.start()
print("begun", flush=True)
for thread in threads: thread.join()
print(sent[0])
"""
"""Sends requests until it gets SIGTERM, and prints how many."""


def measure_site(knobs: Knobs) -> list[Figure]:
    """Measure requests of one user, and starts of the daemon."""
    with _site(knobs.site_users) as (host, hub, slurm):
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
        figures += [_measure_commands(host, slurm, users, knobs.seconds) for users in LIVE_USERS]
        figures += _measure_crowd(host, knobs.site_users)
    return figures + _measure_flood()


def _measure_flood() -> list[Figure]:
    """Measure reads of one user alone, and while a program of another user sends requests without pause. The hub and
    the spawner have their usual limits. The program has the lowest priority, as if it were on another machine."""
    with _site(0, usual=True) as (host, hub, _):
        tokens = []
        for uid in (ADA, BOB):
            host.ask(uid, f"ensure {uid}\n")
            place = str(host.place / f"run/users/{uid}/daemon.sock")
            argv = ("POST", "/api/v1/tokens", '{"name": "bench", "scopes": ["read", "write"]}')
            tokens.append(json.loads(host.python(PLAIN + _ONE, place, *argv, "", "", uid=uid))["secret"])
        alone, _ = _through_hub(hub, tokens[0], READ, 1)
        given = [ADDRESS, str(hub.port), str(hub.certificate), tokens[1]]
        flood = subprocess.Popen(
            ["nice", "-n19", sys.executable, "-I", "-c", FLOOD, *given], stdout=subprocess.PIPE, text=True
        )
        try:
            assert flood.stdout is not None and flood.stdout.readline()  # it has begun
            flooded, _ = _through_hub(hub, tokens[0], READ, 1)
        finally:
            flood.terminate()
            sent = int(flood.communicate()[0].split()[-1])
        return [
            _milliseconds("read, hub, alone", alone),
            _milliseconds("read, hub, flooded by another user", flooded, "as alone"),
            Figure("site", "requests of the other user meanwhile", "ffdl", "", [sent]),
        ]


class _Follower:
    """What a daemon with one live job does at each look, without the daemon."""

    def __init__(self, hub: services_hub.Hub, number: int) -> None:
        context = AdapterContext(root="/nonexistent", user="root", uid=0, shared=services_hub.HubListing(hub))
        scheduler = create_adapter("slurm", {}, context)
        assert isinstance(scheduler, SharesListing)
        self._scheduler = scheduler
        self._ids = [NativeId(str(number))]
        self._looks = SharedLooks(random.random)

    def look(self) -> None:
        """Follow the job."""
        now = time.monotonic()
        look = self._looks.judge(self._ids, self._scheduler.observe_shared(self._ids), now)
        if look is None and self._looks.may_ask(now):
            self._looks.note_own(now, self._scheduler.observe(self._ids))


def _measure_commands(host: Host, slurm: SiteSlurm, users: int, seconds: float) -> Figure:
    """Count the commands that ask slurmctld while so many users have live jobs that do not change. Each looks as often
    as the daemon of a quiet job."""
    hub = services_hub.Hub(HUB, str(host.place / "hub/hub.sock"))
    for number in range(1, users + 1):
        slurm.add_job(number, uid=0)
    followers = [_Follower(hub, number) for number in range(1, users + 1)]
    with ThreadPoolExecutor(16) as pool:
        for _ in range(2):  # own questions about new jobs, and a listing that is newer than they
            list(pool.map(_Follower.look, followers))
            time.sleep(2 * LISTED_EVERY_S)
        before, began = len(slurm.commands()), time.perf_counter()
        while time.perf_counter() - began < seconds:
            for follower in followers:
                pool.submit(follower.look)
                time.sleep(QUIET_LONGEST_S / users)
        took_s = time.perf_counter() - began
    asked = len(slurm.commands()) - before
    return Figure("site", f"squeue, sinfo and scontrol, {users} with live jobs", "ffdl", "1/min", [60 * asked / took_s])


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
def _site(crowd: int, *, usual: bool = False) -> Iterator[tuple[Host, Hub, SiteSlurm]]:
    """A host with spawner, hub and a fake Slurm, with limits that no benchmark reaches, or with the `usual` ones."""
    with ExitStack() as ends:
        place = Path(tempfile.mkdtemp(prefix="ffdl-site-"))
        ends.callback(shutil.rmtree, place)
        host = Host(place, crowd, {"FFDL_IDLE_EXIT_S": "3600"})
        ends.callback(host.close)
        host.configure(**({} if usual else {"starts_per_minute": 1000}))
        spawner = Spawner(host)
        ends.callback(spawner.close)
        slurm = SiteSlurm(place)
        ends.enter_context(patch.dict(os.environ, slurm.environment))
        hub = Hub(host, **({} if usual else {"requests_per_minute": 1_000_000}))
        ends.callback(hub.close)
        yield host, hub, slurm


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
