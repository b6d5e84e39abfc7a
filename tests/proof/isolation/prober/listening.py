"""Listens, in a learner or as a plain process, so that what comes through is answered and written down."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .shots import attempt, attempt_all


def listen(config: dict[str, Any], label: str, journal: Path) -> None:
    """Answer everybody with `label` on the configuration's ports, TCP and UDP, all addresses, and Unix sockets.

    Each datagram that comes is a line of the journal. Returns when all listens; threads go on.
    """
    servers: list[socket.socket] = []
    for port in config["ports"]:
        servers.append(_bound(socket.SOCK_STREAM, port))
        _thread(_echo, _bound(socket.SOCK_DGRAM, port), label, journal)
    for name in config["sockets"]:
        servers.append(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        servers[-1].bind("\0" + name[1:] if name.startswith("@") else name)
    for server in servers:
        server.listen(64)
        _thread(_greet, server, label)


def _bound(kind: socket.SocketKind, port: int) -> socket.socket:
    """A socket for IPv4 and, where there is any, IPv6."""
    try:
        made = socket.socket(socket.AF_INET6, kind)
        made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    except OSError:
        made = socket.socket(socket.AF_INET, kind)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.bind(("", port))
    return made


def _greet(server: socket.socket, label: str) -> None:
    while True:
        connection, _ = server.accept()
        with connection, contextlib.suppress(OSError):
            connection.sendall(label.encode())


def _echo(server: socket.socket, label: str, journal: Path) -> None:
    with journal.open("a", encoding="utf-8", errors="replace") as lines:
        while True:
            payload, peer = server.recvfrom(200)
            print(payload.decode(errors="replace"), file=lines, flush=True)
            with contextlib.suppress(OSError):
                server.sendto(label.encode(), peer)


def _thread(work: Callable[..., None], *arguments: Any) -> None:
    threading.Thread(target=work, args=arguments, daemon=True).start()


def learner(config: dict[str, Any]) -> None:
    """Listen, leave files with the secret, and fire what is ordered until the job is cancelled."""
    number, place = os.environ["LEARNER_ID"], Path(os.environ["CHECKPOINT_DIR"])
    label = f"{config['label']}-{number}"
    own = {"ports": [config["ports"][int(number) - 1]], "sockets": [f"@{label}-abstract"]}
    listen(own, label, place / f"journal-{number}.txt")
    for directory in ("/tmp", "/dev/shm", place):
        Path(directory, config["label"]).write_text(config["secret"])
    with subprocess.Popen([sys.executable, "-m", "prober", "target", config["target"]]):
        opening = sorted(str(path) for path in Path("/dev").glob("nvidia[0-9]"))
        opening = [path for path in opening if attempt({"id": "", "kind": "device", "path": path})["through"]]
        _publish(place / f"ready-{number}.json", {"devices": opening})
        served = 0
        while True:
            orders = place / f"orders-{number}-{served + 1}.json"
            if orders.exists():
                served += 1
                _publish(place / f"answers-{number}-{served}.json", attempt_all(json.loads(orders.read_text())))
            time.sleep(0.1)


def _publish(path: Path, value: object) -> None:
    new = path.with_name(f".{path.name}")
    new.write_text(json.dumps(value))
    new.replace(path)
