"""One job seen by two: a tight squeue loop and our client. see_phases.py MANIFEST MODEL.

Prints seconds from the start of the submission to the first sight of it running and completed:
{"squeue": {"running": s, "completed": s}, "ffdl": {...}}.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable

from ffdl_batch import Client

PATIENCE_S = 120.0
_RUNNING = {"DOWNLOADING", "PROCESSING", "STORING", "COMPLETED"}


def main(manifest: str, model: str) -> None:
    """Submit and watch with both."""
    began = time.perf_counter()
    with Client(start=False) as client:
        job_id = client.submit(manifest, model).id
        seen: dict[str, dict[str, float]] = {"squeue": {}, "ffdl": {}}
        squeue = ["squeue", "--me", "--noheader", "--states=all", f"--name={job_id}-1", "--format=%T"]

        def ask_squeue() -> str:
            return subprocess.run(squeue, capture_output=True, text=True, check=True).stdout.strip()

        other = threading.Thread(target=watch, args=(ask_squeue, {"RUNNING"}, seen["squeue"], began))
        other.start()
        watch(lambda: client.get(job_id).state, _RUNNING, seen["ffdl"], began, pause_s=0.02)
        other.join()
    print(json.dumps(seen))


def watch(
    ask: Callable[[], str], running: set[str], seen: dict[str, float], began: float, pause_s: float = 0.0
) -> None:
    """Note when `ask` first says running and completed. Slurm's COMPLETING counts as running there."""
    while "completed" not in seen and time.perf_counter() - began < PATIENCE_S:
        state, at = ask(), time.perf_counter() - began
        if state in running | {"COMPLETING", "COMPLETED"}:
            seen.setdefault("running", at)
        if state == "COMPLETED":
            seen["completed"] = at
        time.sleep(pause_s)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
