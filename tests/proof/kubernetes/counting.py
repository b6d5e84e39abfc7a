"""Learner of the proof's elastic jobs: counts samples with any number of learners. Its checkpoint is the count.

    python3 counting.py SAMPLES STEP_S [stay]

The first learner takes STEP_S for each step, has all others take part in it, saves, and reports its speed. Its log is
the evidence: it shows where each session begins, and each checkpoint. With `stay`, it continues without learners that
have left. Uses only the standard library.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from pathlib import Path

STEP, END = b"s", b"e"
JOIN_S = 60.0
REPORT_EVERY_S = 2.0
requests: list[int] = []


def count_up(samples: int, step_s: float, peers: list[socket.socket], *, stays: bool) -> None:
    """Count until all samples were seen, or a checkpoint is requested."""
    checkpoint = Path(os.environ["CHECKPOINT_DIR"], "seen")
    each = int(os.environ["BATCH_SIZE"])
    seen = int(checkpoint.read_text()) if checkpoint.exists() else 0
    print("session", json.dumps({"after": seen, "learners": len(peers) + 1, "batch": each}), flush=True)
    reported, reported_at = seen, time.monotonic()
    while seen < samples and not requests:
        peers = [peer for peer in peers if takes_part(peer, stays=stays)]
        time.sleep(step_s)
        seen = min(seen + each * (len(peers) + 1), samples)
        now = time.monotonic()
        if now - reported_at >= REPORT_EVERY_S:
            speed = f"samples={seen - reported} seconds={now - reported_at:.3f}"
            print(f"ffdl-throughput: {speed} remaining={samples - seen}", flush=True)
            reported, reported_at = seen, now
    partial = checkpoint.with_name("seen.partial")
    partial.write_text(str(seen))
    partial.replace(checkpoint)
    print("saved", seen, flush=True)
    for peer in peers:
        peer.sendall(END)


def takes_part(peer: socket.socket, *, stays: bool) -> bool:
    """Begin a step with another learner. Return False if that learner has left; without `stays`, raise OSError then."""
    try:
        peer.sendall(STEP)
    except OSError:
        if not stays:
            raise
        return False
    return True


def take_part(place: tuple[str, int]) -> None:
    """Take part in the steps of the first learner. Raises ConnectionError if it has gone."""
    end = time.monotonic() + JOIN_S
    while True:
        try:
            first = socket.create_connection(place, JOIN_S)
            break
        except OSError:  # it does not listen yet
            if time.monotonic() > end:
                raise
            time.sleep(0.1)
    first.settimeout(None)
    while received := first.recv(4096):
        if received.endswith(END):
            return
    raise ConnectionError("the first learner has ended")


def main(samples: int, step_s: float, *, stays: bool) -> None:
    """Count as the first learner, or take part."""
    signal.signal(signal.SIGUSR2, lambda number, _frame: requests.append(number))
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if os.environ["RANK"] != "0":
        take_part((address, port))
        return
    world = int(os.environ["WORLD_SIZE"])
    with socket.create_server(("", port), backlog=world) as server:
        server.settimeout(JOIN_S)
        count_up(samples, step_s, [server.accept()[0] for _ in range(world - 1)], stays=stays)


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), stays="stay" in sys.argv[3:])
