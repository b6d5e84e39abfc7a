"""Many manifests in one command, until Slurm has all of them: drain.py MANIFEST... MODEL.

Prints {"accepted_s": ..., "drained_s": ..., "ids": [...]}, counted from the start of the command. When a job reached
Slurm is the daemon's record (state QUEUED, written after sbatch answered), so that waiting here costs it nothing.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time

from ffdl_batch import Client
from ffdl_batch.client.api import JobFilter

LOOK_S = 1.0
PATIENCE_S = 300.0


def main(files: list[str]) -> None:
    """Submit all held, and wait."""
    clock, began = time.time(), time.perf_counter()
    argv = ["ffdl-submit", "--parsable", "--hold", *files]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    accepted_s = time.perf_counter() - began
    if done.returncode != 0:
        sys.exit(f"ffdl-submit ended with {done.returncode}: {done.stderr[-2000:]}")
    ids = done.stdout.split()
    deadline = time.monotonic() + PATIENCE_S
    with Client(start=False) as client:
        while True:
            jobs = {job.id: job for job in client.list(JobFilter(limit=9999))}
            moments = [jobs[job_id].timestamps.get("QUEUED") for job_id in ids]
            reached = [moment for moment in moments if moment is not None]
            if len(reached) == len(ids):
                break
            if time.monotonic() > deadline:
                sys.exit(f"only {len(reached)} of {len(ids)} jobs reached Slurm within {PATIENCE_S:g} s")
            time.sleep(LOOK_S)
    print(json.dumps({"accepted_s": accepted_s, "drained_s": max(reached) - clock, "ids": ids}))


if __name__ == "__main__":
    main(sys.argv[1:])
