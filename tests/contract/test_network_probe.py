"""The prober of `make bench BENCH=traffic`, over this machine's loopback. What it counts is judged, and no time."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.benchmarks.nodeside import probe
from tests.fakes.s3_server import free_port

TRIPS = 20


def test_network_probe_returns_all_samples_and_its_server_exits(tmp_path: Path) -> None:
    port, program = str(free_port()), tmp_path / "probe.py"
    text, patience = Path(probe.__file__).read_text(), f"UDP_PATIENCE_S = {probe.UDP_PATIENCE_S}\n"
    assert patience in text
    program.write_text(text.replace(patience, "UDP_PATIENCE_S = 60.0\n"))  # nothing is lost here, however long it takes
    with subprocess.Popen([sys.executable, str(program), "serve", "127.0.0.1", port]) as server:
        try:
            argv = [sys.executable, str(program), "measure", "127.0.0.1", port, "0.2", str(TRIPS)]
            done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=True)
            assert server.wait(timeout=60) == 0
        finally:
            server.kill()
    found = json.loads(done.stdout)
    assert {name: len(samples) for name, samples in found.items()} == {
        "stream_mb_s": 1,
        "tcp_us": TRIPS,
        "udp_us": TRIPS,
        "udp_lost": 1,
    }
    assert found.pop("udp_lost") == [0.0]
    assert all(sample > 0 for samples in found.values() for sample in samples)


def test_network_probe_counts_unanswered_datagrams_as_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "UDP_PATIENCE_S", 0.05)
    monkeypatch.setattr(probe, "WARM_UP", 0)
    answered = probe._answered

    def is_answered(sender: socket.socket, message: bytes, deadline: float) -> bool:
        """What is answered may take its time."""
        return answered(sender, message, deadline + (60 if message[7] % 2 else 0))

    monkeypatch.setattr(probe, "_answered", is_answered)

    def answer_every_second() -> None:
        for number in range(10):
            message, peer = listener.recvfrom(100)
            if number % 2:
                listener.sendto(b"late" + message[4:], peer)  # not the answer to this one
                listener.sendto(message, peer)

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.settimeout(60)
        answering = threading.Thread(target=answer_every_second)
        answering.start()
        taken, lost = probe.udp_trips("127.0.0.1", listener.getsockname()[1], 10)
        answering.join()
    assert (len(taken), lost) == (5, 5)
