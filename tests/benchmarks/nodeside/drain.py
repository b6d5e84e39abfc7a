"""Many jobs in one command, until Slurm has all of them: drain.py [--array=INDEXES] MANIFEST... MODEL.

Prints {"accepted_s": ..., "drained_s": ..., "natives": [...]}, counted from the start of the command; the natives are
the jobs and arrays of Slurm. When a job reached Slurm is the daemon's record (state QUEUED, written after sbatch
answered). While jobs are on their way, only one of them is listed, because a long list would cost the daemon time.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence

from ffdl_batch import Client
from ffdl_batch.client.api import JobFilter
from ffdl_batch.domain.job.views import JobView

LOOK_S = 1.0
PATIENCE_S = 900.0


def main(words: Sequence[str]) -> None:
    """Submit all held, and wait."""
    clock, began = time.time(), time.perf_counter()
    argv = ["ffdl-submit", "--parsable", "--hold", *words]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    accepted_s = time.perf_counter() - began
    if done.returncode != 0:
        sys.exit(f"ffdl-submit ended with {done.returncode}: {done.stderr[-2000:]}")
    ids = done.stdout.split()
    deadline = time.monotonic() + PATIENCE_S
    with Client(start=False) as client:
        while client.list(JobFilter(states=("PENDING", "DEPLOYING"), limit=1)):
            if time.monotonic() > deadline:
                sys.exit(f"some of {len(ids)} jobs did not reach Slurm within {PATIENCE_S:g} s")
            time.sleep(LOOK_S)
        jobs = submitted(client, ids, is_array=words[0].startswith("--array"))
    reached = [job.timestamps["QUEUED"] for job in jobs]
    natives = sorted({job.native_id.partition("_")[0] for job in jobs})
    print(json.dumps({"accepted_s": accepted_s, "drained_s": max(reached) - clock, "natives": natives}))


def submitted(client: Client, ids: Sequence[str], *, is_array: bool) -> list[JobView]:
    """The jobs of these ids, or of the one array that they are."""
    if is_array:
        return client.arrays.elements(ids[0])
    known = {job.id: job for job in client.list(JobFilter(limit=9999))}
    return [known[job_id] for job_id in ids]


if __name__ == "__main__":
    main(sys.argv[1:])
